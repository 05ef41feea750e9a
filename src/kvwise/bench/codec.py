"""Owns `kvwise bench codec`: ratio and speed of every codec, one thread, beside memcpy.

General compressors are measured beside them where their packages are installed. It chooses nothing:
whether a codec pays on a link is for whoever knows the link.
"""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvwise.bench.machine import describe
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.bench.rows import Row, Rows
from kvwise.bench.yardstick import Spread, gbps, moved_note, movement, ratio, take_turns
from kvwise.codecs.base import Buffers, Codec, scratch, total_bytes
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.errors import ConfigError
from kvwise.units import KIB, MIB

OBJECT_BYTES = 720 * KIB
WHOLE_BYTES, WHOLE_BYTES_QUICK = 64 * MIB, 8 * MIB
PASSES, PASSES_QUICK = 5, 2
TEXT_TOKENS = (512, 4096)
"""A prompt of usual length, and a long one."""

DUMP_S = 900.0
SEED = 7

Bytes = NDArray[np.uint8]
Pair = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """What to measure.

    Attributes:
        data: names of kinds of data, see `DATA`.
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

    def __init__(self, name: str, pair: Pair, *, shuffled: bool) -> None:
        """`pair` compresses and decompresses bytes."""
        self.name = f"shuffle+{name}" if shuffled else name
        self._pack, self._unpack = pair
        self._shuffled = shuffled

    def encode(self, payload: Buffers) -> Buffers:
        """The compressed bytes, whatever their size."""
        (piece,) = payload
        if self._shuffled:
            halves = np.frombuffer(piece, np.uint8).reshape(-1, 2)
            return [memoryview(self._pack(np.ascontiguousarray(halves.T).tobytes()))]
        return [memoryview(self._pack(bytes(piece)))]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Decompress into the payload."""
        raw = np.frombuffer(self._unpack(bytes(stored[0])), np.uint8)
        whole = np.frombuffer(payload[0], np.uint8)
        if self._shuffled:
            whole.reshape(-1, 2)[:] = raw.reshape(2, -1).T
        else:
            whole[:] = raw


def measure_codecs(options: CodecOptions, progress: Progress) -> Rows:
    """Measure every codec on the kinds of data asked for.

    Raises:
        ConfigError: Numba is not installed.
        SetupError: the engine that makes real KV failed, or a codec gave other bytes back.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    codecs, skipped = _codecs()
    rows: list[Row] = []
    moved: list[str] = []
    for name in options.data:
        for part, data in DATA[name](options, progress):
            works, found = _measure(part, data, codecs, options, progress)
            rows += _rows(part, works, found)
            moved += movement(f"memcpy on {part}", found["memcpy"])
            progress.done(f"measured: {part}")
    machine = describe(Path())
    notes = tuple(moved_note(moved))
    return Rows("codec", options.command, started, machine, rows, skipped, notes)


def _codecs() -> tuple[list[tuple[Codec, str]], list[str]]:
    """Codecs with their modes, and which others are not here."""
    try:
        modes: tuple[Mode, ...] = ("fixed", "dense")
        found: list[tuple[Codec, str]] = [(Exponent(mode), mode) for mode in modes]
    except ImportError as error:
        raise ConfigError(f"{error}; hint: pip install 'kvwise[codecs]'") from error
    skipped = []
    for package, make in (("zstandard", _zstd), ("lz4.frame", _lz4), ("zipnn", _zipnn)):
        try:
            module = importlib.import_module(package)
        except ImportError:
            name = package.partition(".")[0]
            skipped.append(f"{name} is not installed; hint: pip install {name}")
            continue
        found += [(codec, "general") for codec in make(module)]
    return found, skipped


def _zstd(module: Any) -> Iterator[Codec]:
    """Levels 1 and 3; with planes apart too."""
    unpack = module.ZstdDecompressor().decompress
    for level in (1, 3):
        pair = (module.ZstdCompressor(level=level).compress, unpack)
        yield General(f"zstd-{level}", pair, shuffled=False)
        yield General(f"zstd-{level}", pair, shuffled=True)


def _lz4(module: Any) -> Iterator[Codec]:
    yield General("lz4", (module.compress, module.decompress), shuffled=False)


def _zipnn(module: Any) -> Iterator[Codec]:
    zipped = module.ZipNN(bytearray_dtype="bfloat16", threads=1)
    yield General("zipnn", (zipped.compress, zipped.decompress), shuffled=False)


# --- data ----------------------------------------------------------------------------------------


def _noise(options: CodecOptions, _: Progress) -> Iterator[tuple[str, Bytes]]:
    yield "noise", np.random.default_rng(SEED).integers(0, 256, options.whole_bytes, np.uint8)


def _constant(options: CodecOptions, _: Progress) -> Iterator[tuple[str, Bytes]]:
    yield "constant", np.full(options.whole_bytes // 2, 0x3FC0, np.uint16).view(np.uint8)


def _real(options: CodecOptions, progress: Progress) -> Iterator[tuple[str, Bytes]]:
    """K and V of SmolLM2 in BF16, for a prompt of usual length and a long one."""
    python = ensure_engine(progress)
    model = ensure_smollm2(python, progress)
    text = resources.files("kvwise.bench").joinpath("sentences.txt").read_text(encoding="utf-8")
    for tokens in TEXT_TOKENS:
        progress.now(f"a real model reads {tokens} tokens")
        with tempfile.TemporaryDirectory(prefix="kvwise-bench-") as place:
            folder = Path(place)
            written = folder / "text.txt"
            written.write_text(text * (1 + tokens * 8 // len(text)), encoding="utf-8")
            _dump(python, model, tokens, written, folder)
            for part in "kv":
                once = np.fromfile(folder / f"{part}.bin", np.uint8)
                yield f"kv.{part}.{tokens}", np.resize(once, options.whole_bytes)


def _dump(python: Path, model: Path, tokens: int, text: Path, folder: Path) -> None:
    """Have the engine's Python write KV down."""
    with resources.as_file(resources.files("kvwise.bench").joinpath("kv_dump.py")) as script:
        command = [str(python), str(script), "--model", str(model), "--tokens", str(tokens)]
        command += ["--out", str(folder), str(text)]
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DUMP_S, check=False, env=quiet
            )
        except subprocess.TimeoutExpired:
            raise SetupError(f"the model did not read within {DUMP_S:.0f} s") from None
    if done.returncode:
        raise SetupError(f"the model failed: {done.stderr.strip().splitlines()[-1:]}")


