"""Hostile bytes in the ordinary run: every input that is kept, and some thousands made from them.

`python -m tests.fuzz` goes on for as long as it is told. No parser is described here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kvwise.errors import FrameError
from tests.fuzz import drive, parsers
from tests.fuzz.mutate import BYTES_MAX, Mutator, Shape, join, split
from tests.fuzz.parsers import CORPUS, PARSERS, Parser

ROOT = Path(__file__).resolve().parent.parent.parent
INPUTS = (2_000, pytest.param(20_000, marks=pytest.mark.slow))
CORPUS_BYTES_MAX = 300 * 1024
NAMES = sorted(PARSERS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_bytes_decode_or_are_refused(name: str, inputs: int) -> None:
    """The corpus and what is made of it lead to the documented error at most, and end in time.

    The process may not take more than a bounded amount of memory beyond what it starts with.
    """
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--inputs", str(inputs), "--seed", "20"],
        cwd=ROOT,
        env=dict(os.environ) | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {inputs} inputs" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_good_bytes_are_accepted(name: str) -> None:
    """The first seed is what the other side really writes; refused, nothing would be tried."""
    parser = PARSERS[name]
    with ExitStack() as stack:
        attempt = parser.open(stack)
        for _ in range(2):
            attempt(parser.seeds()[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_mutator_goes_deep(name: str) -> None:
    """Of what the mutator makes a part is accepted and most is new, so both sides are tried."""
    parser = PARSERS[name]
    mutator = parser.mutator(5)
    inputs = [mutator.next() for _ in range(300)]
    summary = drive.drive(parser, inputs)

    assert len(set(inputs)) > 200
    assert summary.inputs == 300
    assert summary.accepted > 0
    assert summary.accepted < 300 or not parser.errors


def test_the_corpus_is_small() -> None:
    """Kept inputs are files of less than 4 KiB, each of a parser that exists."""
    files = [path for path in CORPUS.rglob("*") if path.is_file()]

    assert {path.parent.name for path in files} <= set(PARSERS)
    assert all(path.stat().st_size < 4096 for path in files)
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES_MAX


def broken(error: BaseException) -> Parser:
    """A parser that fails on some inputs."""

    def attempt(data: bytes) -> None:
        if b"\xff" in data:
            raise error
        raise FrameError("no")

    def opened(stack: ExitStack) -> Callable[[bytes], None]:
        del stack
        return attempt

    return replace(PARSERS["frame"], open=opened, seeds=lambda: [b"abc"])


@pytest.mark.parametrize(
    "error", [KeyError("k"), MemoryError(), RecursionError(), AssertionError()], ids=repr
)
def test_any_other_error_is_a_finding(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a parser that raises something else is found, and its input is kept."""
    monkeypatch.setattr(drive, "CORPUS", tmp_path)
    parser = broken(error)
    inputs = [b"a", b"b\xff", b"c"]

    with pytest.raises(drive.Finding, match=type(error).__name__):
        drive.drive(parser, inputs)

    (kept,) = (tmp_path / "frame").iterdir()
    assert kept.read_bytes() == b"b\xff"


def test_an_input_without_end_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a parser that does not come back is interrupted."""

    def opened(stack: ExitStack) -> Callable[[bytes], None]:
        del stack

        def attempt(data: bytes) -> None:
            while data:
                pass

        return attempt

    monkeypatch.setattr(drive, "CORPUS", tmp_path)
    monkeypatch.setattr(drive, "INPUT_S", 0.05)
    with pytest.raises(drive.Finding, match="Endless"):
        drive.drive(replace(PARSERS["frame"], open=opened), [b"x"])


@pytest.mark.parametrize("shape", Shape)
def test_a_seed_gives_the_same_inputs(shape: Shape) -> None:
    """What was found can be found again; no input is too long for the corpus."""
    corpus = [join([b"\x82\xa1a\x01\xa1b\x93\x01\x02\x03", b"\xc0"]), b"a = 1\nb = 2", b""]
    first, second, other = (Mutator(corpus, shape, seed) for seed in (1, 1, 2))
    inputs = [first.next() for _ in range(500)]

    assert inputs == [second.next() for _ in range(500)]
    assert inputs != [other.next() for _ in range(500)]
    assert max(map(len, inputs)) <= BYTES_MAX


def test_records_are_split_where_they_were_joined() -> None:
    """What is no whole record is left out."""
    records = [b"", b"a", b"bc" * 300]

    assert split(join(records) + b"\xff\xff\xff\xff?") == records
    assert parsers.PARSERS["request"].shape is Shape.RECORDS
