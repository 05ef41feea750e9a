"""Keys: what bytes in the cache are the KV of. Pure hashing; it never looks anything up.

A key is 128 bits. It names the tokens of a whole prefix and everything else that changes the KV of
that prefix (weights, adapter, dtype, layout, ranks, salt, media), each in a field with its own tag
so that no field can imitate another. Two producers that agree on the fields agree on the key, in
any process, on any machine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

KEY_BYTES = 16
DIGEST_BYTES = 16
ROOT = b"\0" * KEY_BYTES
"""Parent of the first block of every chain."""

_LENGTH = struct.Struct("<I")


def _field(tag: bytes, value: bytes) -> bytes:
    """One field in canonical form: tag length, tag, value length, value."""
    return _LENGTH.pack(len(tag)) + tag + _LENGTH.pack(len(value)) + value


def namespace_digest(fields: Mapping[str, str]) -> bytes:
    """16-byte digest of all that blocks of a namespace share (model, dtype, layout, ranks...).

    The order of `fields` does not matter; names and values are hashed as UTF-8 with their lengths.
    """
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvwise-space-1")
    for name in sorted(fields):
        hasher.update(_field(name.encode(), fields[name].encode()))
    return hasher.digest()


def chain_keys(
    space: bytes, tokens: Sequence[int], chunk_tokens: int, extra: Iterable[tuple[str, bytes]] = ()
) -> bytes:
    """Keys of every whole chunk of `tokens`, joined: 16 bytes each, in order.

    Each key covers its parent's key, the chunk's token ids (little-endian u32) and, in the first
    link, `extra` tagged fields such as a tenant salt or an adapter digest.
    For engines that have no stable chained digest of their own.
    """
    root = hashlib.blake2b(digest_size=KEY_BYTES, person=b"kvwise-root-1")
    root.update(_field(b"space", space))
    for name, value in sorted(extra):
        root.update(_field(name.encode(), value))
    parent, keys = root.digest(), []
    for start in range(0, len(tokens) - len(tokens) % chunk_tokens, chunk_tokens):
        chunk = struct.pack(f"<{chunk_tokens}I", *tokens[start : start + chunk_tokens])
        parent = hashlib.blake2b(
            parent + chunk, digest_size=KEY_BYTES, person=b"kvwise-chain-1"
        ).digest()
        keys.append(parent)
    return b"".join(keys)


def adopt_keys(
    space: bytes, digests: Iterable[bytes], extra: Iterable[tuple[str, bytes]] = ()
) -> bytes:
    """Keys derived from an engine's own chained digests, one 16-byte key for each digest, joined.

    The caller promises that each digest already covers the whole prefix up to its block. `extra`
    adds tagged fields that the engine's digest does not cover safely (adapter content, salt).
    """
    root = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvwise-adopt-1")
    root.update(_field(b"space", space))
    for name, value in sorted(extra):
        root.update(_field(name.encode(), value))
    prefix = root.digest()
    blake2b = hashlib.blake2b
    return b"".join(
        blake2b(prefix + digest, digest_size=KEY_BYTES, person=b"kvwise-block-1").digest()
        for digest in digests
    )


def split_keys(keys: bytes) -> list[bytes]:
    """The 16-byte keys in a joined string of keys."""
    return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]
