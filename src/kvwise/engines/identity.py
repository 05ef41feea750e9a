"""Identity: digests of what a model and an adapter contain, cheap enough for every start.

Names and paths are no identity: weights change under a name, and the same weights lie under many
paths. It reads files and hashes; it knows no host engine and makes no keys.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from kvwise.errors import EngineError

SAMPLE_BYTES = 64
"""Bytes looked at in the middle and at both ends of every tensor: training moves all of them."""

WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""Files up to this size are hashed as a whole."""

HEADER_BYTES_MAX = 256 * 1024 * 1024
STRIDES = 4096
"""Samples taken from a large file whose format is not known."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SETTINGS = ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json")
_HEADER = struct.Struct("<Q")


def weights_digest(directory: Path) -> str:
    """A digest of the model in `directory`: its settings and samples of every tensor.

    Raises:
        EngineError: there are no weights, or they cannot be read.
    """
    return _digest(directory, _WEIGHTS).hex()


def adapter_digest(directory: Path) -> bytes:
    """A digest of the adapter in `directory`, 16 bytes; small adapters are read as a whole.

    Raises:
        EngineError: there are no weights, or they cannot be read.
    """
    return _digest(directory, _WEIGHTS)


def settings_digest(settings: dict[str, Any]) -> str:
    """A digest of a model's settings as the engine uses them, whatever the order of its keys.

    Private keys and the version of the library that wrote the file are left out.
    """
    kept = {
        key: value
        for key, value in settings.items()
        if not key.startswith("_") and key != "transformers_version"
    }
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest(directory: Path, suffixes: tuple[str, ...]) -> bytes:
    """Digest of all files of a directory that say what it computes, by name order."""
    hasher = hashlib.blake2b(digest_size=16, person=b"kvwise-weights-1")
    try:
        files = sorted(path for path in directory.iterdir() if path.is_file())
        weights = [path for path in files if path.suffix in suffixes]
        if not weights:
            raise EngineError(f"no weights in {directory}: {', '.join(suffixes)} are looked for")
        for path in files:
            if path in weights or path.name in _SETTINGS:
                hasher.update(_file_digest(path, path.name))
    except OSError as error:
        raise EngineError(f"cannot read the weights in {directory}: {error}") from error
    return hasher.digest()


def _file_digest(path: Path, name: str) -> bytes:
    """Digest of one file: its name, its size, and all of it or samples."""
    size = path.stat().st_size
    hasher = hashlib.blake2b(f"{len(name)}:{name}:{size}:".encode(), digest_size=32)
    with path.open("rb") as file:
        if size <= WHOLE_BYTES_MAX:
            while block := file.read(1 << 20):
                hasher.update(block)
        elif path.suffix == ".safetensors":
            _sample_tensors(file, size, hasher)
        else:
            for start in range(0, size, max(1, size // STRIDES)):
                file.seek(start)
                hasher.update(file.read(SAMPLE_BYTES))
    return hasher.digest()


def _sample_tensors(file: BinaryIO, size: int, hasher: hashlib.blake2b) -> None:
    """Hash the header of a safetensors file and bytes of every tensor it lists."""
    try:
        (length,) = _HEADER.unpack(file.read(_HEADER.size))
        header = file.read(min(length, size, HEADER_BYTES_MAX))
        tensors = json.loads(header)
        spans = sorted(tensors[key]["data_offsets"] for key in tensors if key != "__metadata__")
        if not spans:
            raise ValueError("no tensors")
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{file.name} is not a safetensors file: {error!r}") from error
    hasher.update(header)
    base = _HEADER.size + length
    for first, last in spans:
        for start in sorted({first, (first + last) // 2, max(first, last - SAMPLE_BYTES)}):
            file.seek(base + start)
            hasher.update(file.read(min(SAMPLE_BYTES, last - start)))
