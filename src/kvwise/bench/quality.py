"""Owns `kvwise bench quality`: what a model makes of KV that a codec has changed.

A real model's KV goes through a real disk tier and back, once for each codec. It judges nothing
beyond its two controls: KV stored plain must do exactly as well as KV that was never stored, and
KV that was destroyed must do badly.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kvwise.bench.documents import document
from kvwise.bench.machine import describe
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.bench.rows import Row, Rows
from kvwise.codecs.base import Codec, scratch
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.codecs.plain import PLAIN
from kvwise.errors import ConfigError
from kvwise.tiers.base import Placed, Record, Want
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.units import GIB

BLOCK_TOKENS = 32
"""Tokens of one object, as in the engine on a CPU."""
PREFIX_TOKENS, REST_TOKENS = 1024, 128
GENERATED_TOKENS, GENERATED_TOKENS_QUICK = 64, 8
RECORDS = 4
"""Long invented records beside the passages, see `bench/documents.py`."""

MODEL_S = 1800.0
"""How long the model may take, loading included."""

CONTROL, WORST = "zeros", 2.0
"""KV of zeros; the perplexity that it has to be worse by, or the measure sees nothing."""

_SPACE = bytes(16)
_ELEMENT_BYTES = Kind.BF16.bytes

Judged = Mapping[str, Sequence[Mapping[str, Any]]]
"""What the model said: for each way that KV went, one answer for each text. See `kv_quality`."""


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What to measure.

    Attributes:
        quick: fewer texts and tokens, to see that it works.
    """

    quick: bool = False

    @property
    def generated_tokens(self) -> int:
        """Tokens that the model goes on with by itself."""
        return GENERATED_TOKENS_QUICK if self.quick else GENERATED_TOKENS

    @property
    def command(self) -> str:
        """How to run it again."""
        return shlex.join(["kvwise", "bench", "quality", *(["--quick"] if self.quick else [])])


@dataclass(frozen=True, slots=True)
class Way:
    """One way for KV to go: a codec, with its scales."""

    codec: Codec
    name: str
    scale: str