DATA: Final[dict[str, Callable[[CodecOptions, Progress], Iterator[tuple[str, Bytes]]]]] = {
    "kv": _real,
    "noise": _noise,
    "constant": _constant,
}
"""Kinds of data; each gives parts with names."""


# --- measuring -----------------------------------------------------------------------------------


def _measure(
    part: str,
    data: Bytes,
    codecs: Sequence[tuple[Codec, str]],
    options: CodecOptions,
    progress: Progress,
) -> tuple[list[_Work], dict[str, list[float]]]:
    """All codecs on some data, their passes in turns with memcpy."""
    objects, target = _objects(data), _objects(np.zeros_like(data))
    works = [_Work(codec, mode, objects, target) for codec, mode in codecs]
    actions: dict[str, Callable[[], float]] = {"memcpy": lambda: _copy(objects, target)}
    for work in works:
        actions[f"{work.codec.name} encode"] = work.encode
        actions[f"{work.codec.name} decode"] = work.decode
    return works, take_turns(actions, options.turns, lambda text: progress.now(f"{part}: {text}"))


def _rows(part: str, works: Sequence[_Work], found: dict[str, list[float]]) -> Iterator[Row]:
    """What each codec came to, medians of all passes."""
    memcpy = found["memcpy"]
    for work in works:
        encode, decode = (found[f"{work.codec.name} {way}"] for way in ("encode", "decode"))
        yield {
            "codec": work.codec.name,
            "mode": work.mode,
            "data": part,
            "ratio": round(work.ratio, 4),
            "encode_gbps": round(Spread.of(encode).median, 3),
            "decode_gbps": round(Spread.of(decode).median, 3),
            "memcpy_gbps": round(Spread.of(memcpy).median, 3),
            "encode_of_memcpy": round(ratio(encode, memcpy).median, 3),
            "decode_of_memcpy": round(ratio(decode, memcpy).median, 3),
        }


def _objects(data: Bytes) -> list[memoryview]:
    """The data in objects on pages of their own."""
    objects = []
    for start in range(0, data.size - OBJECT_BYTES + 1, OBJECT_BYTES):
        one = scratch(OBJECT_BYTES)
        one[:] = data[start : start + OBJECT_BYTES].data
        objects.append(one)
    return objects


def _copy(objects: Sequence[memoryview], target: Sequence[memoryview]) -> float:
    """The rate of one thread's memcpy."""
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
        self._stored: list[Buffers] = []

    @property
    def ratio(self) -> float:
        """How many times smaller the objects became."""
        stored_bytes = sum(total_bytes(stored) for stored in self._stored)
        return len(self._objects) * OBJECT_BYTES / stored_bytes

    def encode(self) -> float:
        """Rate of payload bytes written down."""
        self._stored = []
        started = time.perf_counter()
        for one in self._objects:
            self._stored.append(self.codec.encode([one]))
        return gbps(len(self._objects) * OBJECT_BYTES, time.perf_counter() - started)

    def decode(self) -> float:
        """Rate of payload bytes restored; what was stored as it is counts as copied.

        Raises:
            SetupError: other bytes came back.
        """
        started = time.perf_counter()
        for stored, one, to in zip(self._stored, self._objects, self._target, strict=True):
            if stored[0] is one:
                to[:] = one
            else:
                self.codec.decode(stored, [to])
        seconds = time.perf_counter() - started
        pairs = zip(self._objects, self._target, strict=True)
        if not all(np.array_equal(one, to) for one, to in pairs):
            raise SetupError(f"{self.codec.name} gave other bytes back")
        return gbps(len(self._objects) * OBJECT_BYTES, seconds)
