"""Owns what `kvwise bench codec` encodes: real KV of several kinds, noise and constants.

It measures and encodes nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvwise.bench.documents import document
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.codecs.elements import Kind

DUMP_S = 900.0
TOKENS, TOKENS_LONG = 512, 4096
"""A prompt of usual length, and a long one."""

SEED = 7
CHANNELS = 64
"""Of a head, in numbers made up."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one kind of element, under a name."""

    name: str
    kind: Kind
    data: Bytes


def _noise(whole_bytes: int, _: Progress) -> Iterator[Part]:
    """Bytes that nobody can shrink."""
    data = np.random.default_rng(SEED).integers(0, 256, whole_bytes, np.uint8)
    yield Part("noise", Kind.BF16, data)


def _synthetic(whole_bytes: int, _: Progress) -> Iterator[Part]:
    """Numbers in BF16 as KV has them: each channel around a mean, with a width of its own."""
    draw = np.random.default_rng(SEED)
    shape = (whole_bytes // 2 // CHANNELS, CHANNELS)
    mean, width = draw.normal(0.0, 1.0, CHANNELS), draw.lognormal(0.0, 0.5, CHANNELS)
    numbers = (mean + width * draw.standard_normal(shape, np.float32)).astype(np.float32)
    halves = (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    yield Part("synthetic", Kind.BF16, halves.view(np.uint8).ravel())


def _constant(whole_bytes: int, _: Progress) -> Iterator[Part]:
    """One number again and again."""
    yield Part("constant", Kind.BF16, np.full(whole_bytes // 2, 0x3FC0, np.uint16).view(np.uint8))


def _real(whole_bytes: int, progress: Progress) -> Iterator[Part]:
    """K and V of SmolLM2 in BF16: of prose, of code, and of a long text."""
    code = resources.files("kvwise.core").joinpath("brain.py").read_text(encoding="utf-8")
    texts = {"prose": document(0).text, "code": code}
    yield from _kept(texts, TOKENS, [Kind.BF16], whole_bytes, progress)
    long = {"long": "\n\n".join(document(number).text for number in range(1, 5))}
    yield from _kept(long, TOKENS_LONG, [Kind.BF16], whole_bytes, progress)


def _kinds(whole_bytes: int, progress: Progress) -> Iterator[Part]:
    """K and V of the same prose in all other kinds."""
    kinds = [kind for kind in Kind if kind is not Kind.BF16]
    yield from _kept({"prose": document(0).text}, TOKENS, kinds, whole_bytes, progress)


DATA: Final[dict[str, Callable[[int, Progress], Iterator[Part]]]] = {
    "kv": _real,
    "kinds": _kinds,
    "synthetic": _synthetic,
    "noise": _noise,
    "constant": _constant,
}
"""What can be encoded; each gives parts of so many bytes."""


def _kept(
    texts: dict[str, str],
    tokens: int,
    kinds: Sequence[Kind],
    whole_bytes: int,
    progress: Progress,
) -> Iterator[Part]:
    """What a real model keeps of texts, again and again up to the size that is wanted."""
    python = ensure_engine(progress)
    model = ensure_smollm2(python, progress)
    progress.now(f"a real model reads {tokens} tokens")
    with tempfile.TemporaryDirectory(prefix="kvwise-bench-") as place:
        folder = Path(place)
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
        options = ["--model", str(model), "--tokens", str(tokens), "--out", str(folder)]
        options += ["--kinds", *(kind.value for kind in kinds), "--"]
        _dump(python, options + [str(folder / f"{name}.txt") for name in texts])
        for name in texts:
            for kind in kinds:
                for part in "kv":
                    once = np.fromfile(folder / f"{name}.{part}.{kind.value}.bin", np.uint8)
                    shown = name if kind is Kind.BF16 else kind.value
                    yield Part(f"{part}.{shown}", kind, np.resize(once, whole_bytes))


def _dump(python: Path, options: Sequence[str]) -> None:
    """Have the engine's Python write KV down."""
    with resources.as_file(resources.files("kvwise.bench").joinpath("kv_dump.py")) as script:
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        try:
            done = subprocess.run(
                [str(python), str(script), *options],
                capture_output=True,
                text=True,
                timeout=DUMP_S,
                check=False,
                env=quiet,
            )
        except subprocess.TimeoutExpired:
            raise SetupError(f"the model did not read within {DUMP_S:.0f} s") from None
    if done.returncode:
        raise SetupError(f"the model failed: {done.stderr.strip().splitlines()[-1:]}")
