"""Owns `kvwise bench codec`: ratio and speed of every codec, one thread, beside memcpy.

General compressors are measured beside them where their packages are installed. It chooses nothing:
whether a codec pays on a link is for whoever knows the link.
"""

from __future__ import annotations

import importlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from kvwise.bench.codec_data import DATA, Bytes, Part
from kvwise.bench.codec_splitzip import ratio_at, share_beyond
from kvwise.bench.machine import describe
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.bench.yardstick import Spread, gbps, moved_note, movement, ratio, take_turns
from kvwise.codecs.base import Buffers, Codec, scratch, total_bytes
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.codecs.scaled import KINDS as SCALED
from kvwise.errors import ConfigError
from kvwise.units import KIB, MIB

OBJECT_BYTES = 720 * KIB
WHOLE_BYTES, WHOLE_BYTES_QUICK = 64 * MIB, 8 * MIB
PASSES, PASSES_QUICK = 5, 2
NOTHING = 0x5A
"""What a target is filled with, so that nothing is restored by having been there before."""

Pair = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
Works = Sequence["_Work"]


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """What to measure.

    Attributes:
        data: names of kinds of data, see `codec_data.DATA`.
        passes: figures of each rate; 0 chooses.
        quick: fewer passes and less of everything, to see that it works.
    """

    data: Sequence[str]
    passes: int = 0
    quick: bool = False

    @property
    def turns(self) -> int:
        """Figures of each rate."""
        return self.passes or (PASSES_QUICK if self.quick else PASSES)

    @property
    def whole_bytes(self) -> int:
        """Bytes of each kind of data."""
        return WHOLE_BYTES_QUICK if self.quick else WHOLE_BYTES

    @property
    def command(self) -> str:
        """How to run it again."""
        words = ["kvwise", "bench", "codec", "--passes", str(self.turns)]
        words += [word for name in self.data for word in ("--data", name)]
        return shlex.join([*words, *(["--quick"] if self.quick else [])])


class General:
    """A general compressor in the shape of a codec; planes of bytes apart if so wished."""

    lossless = True
    id = 0xFFFE

    def __init__(self, name: str, pair: Pair, planes: int = 1) -> None:
        """`pair` compresses and decompresses bytes, which come in so many planes."""
        self.name = f"shuffle+{name}" if planes > 1 else name
        self._pack, self._unpack = pair
        self._planes = planes

    def encode(self, payload: Buffers) -> Buffers:
        """The compressed bytes, whatever their size."""
        (piece,) = payload
        if self._planes > 1:
            elements = np.frombuffer(piece, np.uint8).reshape(-1, self._planes)
            return [memoryview(self._pack(np.ascontiguousarray(elements.T).tobytes()))]
        return [memoryview(self._pack(bytes(piece)))]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Decompress into the payload."""
        raw = np.frombuffer(self._unpack(bytes(stored[0])), np.uint8)
        whole = np.frombuffer(payload[0], np.uint8)
        if self._planes > 1:
            whole.reshape(-1, self._planes)[:] = raw.reshape(self._planes, -1).T
        else:
            whole[:] = raw


def measure_codecs(options: CodecOptions, progress: Progress) -> Rows:
    """Measure every codec on the kinds of data asked for.

    Raises:
        ConfigError: Numba is not installed.
        SetupError: the engine that makes real KV failed, or a codec gave other bytes back.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    general, skipped = _packages()
    rows: list[Row] = []
    moved: list[str] = []
    for name in options.data:
        for part in DATA[name](options.whole_bytes, progress):
            works, found = _measure(part, _codecs(part.kind, general), options, progress)
            rows += _rows(part, works, found)
            copies = [rate for work in works for rate in found[f"{work.codec.name} memcpy"]]
            moved += movement(f"memcpy on {part.name}", copies)
            progress.done(f"measured: {part.name}")
    machine = describe(Path())
    notes = (*moved_note(moved), *_splitzip_note(rows))
    return Rows("codec", options.command, started, machine, rows, skipped, notes)


# --- codecs --------------------------------------------------------------------------------------


def _packages() -> tuple[dict[str, Any], list[str]]:
    """General compressors that are here, and which are not."""
    found, skipped = {}, []
    for package in ("zstandard", "lz4.frame", "zipnn"):
        name = package.partition(".")[0]
        try:
            found[name] = importlib.import_module(package)
        except ImportError:
            skipped.append(f"{name} is not installed; hint: pip install {name}")
    return found, skipped


def _codecs(kind: Kind, general: dict[str, Any]) -> list[tuple[Codec, str]]:
    """Codecs for elements of a kind, with their modes."""
    try:
        modes: tuple[Mode, ...] = ("fixed", "dense")
        found: list[tuple[Codec, str]] = [(Exponent(mode, kind), mode) for mode in modes]
        found += [(codec, "lossy") for codec in _lossy(kind)]
    except ImportError as error:
        raise ConfigError(f"{error}; hint: pip install 'kvwise[codecs]'") from error
    makers = {"zstandard": _zstd, "lz4": _lz4, "zipnn": _zipnn}
    for name, module in general.items():
        found += [(codec, "general") for codec in makers[name](module, kind)]
    return found


def _lossy(kind: Kind) -> Iterator[Codec]:
    """For the kinds that have scales, in tensors as SmolLM2's are."""
    if kind in SCALED.values():
        elements = Elements(kind, 32 * 3 * 64, 3, 32 * 64)
        yield Fp8(elements, scale="head")
        yield Nvfp4(elements)


def _zstd(module: Any, kind: Kind) -> Iterator[Codec]:
    """Levels 1 and 3; with planes apart too."""
    unpack = module.ZstdDecompressor().decompress
    for level in (1, 3):
        pair = (module.ZstdCompressor(level=level).compress, unpack)
        yield General(f"zstd-{level}", pair)
        if kind.bytes > 1:
            yield General(f"zstd-{level}", pair, kind.bytes)


