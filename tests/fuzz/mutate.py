"""The mutator: hostile bytes made from good ones, the same for the same seed. It judges nothing.

Some changes know nothing of the format: bits, bytes, cuts, splices, numbers at the edges of their
type. Others know that an input is a row of records with a length in front, or lines of text, and
what MessagePack is, so that a change gets past the outermost check.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec

BYTES_MAX = 4000
"""No input is longer, so that every one of them fits a file of the corpus."""

_LENGTH = struct.Struct("<I")
EDGES = sorted(
    {0, 1, 2, 3, 7, 15, 16, 17, 255, 4095, 4096, 4097, 65535, 65536}
    | {(1 << bits) + off for bits in (31, 32, 40, 53, 63, 64) for off in (-1, 0)}
)
TREES: tuple[object, ...] = (
    *(edge for edge in EDGES if edge < 1 << 64),
    *(-(1 << 63), -1, None, True, False, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", "x" * 300, "\0", "\u202e", b"", bytes(15), bytes(16), bytes(17), b"\xff" * 64),
    *([], [[]], {}, {"": None}),
)


class Shape(Enum):
    """What inputs look like from afar."""

    BYTES = "bytes"
    RECORDS = "records"
    LINES = "lines"


class Mutator:
    """An endless row of inputs that come from a corpus.

    Args:
        corpus: what inputs are made from; at least one.
        shape: what the mutator may take for granted about them, most of the time.
        seed: the same one gives the same inputs.
        heads: for records, how many bytes stand before their MessagePack body.
        tails: for records, how many bytes may follow it.
    """

    def __init__(
        self, corpus: Sequence[bytes], shape: Shape, seed: int, *, heads: int = 0, tails: int = 0
    ) -> None:
        self._corpus = list(corpus)
        self._random = random.Random(seed)
        self._head, self._tail = heads, tails
        self._changes: list[Callable[[bytes], bytes]] = [
            self._flip,
            self._edge,
            self._overwrite,
            self._cut,
            self._repeat,
            self._splice,
        ]
        if shape is Shape.RECORDS:
            self._changes += [self._records, self._tree, self._tree, self._tree, self._tree]
        elif shape is Shape.LINES:
            self._changes += [self._lines, self._lines, self._word, self._word]

    def next(self) -> bytes:
        """One more input: something of the corpus, changed once or a few times."""
        return self.change(self._random.choice(self._corpus))

    def change(self, data: bytes) -> bytes:
        """An input made from `data`."""
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 6))):
            data = self._random.choice(self._changes)(data)
        return data[:BYTES_MAX]

    # --- changes that know nothing ---

    def _at(self, data: bytes) -> int:
        return self._random.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        """One bit."""
        if not data:
            return b"\0"
        changed, bit = bytearray(data), self._random.randrange(len(data) * 8)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _edge(self, data: bytes) -> bytes:
        """A number at the edge of its type, in either order of bytes."""
        size, at = self._random.choice((1, 2, 4, 8)), self._at(data)
        order = "little" if self._random.random() < 0.7 else "big"
        edge = self._random.choice(EDGES) % (1 << 8 * size)
        return data[:at] + edge.to_bytes(size, order) + data[at + size :]  # type: ignore[arg-type]

    def _overwrite(self, data: bytes) -> bytes:
        """Noise over a stretch."""
        at, noise = self._at(data), self._random.randbytes(self._random.randint(1, 8))
        return data[:at] + noise + data[at + len(noise) :]

    def _cut(self, data: bytes) -> bytes:
        """A stretch taken out; often the end."""
        first = self._at(data)
        last = len(data) if self._random.random() < 0.4 else self._at(data)
        return data[: min(first, last)] + data[max(first, last) :]

    def _repeat(self, data: bytes) -> bytes:
        """A stretch once more, or a few times."""
        first, last = sorted((self._at(data), self._at(data)))
        return data[:last] + data[first:last] * self._random.randint(1, 3) + data[last:]

    def _splice(self, data: bytes) -> bytes:
        """The beginning of this one and the end of another."""
        other = self._random.choice(self._corpus)
        return data[: self._at(data)] + other[self._at(other) :]

    # --- changes that know of records ---

    def _records(self, data: bytes) -> bytes:
        """Records taken out, doubled, exchanged, or brought in from elsewhere."""
        records = split(data)
        other = split(self._random.choice(self._corpus))
        at = self._random.randrange(len(records) + 1)
        match self._random.randrange(4):
            case 0:
                del records[at : at + 1]
            case 1:
                records[at:at] = records[at - 1 : at]
            case 2:
                self._random.shuffle(records)
            case _:
                records[at:at] = self._random.sample(other, min(len(other), 2))
        return join(records)

    def _tree(self, data: bytes) -> bytes:
        """A value somewhere in a record's body, the length in front made right again."""
        records = split(data)
        if not records:
            return self._flip(data)
        at = self._random.randrange(len(records))
        record = records[at]
        end = len(record) - self._tail
        try:
            tree = msgspec.msgpack.decode(record[self._head : end])
            body = msgspec.msgpack.encode(self._grown(tree))
        except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, OverflowError):
            return self._flip(data)
        records[at] = record[: self._head] + body + record[max(end, self._head) :]
        return join(records)

    def _grown(self, tree: Any) -> object:
        """The tree with one change in it."""
        if isinstance(tree, list | dict) and tree and self._random.random() < 0.85:
            places = list(tree) if isinstance(tree, dict) else range(len(tree))
            self._change_item(tree, self._random.choice(places))
            return tree
        if isinstance(tree, bytes) and self._random.random() < 0.6:
            return self._random.choice((self._flip, self._cut, self._repeat))(tree)
        if isinstance(tree, int) and not isinstance(tree, bool) and self._random.random() < 0.5:
            return tree + self._random.choice((-1, 1, 16, -16, 1 << 32))
        return self._random.choice(TREES)

    def _change_item(self, tree: Any, where: Any) -> None:
        """One item of a list or a map taken out, doubled, or changed inside."""
        match self._random.randrange(12):
            case 0:
                del tree[where]
            case 1 if isinstance(tree, list):
                tree.insert(where, tree[where])
            case 1:
                tree[self._random.choice(("", "type", str(where) + "x"))] = tree[where]
            case _:
                tree[where] = self._grown(tree[where])

    # --- changes that know of lines ---

    def _lines(self, data: bytes) -> bytes:
        """Lines taken out, doubled, exchanged, or brought in from elsewhere."""
        lines = data.split(b"\n")
        other = self._random.choice(self._corpus).split(b"\n")
        at = self._random.randrange(len(lines))
        match self._random.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                self._random.shuffle(lines)
            case _:
                lines.insert(at, self._random.choice(other))
        return b"\n".join(lines)

    def _word(self, data: bytes) -> bytes:
        """What stands behind an equals sign exchanged for something else."""
        lines = data.split(b"\n")
        at = self._random.randrange(len(lines))
        name, equals, _ = lines[at].partition(b"=")
        value = self._random.choice(WORDS).encode("utf-8", "surrogatepass")
        lines[at] = name + (equals or b"=") + value
        return b"\n".join(lines)


WORDS = (
    *('""', '"x"', "-1", "1e400", "nan", "-inf", "0x7fffffffffffffff", "9" * 400, "true", "[]"),
    *("[[[]]]", '["/a", "/b"]', "{ a = 1 }", '"4GiB"', "4GiB", "1e3KiB", "0.5B", "1_0", "/x:/y"),
    *("[::1]:80", "a:99999", "a:\u0663", "\u212a", "\udcff", "../..", "~nobody/x", "~", "/" * 300),
    *('"\\u0000"', "auto", "\u00e9:1", "." * 70 + ":1", "1979-05-27", "'''", "#", "\x7f"),
)


def split(data: bytes) -> list[bytes]:
    """The records of an input; what follows the last whole one is lost."""
    records, at = [], 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            break
        records.append(data[at : at + size])
        at += size
    return records


def join(records: Sequence[bytes]) -> bytes:
    """Records with their lengths in front."""
    return b"".join(_LENGTH.pack(len(record)) + record for record in records)
