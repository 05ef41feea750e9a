"""The disk tier against a dictionary: any sequence of verbs, restarts and damage. Small objects."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvwise.errors import FailureKind
from kvwise.testing.codecs import Deflate
from kvwise.testing.tiers import (
    assert_adds_up,
    content,
    key_of,
    put_many,
    read_back,
    scanned,
    verdicts,
    want,
)
from kvwise.tiers.base import Placed
from kvwise.units import MIB
from tests.tiers.media import Files

SIZES = st.sampled_from([1, 4096, 5000, 40_000])


class DiskMachine(RuleBasedStateMachine):
    """Two directories of small segments; the model is what should be there."""

    objects = Bundle("objects")

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="kvwise-test-"))
        directories = (self.home / "a", self.home / "b")
        self.files = Files(directories, segment_bytes=MIB, codec=Deflate())
        self.tier = self.files.open(64 * MIB)
        self.stored: dict[int, tuple[int, Placed]] = {}
        self.next = 0

    @rule(target=objects, raw_bytes=SIZES, count=st.integers(1, 8))
    def put(self, raw_bytes: int, count: int) -> tuple[int, ...]:
        """Store a batch; the result names its objects."""
        numbers = tuple(range(self.next, self.next + count))
        self.next += count
        placed = put_many(self.tier, numbers, raw_bytes)
        self.stored |= {number: (raw_bytes, placed[number]) for number in numbers}
        return numbers

    @rule(numbers=objects)
    def get(self, numbers: tuple[int, ...]) -> None:
        """Read a batch, or what is left of it."""
        left = [n for n in numbers if n in self.stored]
        wants = [want(n, *self.stored[n]) for n in left]

        assert verdicts(self.tier, wants) == [None] * len(left)
        for number, asked in zip(left, wants, strict=True):
            assert b"".join(asked.buffers) == content(number, self.stored[number][0])

    @rule(numbers=consumes(objects), keep=st.integers(0, 3))
    def free(self, numbers: tuple[int, ...], keep: int) -> None:
        """Give the objects of a batch back, apart from a few."""
        left = [n for n in numbers[keep:] if n in self.stored]
        self.tier.free([self.stored.pop(n)[1] for n in left])

    @rule(numbers=objects, place=st.integers(0, 1_000_000), bit=st.integers(0, 7))
    def damage(self, numbers: tuple[int, ...], place: int, bit: int) -> None:
        """Flip a bit of one object: it is corrupt from then on, and its owner lets it go."""
        number = numbers[place % len(numbers)]
        if number not in self.stored:
            return
        raw_bytes, placed = self.stored.pop(number)
        path, start = self.files.spot(placed)
        offset = place % (4096 + raw_bytes)
        old = path.read_bytes()[start + offset]
        self.files.overwrite(placed, offset, bytes([old ^ 1 << bit]))

        assert read_back(self.tier, number, raw_bytes, placed) is FailureKind.CORRUPT
        self.tier.free([placed])

    @rule()
    def restart(self) -> None:
        """Close, open and scan: exactly the stored objects are found."""
        self.tier.close()
        self.tier = self.files.open(64 * MIB)
        found = {record.key: (record.raw_bytes, placed) for record, placed in scanned(self.tier)}

        assert set(found) == {key_of(number) for number in self.stored}
        self.stored = {number: found[key_of(number)] for number in self.stored}

    @invariant()
    def space_adds_up(self) -> None:
        """The accounting, the answers of put and the files agree."""
        assert self.tier.used_bytes == self.files.used_bytes()
        assert_adds_up(self.tier, [placed for _, placed in self.stored.values()])

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.tier.close()
        shutil.rmtree(self.home)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
