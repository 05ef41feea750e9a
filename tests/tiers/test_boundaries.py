"""The disk tier cut off at every change it makes to its files, and in the middle of each write.

A killed process leaves a prefix of the changes: everything acknowledged must be there. Power loss
leaves any part of the last changes, and damage leaves anything: then objects may be missing. Never
is one wrong.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvwise.codecs import frame
from kvwise.errors import FailureKind
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    blank,
    content,
    filled,
    key_of,
    put_one,
    read_back,
    record,
    scanned,
    verdicts,
)
from kvwise.tiers.base import Placed, Record, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskTier
from kvwise.units import MIB
from tests.tiers.media import Files
from tests.tiers.recorder import BLOCK, Change, Image, Recorder, cuts, images, power_cut

SIZES = (3000, 16_000, 40_000)
"""Frames of 2, 5 and 11 blocks."""

LATER = 100_000
"""Numbers from here on are given to objects that are written after a cut."""


@dataclass
class Life:
    """What one process did: changes to files, and what was promised when.

    Attributes:
        start: the files it began with.
        recorder: its changes and notes ("put" or "free", number).
        found: numbers that it found at its start.
    """

    start: Image
    recorder: Recorder
    found: set[int] = field(default_factory=set)

    def promised(self, changes: int) -> set[int]:
        """Objects that must be there after so many changes."""
        held = set(self.found)
        for made, (verb, number) in self.recorder.notes:
            if verb == "free" and made <= changes:
                held.discard(number)
            elif verb == "put" and made <= changes:
                held.add(number)
        return held


@dataclass
class Tally:
    """What was tried, and what came of it."""

    cuts: int = 0
    loads: Counter[str] = field(default_factory=Counter)


def size_of(number: int) -> int:
    """Payload bytes of an object."""
    return SIZES[number % len(SIZES)]


def files_in(home: Path) -> Files:
    """A tier of two small directories; buffered, since thousands of them are opened."""
    return Files((home / "a", home / "b"), io=Io.BUFFERED, segment_bytes=MIB)


def run(
    home: Path, start: Image, monkeypatch: pytest.MonkeyPatch, work: Callable[[Worker], None]
) -> Life:
    """Let a process work on these files, with its changes recorded."""
    start.dump(home)
    life = Life(start.copy(), Recorder(home))
    with life.recorder.watching(monkeypatch):
        tier = files_in(home).open(CAPACITY_BYTES)
        worker = Worker(tier, life)
        worker.find()
        work(worker)
        tier.close()
    return life


class Worker:
    """Puts and frees objects, and notes what it was promised."""

    def __init__(self, tier: DiskTier, life: Life) -> None:
        self.tier = tier
        self.life = life
        self.held: dict[int, Placed] = {}

    def find(self) -> None:
        """Take over what an earlier life left."""
        numbers = {key_of(number): number for number in range(2000)}
        self.held = {numbers[seen.key]: spot for seen, spot in scanned(self.tier)}
        self.life.found = set(self.held)

    def put(self, numbers: range) -> None:
        """Store objects in one call."""
        objects = [(record(n, size_of(n)), filled(n, size_of(n))) for n in numbers]
        for number, answer in zip(numbers, self.tier.put(objects), strict=True):
            assert isinstance(answer, Placed)
            self.held[number] = answer
            self.life.recorder.note(("put", number))

    def free(self, numbers: list[int]) -> None:
        """Give objects back in one call."""
        for number in numbers:
            self.life.recorder.note(("free", number))
        self.tier.free([self.held.pop(number) for number in numbers])


def first_life(worker: Worker) -> None:
    """Fill some segments, free some objects, one segment as a whole."""
    for first in range(0, 160, 8):
        worker.put(range(first, first + 8))
        if first % 3 == 2:
            worker.free([n for n in sorted(worker.held) if n % 7 == first % 7][:5])
    worker.free([n for n in sorted(worker.held) if n < 60])


def second_life(worker: Worker) -> None:
    """Free old objects and store more."""
    worker.free([n for n in sorted(worker.held) if n % 5 == 0])
    for first in range(1000, 1060, 6):
        worker.put(range(first, first + 6))
        worker.free(sorted(worker.held)[:3])


def check(image: Image, home: Path, promised: set[int], tally: Tally) -> None:
    """Start on these files: all that was promised is found, nothing is wrong, work goes on."""
    image.dump(home)
    files = files_in(home)
    tier = files.open(CAPACITY_BYTES)
    found = scanned(tier)
    whole = load(tier, found, tally)
    assert promised <= whole, f"lost after {tally.cuts} cuts"
    assert tier.used_bytes == files.used_bytes()
    fresh = {n: put_one(tier, n, size_of(n)) for n in range(LATER, LATER + 3)}
    tier.free([spot for _, spot in found[::2]])
    assert tier.used_bytes == files.used_bytes()
    for number, spot in fresh.items():
        assert read_back(tier, number, size_of(number), spot) == content(number, size_of(number))
    tier.close()
    tier = files.open(CAPACITY_BYTES)
    kept = {seen.key for seen, _ in scanned(tier)}
    assert kept >= {key_of(n) for n in fresh}
    assert kept >= {seen.key for seen, _ in found[1::2]} & {key_of(n) for n in whole}
    assert tier.used_bytes == files.used_bytes()
    tier.close()
    shutil.rmtree(home)
    tally.cuts += 1


def load(tier: DiskTier, found: list[tuple[Record, Placed]], tally: Tally) -> set[int]:
    """Load all that was found; numbers of those that came, with their own bytes."""
    numbers = {key_of(n): n for n in (*range(200), *range(1000, 1100))}
    wants = [
        Want(r.key, r.space, r.raw_bytes, p.location, p.stored_bytes, blank(r.raw_bytes))
        for r, p in found
    ]
    whole = set()
    for want, answer in zip(wants, verdicts(tier, wants), strict=True):
        if answer is None:
            number = numbers[want.key]
            assert want.raw_bytes == size_of(number)
            assert b"".join(want.buffers) == payload(number)
            whole.add(number)
        else:
            assert answer in {FailureKind.CORRUPT, FailureKind.MISSING}
        tally.loads[answer.value if answer else "whole"] += 1
    return whole


def payload(number: int) -> bytes:
    """What an object is, computed once."""
    if number not in PAYLOADS:
        PAYLOADS[number] = content(number, size_of(number))
    return PAYLOADS[number]


PAYLOADS: dict[int, bytes] = {}


def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Life]:
    """Three lives: the first closes in order, the third follows one that was killed in a write."""
    first = run(tmp_path / "1", Image(), monkeypatch, first_life)
    *_, (_, closed) = images(first.start, first.recorder.changes)
    second = run(tmp_path / "2", closed, monkeypatch, second_life)
    changes = second.recorder.changes
    last = max(n for n, change in enumerate(changes[:-4]) if len(change.data) > 50_000)
    killed = dict(images(second.start, [*changes[:last], changes[last].cut(41_000)]))[last + 1]
    third = run(tmp_path / "3", killed, monkeypatch, second_life)
    return [first, second, third]


def cut_everywhere(lives: list[Life], home: Path, share: float) -> Tally:
    """Check the files after every change, and after parts of every write."""
    rng, tally = random.Random(1), Tally()
    for life in lives:
        changes = life.recorder.changes
        for made, image in images(life.start, changes):
            check(image, home, life.promised(made), tally)
            if made == len(changes) or changes[made].verb != "write":
                continue
            for keep_bytes in cuts(changes[made], rng, share):
                torn = image.copy()
                torn.apply(changes[made].cut(keep_bytes))
                check(torn, home, life.promised(made), tally)
    print(tally)
    return tally


@pytest.mark.pain("D4", "D11")
@pytest.mark.timeout(300)
def test_killed_at_every_boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every change and inside every write, a kill loses nothing that was acknowledged.

    Elsewhere: after a restart files were there and no object was
    found, or the accounting began at nothing.
    """
    tally = cut_everywhere(lives(tmp_path, monkeypatch), tmp_path / "cut", 0.15)

    assert tally.cuts > 400
    assert set(tally.loads) == {"whole"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_after_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same after every single block of every write."""
    tally = cut_everywhere(lives(tmp_path, monkeypatch), tmp_path / "cut", 1.0)

    assert tally.cuts > 1800
    assert set(tally.loads) == {"whole"}


@pytest.mark.pain("W2", "W13", "D8")
@pytest.mark.parametrize("seed", range(6))
def test_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """When the last changes reach the medium in part, objects are missing and none is wrong."""
    rng, tally, home = random.Random(seed), Tally(), tmp_path / "cut"
    for life in lives(tmp_path, monkeypatch):
        changes = life.recorder.changes
        for _ in range(20):
            made = rng.randrange(1, len(changes) + 1)
            image = life.start.copy()
            for change in power_cut(changes[:made], rng.choice((1, 4, 20, made)), rng):
                image.apply(change)
            check(image, home, set(), tally)

    print(tally)
    assert tally.cuts == 60
    assert {"whole", "corrupt"} <= set(tally.loads)


def damage(image: Image, rng: random.Random) -> None:
    """Do one random thing to one random file, somewhere; its end, with the footer, is as likely."""
    name = rng.choice(sorted(image.files))
    file, size_bytes = image.files[name], image.files[name].size_bytes
    blocks = max(1, size_bytes // BLOCK)
    block = rng.choice([blocks - 1, rng.randrange(blocks)])
    count = min(rng.choice((1, 1, 3, 20)), blocks - block)
    offset, old = block * BLOCK, file.written.get(block, bytes(BLOCK))
    match rng.choice(["flip", "zero", "noise", "hole", "cut", "grow", "move", "other", "empty"]):
        case "flip":
            place = rng.randrange(BLOCK)
            data = old[:place] + bytes([old[place] ^ 1 << rng.randrange(8)]) + old[place + 1 :]
            image.apply(Change("write", name, offset, data))
        case "zero":
            image.apply(Change("write", name, offset, bytes(count * BLOCK)))
        case "noise":
            image.apply(Change("write", name, offset, rng.randbytes(count * BLOCK)))
        case "hole":
            image.apply(Change("punch", name, offset, size_bytes=count * BLOCK))
        case "cut":
            image.apply(Change("truncate", name, size_bytes=rng.randrange(size_bytes + 1)))
        case "grow":
            more = rng.randrange(1, 3 * BLOCK)
            image.apply(Change("truncate", name, size_bytes=size_bytes + more))
        case "move":
            image.apply(Change("write", name, rng.randrange(blocks) * BLOCK, old))
        case "other":
            image.files[name] = image.copy().files[rng.choice(sorted(image.files))]
        case _:
            image.apply(Change("truncate", name))


def test_wrong_bytes_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With checksums that hold for anything, damage reaches a load and the check complains."""
    monkeypatch.setattr(frame, "checksum", lambda _: 0)
    life = run(tmp_path / "1", Image(), monkeypatch, first_life)
    *_, (_, closed) = images(life.start, life.recorder.changes)
    file = next(iter(closed.files.values()))
    spot = next(n for n, data in file.written.items() if not data.startswith(frame.MAGIC))
    file.written[spot] = b"damage" + file.written[spot][6:]
    with pytest.raises(AssertionError):
        check(closed, tmp_path / "damaged", set(), Tally())


def test_a_lost_object_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last write before a note never reached the files, the check complains."""
    life = run(tmp_path / "1", Image(), monkeypatch, first_life)
    made = life.recorder.notes[20][0]
    *_, (_, image) = images(life.start, life.recorder.changes[: made - 1])
    with pytest.raises(AssertionError, match="lost"):
        check(image, tmp_path / "cut", life.promised(made), Tally())


@pytest.mark.parametrize("seed", range(8))
def test_random_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever happened to segments and footers between two lives, no object is wrong."""
    rng, tally, home = random.Random(seed), Tally(), tmp_path / "damaged"
    life = run(tmp_path / "1", Image(), monkeypatch, first_life)
    *_, (_, closed) = images(life.start, life.recorder.changes)
    for _ in range(30):
        image = closed.copy()
        for _ in range(rng.choice((1, 2, 8, 40))):
            damage(image, rng)
        check(image, home, set(), tally)

    print(tally)
    assert tally.cuts == 30
    assert {"whole", "corrupt"} <= set(tally.loads)