def _lz4(module: Any, _: Kind) -> Iterator[Codec]:
    yield General("lz4", (module.compress, module.decompress))


def _zipnn(module: Any, kind: Kind) -> Iterator[Codec]:
    """For the kinds it knows."""
    names = {Kind.BF16: "bfloat16", Kind.FP16: "float16", Kind.FP32: "float32"}
    if kind in names:
        zipped = module.ZipNN(bytearray_dtype=names[kind], threads=1)
        yield General("zipnn", (zipped.compress, zipped.decompress))


# --- measuring -----------------------------------------------------------------------------------


def _measure(
    part: Part, codecs: Sequence[tuple[Codec, str]], options: CodecOptions, progress: Progress
) -> tuple[Works, dict[str, list[float]]]:
    """All codecs on some data, each in turns with a memcpy of its own."""
    objects, target = _objects(part.data), _objects(np.zeros_like(part.data))
    works = [_Work(codec, mode, objects, target) for codec, mode in codecs]
    actions: dict[str, Callable[[], float]] = {}
    for work in works:
        actions[f"{work.codec.name} memcpy"] = lambda: _copy(objects, target)
        actions[f"{work.codec.name} encode"] = work.encode
        actions[f"{work.codec.name} decode"] = work.decode
    return works, take_turns(
        actions, options.turns, lambda text: progress.now(f"{part.name}: {text}")
    )


def _rows(part: Part, works: Works, found: dict[str, list[float]]) -> Iterator[Row]:
    """What each codec came to, medians of all passes."""
    for work in works:
        ways = ("memcpy", "encode", "decode")
        memcpy, encode, decode = (found[f"{work.codec.name} {way}"] for way in ways)
        beside = {}
        if part.kind is Kind.BF16 and work.mode == "fixed":
            beside["splitzip_ratio"] = round(ratio_at(share_beyond(part.data)), 4)
        yield {
            "codec": work.codec.name,
            "mode": work.mode,
            "data": part.name,
            "ratio": round(work.ratio, 4),
            "encode_gbps": round(Spread.of(encode).median, 3),
            "decode_gbps": round(Spread.of(decode).median, 3),
            "memcpy_gbps": round(Spread.of(memcpy).median, 3),
            "encode_of_memcpy": round(ratio(encode, memcpy).median, 3),
            "decode_of_memcpy": round(ratio(decode, memcpy).median, 3),
            **beside,
        }


def _splitzip_note(rows: Sequence[Row]) -> Iterator[str]:
    """What the format nearest to `fixed` would take of the same data, by its formula."""
    found = [
        f"{row['data']} {row['splitzip_ratio']:.3f}" for row in rows if "splitzip_ratio" in row
    ]
    if found:
        yield f"ratio of SplitZip's format (12 + 56p bits), by its formula: {', '.join(found)}"


def _objects(data: Bytes) -> list[memoryview]:
    """The data in objects on pages of their own."""
    objects = []
    for start in range(0, data.size - OBJECT_BYTES + 1, OBJECT_BYTES):
        one = scratch(OBJECT_BYTES)
        one[:] = data[start : start + OBJECT_BYTES].data
        objects.append(one)
    return objects


def _forget(target: Sequence[memoryview]) -> None:
    """Put what is no result where results go."""
    for to in target:
        np.frombuffer(to, np.uint8)[:] = NOTHING


def _copy(objects: Sequence[memoryview], target: Sequence[memoryview]) -> float:
    """The rate of one thread's memcpy, to memory that was written just before."""
    _forget(target)
    started = time.perf_counter()
    for source, to in zip(objects, target, strict=True):
        to[:] = source
    return gbps(len(objects) * OBJECT_BYTES, time.perf_counter() - started)


class _Work:
    """One codec and what it made of the objects."""

    def __init__(
        self,
        codec: Codec,
        mode: str,
        objects: Sequence[memoryview],
        target: Sequence[memoryview],
    ) -> None:
        self.codec = codec
        self.mode = mode
        self._objects = objects
        self._target = target
        self._stored = [codec.encode([one]) for one in objects]

    @property
    def ratio(self) -> float:
        """How many times smaller the objects became."""
        stored_bytes = sum(total_bytes(stored) for stored in self._stored)
        return len(self._objects) * OBJECT_BYTES / stored_bytes

    def encode(self) -> float:
        """Rate of payload bytes written down, each object let go of before the next.

        Raises:
            SetupError: other bytes came out than before.
        """
        started = time.perf_counter()
        sizes = [total_bytes(self.codec.encode([one])) for one in self._objects]
        seconds = time.perf_counter() - started
        if sizes != [total_bytes(stored) for stored in self._stored]:
            raise SetupError(f"{self.codec.name} wrote the same down in another size")
        return gbps(len(self._objects) * OBJECT_BYTES, seconds)

    def decode(self) -> float:
        """Rate of payload bytes restored; what was stored as it is counts as copied.

        Raises:
            SetupError: other bytes came back.
        """
        _forget(self._target)
        started = time.perf_counter()
        for stored, one, to in zip(self._stored, self._objects, self._target, strict=True):
            if stored[0] is one:
                to[:] = one
            else:
                self.codec.decode(stored, [to])
        seconds = time.perf_counter() - started
        pairs = zip(self._objects, self._target, strict=True)
        if self.codec.lossless and not all(np.array_equal(one, to) for one, to in pairs):
            raise SetupError(f"{self.codec.name} gave other bytes back")
        return gbps(len(self._objects) * OBJECT_BYTES, seconds)