def measure_quality(options: QualityOptions, progress: Progress) -> Rows:
    """Send a real model's KV through a disk tier with every codec, and have the model judge it.

    Raises:
        ConfigError: Numba is not installed.
        SetupError: the engine's environment or the model failed, or a control did.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    python = ensure_engine(progress)
    model = Model(python, ensure_smollm2(python, progress), options, progress)
    with tempfile.TemporaryDirectory(prefix="kvwise-bench-") as place:
        folder = Path(place)
        computed = folder / "computed"
        shape = model.write(folder, computed)
        heads, width = shape["heads"], shape["width"]
        run = BLOCK_TOKENS * width
        ways = _ways(Elements(Kind.BF16, heads * run, heads, run))
        object_bytes = shape["layers"] * 2 * heads * run * _ELEMENT_BYTES
        ratios: dict[str, float] = {}
        for way in ways:
            progress.now(f"KV goes through a disk tier: {way.codec.name}")
            ratios[way.codec.name] = through_disk(way.codec, computed, folder, object_bytes)
        _zeros(computed, folder / CONTROL)
        folders = [folder / way.codec.name for way in ways] + [folder / CONTROL]
        judged = model.judge(folder, folders)
        machine = describe(folder)
    progress.done(f"judged {sum(rest for _, rest in shape['tokens'])} tokens, {len(ways)} ways")
    rows = [
        row_of(way.name, way.scale, ratios[way.codec.name], judged, way.codec.name) for way in ways
    ]
    rows.append(row_of(CONTROL, "", 0.0, judged, CONTROL))
    notes = require_controls(judged)
    return Rows("quality", options.command, started, machine, rows, notes=notes)


def _ways(elements: Elements) -> list[Way]:
    """Plain first, then every codec that changes KV."""
    try:
        return [
            Way(PLAIN, "plain", ""),
            Way(Fp8(elements), "fp8-e4m3", "tensor"),
            Way(Fp8(elements, scale="head"), "fp8-e4m3", "head"),
            Way(Fp8(elements, Kind.E5M2), "fp8-e5m2", "tensor"),
            Way(Fp8(elements, Kind.E5M2, "head"), "fp8-e5m2", "head"),
            Way(Nvfp4(elements), "nvfp4", "block"),
        ]
    except ImportError as error:
        raise ConfigError(f"{error}; hint: pip install 'kvwise[codecs]'") from error


# --- the model -----------------------------------------------------------------------------------


class Model:
    """The engine's Python with the model, asked once to write KV down and once to judge it."""

    def __init__(
        self, python: Path, model: Path, options: QualityOptions, progress: Progress
    ) -> None:
        """Nothing is started yet."""
        self._options, self._progress = options, progress
        self._command = [str(python), "-", "--model", str(model)]

    def write(self, folder: Path, computed: Path) -> dict[str, Any]:
        """Have the KV of all prefixes written to a folder; its shape."""
        computed.mkdir()
        self._progress.now("a real model reads the texts")
        return dict(self._run(folder, ["--write", str(computed)]))

    def judge(self, folder: Path, folders: Sequence[Path]) -> Judged:
        """What the model says given the KV of each folder, and given what it computed itself."""
        self._progress.now(f"the model goes on with KV that came back {len(folders)} ways")
        generate = ["--generate", str(self._options.generated_tokens)]
        return dict(self._run(folder, [*generate, *(str(one) for one in folders)]))

    def _run(self, folder: Path, arguments: Sequence[str]) -> Any:
        """The JSON that the script prints.

        Raises:
            SetupError: it failed, or took too long.
        """
        texts = folder / "texts.json"
        texts.write_text(json.dumps(_texts(quick=self._options.quick)), encoding="utf-8")
        script = resources.files("kvwise.bench").joinpath("kv_quality.py")
        sizes = {"prefix": PREFIX_TOKENS, "rest": REST_TOKENS, "block": BLOCK_TOKENS}
        command = [*self._command, "--texts", str(texts)]
        command += [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        # With one thread, figures do not depend on how many cores there are.
        alike = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, *arguments],
                input=script.read_text(encoding="utf-8"),
                capture_output=True,
                text=True,
                timeout=MODEL_S,
                check=False,
                env={**os.environ, **alike},
            )
        except subprocess.TimeoutExpired:
            raise SetupError(f"the model did not answer within {MODEL_S:.0f} s") from None
        if done.returncode:
            raise SetupError(f"the model failed: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(done.stdout)


def _texts(*, quick: bool) -> list[str]:
    """Passages of different kinds, and long records."""
    packed = resources.files("kvwise.bench").joinpath("passages.txt").read_text(encoding="utf-8")
    passages = [passage.strip() for passage in packed.split("=====\n")]
    records = [document(number).text for number in range(RECORDS)]
    return [passages[0], records[0]] if quick else [*passages, *records]


# --- the store -----------------------------------------------------------------------------------


def through_disk(codec: Codec, computed: Path, folder: Path, object_bytes: int) -> float:
    """Put all KV into a disk tier and write down what comes back; payload bytes by stored ones."""
    disk, back = folder / "disk", folder / codec.name
    back.mkdir()
    config = DiskConfig((disk,), capacity_bytes=64 * GIB, min_free_bytes=0)
    raw_bytes = stored_bytes = 0
    tier = DiskTier(config, clock_ns=time.monotonic_ns, codec=codec)
    try:
        for path in sorted(computed.iterdir()):
            payloads = _objects(path.read_bytes(), object_bytes)
            placed = _put(tier, payloads)
            restored = [scratch(object_bytes) for _ in payloads]
            wants = [
                Want(_key(at), _SPACE, object_bytes, one.location, one.stored_bytes, [into])
                for at, (one, into) in enumerate(zip(placed, restored, strict=True))
            ]
            failures = [error for _, error in tier.get(wants) if error is not None]
            if failures:
                raise SetupError(f"the disk gave an object not back: {failures[0]}")
            (back / path.name).write_bytes(b"".join(restored))
            tier.free(placed)
            raw_bytes += object_bytes * len(placed)
            stored_bytes += sum(one.stored_bytes for one in placed)
    finally:
        tier.close()
    return raw_bytes / stored_bytes


def _put(tier: DiskTier, payloads: Sequence[memoryview]) -> list[Placed]:
    """Put objects on the tier.

    Raises:
        SetupError: it had no room, or failed.
    """
    objects = [
        (Record(_key(at), bytes(16), _SPACE, bytes(16), payload.nbytes), [payload])
        for at, payload in enumerate(payloads)
    ]
    placed = []
    for answer in tier.put(objects):
        if not isinstance(answer, Placed):
            raise SetupError(f"the disk did not take an object: {answer}")
        placed.append(answer)
    return placed


def _key(at: int) -> bytes:
    return at.to_bytes(16)


def _objects(data: bytes, object_bytes: int) -> list[memoryview]:
    """The objects of a file, on pages of their own."""
    objects = []
    for start in range(0, len(data), object_bytes):
        one = scratch(object_bytes)
        one[:] = data[start : start + object_bytes]
        objects.append(one)
    return objects


def _zeros(computed: Path, folder: Path) -> None:
    """As much KV of zeros."""
    folder.mkdir()
    for path in computed.iterdir():
        (folder / path.name).write_bytes(bytes(path.stat().st_size))


# --- what came of it -----------------------------------------------------------------------------


def row_of(codec: str, scale: str, ratio: float, judged: Judged, way: str) -> Row:
    """What KV that went this way was worth, beside KV that was computed."""
    computed, restored = judged[""], judged[way]
    pairs = list(zip(computed, restored, strict=True))
    first = [_first_difference(one["generated"], other["generated"]) for one, other in pairs]
    return {
        "codec": codec,
        "scale": scale,
        "ratio": round(ratio, 3),
        "perplexity": round(perplexity(restored), 4),
        "perplexity_ratio": round(perplexity(restored) / perplexity(computed), 5),
        "next_agreement": round(_agreement(pairs, "choices"), 4),
        "agreement": round(_agreement(pairs, "generated"), 4),
        "first_difference": statistics.median(first),
        "unchanged": sum(one["generated"] == other["generated"] for one, other in pairs),
        "texts": len(pairs),
    }


def perplexity(answers: Sequence[Mapping[str, Any]]) -> float:
    """The perplexity over the tokens of all texts."""
    nll = sum(answer["nll"] for answer in answers)
    return math.exp(nll / sum(len(answer["choices"]) for answer in answers))


def _agreement(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], of: str) -> float:
    """The share of tokens that are the same at the same place."""
    same = [a == b for one, other in pairs for a, b in zip(one[of], other[of], strict=True)]
    return float(np.mean(same))


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same from the start on."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((at for at, (a, b) in pairs if a != b), len(one))


def require_controls(judged: Judged) -> list[str]:
    """What the two controls showed, in words.

    Raises:
        SetupError: the store changed KV, or the measure does not see that KV is bad.
    """
    if judged[PLAIN.name] != judged[""]:
        raise SetupError("KV that was stored plain did not do the same as KV never stored")
    worse = perplexity(judged[CONTROL]) / perplexity(judged[""])
    if worse < WORST:
        raise SetupError(f"KV of zeros has {worse:.2f} times the perplexity: nothing is measured")
    return [
        "KV that was stored plain gave the very figures and tokens of KV that was never stored",
        f"KV of zeros, which has to do badly, has {worse:.1f} times the perplexity",
    ]
