"""The conformance suites of tiers. They trust only the medium, never the tier's own accounts.

Use: a test class inherits `VerifyingTierSuite` (or `TierSuite`, for a place without checksums) and
gives `medium()`: how to open the tier, and how to look at and damage what it wrote without it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kvwise.codecs import frame
from kvwise.codecs.base import scratch
from kvwise.codecs.frame import HEADER_BYTES
from kvwise.errors import FailureKind, TierError
from kvwise.testing.codecs import scatter
from kvwise.testing.memory import header_of
from kvwise.tiers.base import FOUND_MAX, Buffers, Found, Placed, Record, Tier, Want
from kvwise.tiers.wrap import Faulty
from kvwise.units import MIB

SPACE = b"namespace digest"
LAYOUT = b"layout of a test"
CAPACITY_BYTES = 32 * MIB
FINDING = 64
"""What a tier keeps to find its objects again is at most one part in so many of what it holds."""

SIZES = (1, 4095, 4096, 4097, 128 * 1024, 720 * 1024, 1024 * 1024 + 5)


# --- objects to store ----------------------------------------------------------------------------


def record(number: int, raw_bytes: int) -> Record:
    """The identity of object `number`; its parent is the object before it."""
    return Record(key_of(number), key_of(number - 1), SPACE, LAYOUT, raw_bytes)


def key_of(number: int) -> bytes:
    """A key that is unlike any other."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def content(number: int, raw_bytes: int) -> bytes:
    """The payload of object `number`: incompressible, and different in every block."""
    return hashlib.shake_128(str(number).encode()).digest(raw_bytes)


def filled(number: int, raw_bytes: int) -> Buffers:
    """The payload in memory as the arena would hand it over: aligned, in more than one piece."""
    data, buffers = content(number, raw_bytes), blank(raw_bytes)
    scatter(data, buffers)
    return buffers


def blank(raw_bytes: int) -> Buffers:
    """Zeroed memory for a payload, cut at a page of 128 KiB when it is larger."""
    whole = scratch(raw_bytes)
    return [piece for piece in (whole[: 128 * 1024], whole[128 * 1024 :]) if piece.nbytes]


def want(number: int, raw_bytes: int, placed: Placed) -> Want:
    """How object `number` is asked for."""
    key, into = key_of(number), blank(raw_bytes)
    return Want(key, SPACE, raw_bytes, placed.location, placed.stored_bytes, into)


def put_one(tier: Tier, number: int, raw_bytes: int) -> Placed:
    """Store object `number`; it must be accepted."""
    (answer,) = tier.put([(record(number, raw_bytes), filled(number, raw_bytes))])
    assert isinstance(answer, Placed), answer
    return answer


def put_many(tier: Tier, numbers: Sequence[int], raw_bytes: int) -> dict[int, Placed]:
    """Store several objects in one call; all must be accepted."""
    objects = [(record(n, raw_bytes), filled(n, raw_bytes)) for n in numbers]
    answers = tier.put(objects)
    placed = [answer for answer in answers if isinstance(answer, Placed)]
    assert len(placed) == len(answers), answers
    return dict(zip(numbers, placed, strict=True))


def verdicts(tier: Tier, wants: Sequence[Want]) -> list[FailureKind | None]:
    """The kind of failure of each want, None for success; each must be answered once."""
    found = dict(tier.get(wants))
    assert sorted(found) == list(range(len(wants)))
    return [None if (e := found[i]) is None else e.kind for i in range(len(wants))]


def read_back(tier: Tier, number: int, raw_bytes: int, placed: Placed) -> bytes | FailureKind:
    """The bytes of object `number`, or how reading failed."""
    asked = want(number, raw_bytes, placed)
    (verdict,) = verdicts(tier, [asked])
    return b"".join(asked.buffers) if verdict is None else verdict


def scanned(tier: Tier) -> list[tuple[Record, Placed]]:
    """What a scan finds, record by record."""
    return [pair for found in tier.scan() for pair in _pairs(found)]


def _pairs(found: Found) -> Iterator[tuple[Record, Placed]]:
    """The records of one batch, which must be one."""
    count = len(found.locations) // 8
    assert 0 < count <= FOUND_MAX
    columns = (found.keys, found.parents, found.locations, found.stored_bytes)
    assert [len(column) for column in columns] == [16 * count, 16 * count, 8 * count, 4 * count]
    locations, sizes = (
        memoryview(found.locations).cast("Q"),
        memoryview(found.stored_bytes).cast("I"),
    )
    for place in range(count):
        key, parent = (column[16 * place : 16 * place + 16] for column in columns[:2])
        record = Record(key, parent, found.space, found.layout, found.raw_bytes)
        yield record, Placed(locations[place], sizes[place])


def assert_adds_up(tier: Tier, placed: Iterable[Placed]) -> None:
    """The accounting is these objects, and at most a small share to find them again."""
    stored_bytes = sum(one.stored_bytes for one in placed)
    assert stored_bytes <= tier.used_bytes <= stored_bytes + stored_bytes // FINDING


# --- the suites ----------------------------------------------------------------------------------


class Medium(Protocol):
    """A tier's medium seen from outside. No method but `open` may use the tier's own code."""

    def open(self, capacity_bytes: int) -> Tier:
        """Open the tier; what an earlier one left on the medium is still there."""
        ...

    def used_bytes(self) -> int:
        """Bytes that stored objects take on the medium, and what the tier keeps to find them."""
        ...

    def overwrite(self, placed: Placed, offset: int, data: bytes) -> None:
        """Change bytes of a stored object; offset 0 is the first byte of its frame."""
        ...

    def cut(self, placed: Placed, keep_bytes: int) -> None:
        """Lose the bytes of a stored object, and of all behind it, beyond the first few."""
        ...


class TierSuite:
    """What every tier must do. Inherit it in a class whose name starts with Test."""

    def medium(self, home: Path) -> Medium:
        """A fresh, empty medium; `home` is an empty directory."""
        raise NotImplementedError

    def test_round_trip(self, tmp_path: Path) -> None:
        """Objects of every size come back as they were, also when no multiple of a block."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        for number, raw_bytes in enumerate(SIZES):
            placed = put_one(tier, number, raw_bytes)

            assert read_back(tier, number, raw_bytes, placed) == content(number, raw_bytes)
        tier.close()

    def test_batch_in_any_order(self, tmp_path: Path) -> None:
        """A batch is answered one by one, and may be read in another order and in part."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_many(tier, range(40), 70_000)
        wants = [want(n, 70_000, placed[n]) for n in (39, 38, 0, 1, 2, 20, 22, 21)]

        assert verdicts(tier, wants) == [None] * 8
        assert [b"".join(w.buffers) for w in wants] == [
            content(n, 70_000) for n in (39, 38, 0, 1, 2, 20, 22, 21)
        ]
        tier.close()

    def test_mixed_sizes_in_one_batch(self, tmp_path: Path) -> None:
        """Objects of different sizes lie side by side without touching each other."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        answers = tier.put([(record(n, s), filled(n, s)) for n, s in enumerate(SIZES)])
        placed = [answer for answer in answers if isinstance(answer, Placed)]
        wants = [want(n, s, placed[n]) for n, s in enumerate(SIZES)]

        assert verdicts(tier, wants) == [None] * len(SIZES)
        assert [b"".join(w.buffers) for w in wants] == [content(n, s) for n, s in enumerate(SIZES)]
        tier.close()

    def test_nothing_asked_nothing_done(self, tmp_path: Path) -> None:
        """Empty batches are fine."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)

        assert tier.put([]) == []
        assert list(tier.get([])) == []
        tier.free([])
        tier.close()

    def test_putting_leaves_the_payload_alone(self, tmp_path: Path) -> None:
        """The buffers of a put are only read: the same pages may be on their way to a device."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        buffers = filled(1, 100_001)
        tier.put([(record(1, 100_001), buffers)])

        assert b"".join(buffers) == content(1, 100_001)
        tier.close()

    def test_accounting_is_what_the_medium_says(self, tmp_path: Path) -> None:
        """`used_bytes` is what lies on the medium: what puts reported, and little to find it."""
        medium = self.medium(tmp_path)
        tier = medium.open(CAPACITY_BYTES)
        placed = put_many(tier, range(10), 200_000)

        assert medium.used_bytes() == tier.used_bytes
        assert_adds_up(tier, placed.values())
        tier.close()

    def test_free_gives_space_back(self, tmp_path: Path) -> None:
        """Freed bytes leave the accounting and the medium; the neighbours stay whole."""
        medium = self.medium(tmp_path)
        tier = medium.open(CAPACITY_BYTES)
        placed = put_many(tier, range(10), 200_000)
        tier.free([placed[n] for n in (2, 3, 7)])
        left = [n for n in range(10) if n not in {2, 3, 7}]

        assert medium.used_bytes() == tier.used_bytes
        assert_adds_up(tier, [placed[n] for n in left])
        assert verdicts(tier, [want(n, 200_000, placed[n]) for n in left]) == [None] * 7
        tier.free([placed[n] for n in left])
        assert tier.used_bytes == 0
        assert medium.used_bytes() == 0
        tier.close()

    def test_cap_holds_at_every_step(self, tmp_path: Path) -> None:
        """A long fill never exceeds the cap, says FULL, and goes on where space was freed."""
        medium, capacity_bytes, raw_bytes = self.medium(tmp_path), 4 * MIB, 300_000
        tier = medium.open(capacity_bytes)
        placed: dict[int, Placed] = {}
        refused = 0
        for number in range(60):
            (answer,) = tier.put([(record(number, raw_bytes), filled(number, raw_bytes))])
            if isinstance(answer, Placed):
                placed[number] = answer
            else:
                refused += 1
                assert answer.kind is FailureKind.FULL
                oldest = next(iter(placed))
                tier.free([placed.pop(oldest)])
            assert max(tier.used_bytes, medium.used_bytes()) <= capacity_bytes
            assert tier.used_bytes + tier.free_bytes <= capacity_bytes
        assert refused
        assert verdicts(tier, [want(n, raw_bytes, p) for n, p in placed.items()]) == [None] * len(
            placed
        )
        tier.close()

    def test_batch_over_the_cap_is_answered_in_part(self, tmp_path: Path) -> None:
        """What fits of a batch is stored; what does not is FULL and leaves nothing behind."""
        medium = self.medium(tmp_path)
        tier = medium.open(MIB)
        answers = tier.put([(record(n, 200_000), filled(n, 200_000)) for n in range(12)])
        placed = [answer for answer in answers if isinstance(answer, Placed)]
        errors = [answer for answer in answers if not isinstance(answer, Placed)]

        assert placed
        assert {error.kind for error in errors} == {FailureKind.FULL}
        assert medium.used_bytes() == tier.used_bytes
        assert_adds_up(tier, placed)
        tier.close()

    def test_freed_object_is_missing(self, tmp_path: Path) -> None:
        """An object that was freed is not found, and is no I/O fault."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_many(tier, range(3), 50_000)
        tier.free([placed[1]])

        assert read_back(tier, 1, 50_000, placed[1]) is FailureKind.MISSING
        tier.close()

    def test_stopping_early_is_allowed(self, tmp_path: Path) -> None:
        """A caller may close the iterator of `get` before the end, and the tier goes on."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_many(tier, range(30), 300_000)
        reading = tier.get([want(n, 300_000, p) for n, p in placed.items()])
        next(iter(reading))
        if hasattr(reading, "close"):
            reading.close()

        assert read_back(tier, 29, 300_000, placed[29]) == content(29, 300_000)
        tier.close()

    def test_holes_in_batches(self, tmp_path: Path) -> None:
        """Around injected faults, the rest of each batch is stored and read as if alone."""
        inner = self.medium(tmp_path).open(CAPACITY_BYTES)
        half = {FailureKind.IO: 0.5}
        tier = Faulty(inner, seed=7, puts=half, gets=half)
        answers = tier.put([(record(n, 80_000), filled(n, 80_000)) for n in range(40)])
        placed = {n: a for n, a in enumerate(answers) if isinstance(a, Placed)}
        wants = [want(n, 80_000, spot) for n, spot in placed.items()]
        found = verdicts(tier, wants)
        whole = [w for w, kind in zip(wants, found, strict=True) if kind is None]

        assert set(found) == {None, FailureKind.IO}
        assert_adds_up(inner, placed.values())
        assert {w.key: b"".join(w.buffers) for w in whole} == {
            key_of(n): content(n, 80_000) for n in placed if key_of(n) in {w.key for w in whole}
        }
        inner.close()

    def test_many_threads(self, tmp_path: Path) -> None:
        """Threads that put, get and free at the same time get their own bytes back."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        wrong: list[object] = []

        def work(lane: int) -> None:
            for turn in range(8):
                numbers = [lane * 1000 + turn * 10 + k for k in range(5)]
                placed = put_many(tier, numbers, 90_000)
                found = {n: read_back(tier, n, 90_000, placed[n]) for n in numbers}
                wrong.extend(n for n in numbers if found[n] != content(n, 90_000))
                tier.free([placed[n] for n in numbers[1:]])

        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert wrong == []
        assert not any(thread.is_alive() for thread in threads)
        tier.close()

    def test_close_twice_then_nothing(self, tmp_path: Path) -> None:
        """Closing again does nothing; calls after it are answered CLOSED."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_one(tier, 1, 5000)
        tier.close()
        tier.close()
        (answer,) = tier.put([(record(2, 5000), filled(2, 5000))])

        assert isinstance(answer, TierError)
        assert answer.kind is FailureKind.CLOSED
        assert read_back(tier, 1, 5000, placed) is FailureKind.CLOSED


class VerifyingTierSuite(TierSuite):
    """What every tier below the arena must do: survive restarts, and never give wrong bytes."""

    def test_wrong_key_is_corrupt(self, tmp_path: Path) -> None:
        """A location that holds another object than expected is never a hit."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_many(tier, range(2), 50_000)

        assert read_back(tier, 0, 50_000, placed[1]) is FailureKind.CORRUPT
        tier.close()

    def test_wrong_namespace_is_corrupt(self, tmp_path: Path) -> None:
        """The same key in another namespace is another object."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_one(tier, 1, 50_000)
        right = want(1, 50_000, placed)
        other = Want(right.key, LAYOUT, 50_000, *_spot(placed), right.buffers)

        assert verdicts(tier, [other]) == [FailureKind.CORRUPT]
        tier.close()

    def test_wrong_length_is_never_a_hit(self, tmp_path: Path) -> None:
        """Asking for more or fewer bytes than were stored fails, block for block."""
        tier = self.medium(tmp_path).open(CAPACITY_BYTES)
        placed = put_one(tier, 1, 50_000)
        for raw_bytes in (49_999, 50_001, 4096, 90_000):
            found = read_back(tier, 1, raw_bytes, placed)

            assert found in {FailureKind.CORRUPT, FailureKind.MISSING}
        tier.close()

    def test_any_damaged_byte_is_corrupt(self, tmp_path: Path) -> None:
        """One changed byte anywhere in header or payload is noticed, and harms no neighbour."""
        medium, raw_bytes = self.medium(tmp_path), 150_001
        tier = medium.open(CAPACITY_BYTES)
        spots = [0, 9, 17, 100, 2000, HEADER_BYTES - 1]
        spots += [HEADER_BYTES + k for k in (0, 75_000, 147_456, raw_bytes - 1)]
        placed = put_many(tier, range(2 * len(spots)), raw_bytes)
        for turn, offset in enumerate(spots):
            before = _stored_byte(turn * 2, raw_bytes, offset)
            medium.overwrite(placed[turn * 2], offset, bytes([before ^ 0x40]))
        found = verdicts(tier, [want(n, raw_bytes, p) for n, p in placed.items()])

        assert found == [FailureKind.CORRUPT, None] * len(spots)
        tier.close()

    def test_lost_bytes_are_corrupt_or_missing(self, tmp_path: Path) -> None:
        """An object whose end is gone is CORRUPT or MISSING, wherever it was cut."""
        for turn, keep_bytes in enumerate((0, 1, 4095, 4096, 5000, 60_000, 100_000)):
            medium = self.medium(tmp_path / str(turn))
            tier = medium.open(CAPACITY_BYTES)
            placed = put_many(tier, range(2), 100_000)
            medium.cut(placed[1], keep_bytes)

            assert read_back(tier, 0, 100_000, placed[0]) == content(0, 100_000)
            found = read_back(tier, 1, 100_000, placed[1])
            assert found in {FailureKind.CORRUPT, FailureKind.MISSING}
            tier.close()

    def test_scan_finds_what_was_left(self, tmp_path: Path) -> None:
        """After a restart exactly the objects that were not freed are there, with their bytes."""
        medium = self.medium(tmp_path)
        tier = medium.open(CAPACITY_BYTES)
        placed = put_many(tier, range(12), 99_999)
        tier.free([placed[n] for n in (0, 5, 6, 11)])
        tier.close()
        again = medium.open(CAPACITY_BYTES)
        found = {seen.key: (seen, spot) for seen, spot in scanned(again)}
        left = [n for n in range(12) if n not in {0, 5, 6, 11}]

        assert set(found) == {key_of(n) for n in left}
        for number in left:
            seen, spot = found[key_of(number)]
            assert seen == record(number, 99_999)
            assert read_back(again, number, 99_999, spot) == content(number, 99_999)
        assert again.used_bytes == medium.used_bytes()
        assert_adds_up(again, [placed[n] for n in left])
        again.close()

    def test_restart_goes_on(self, tmp_path: Path) -> None:
        """A reopened tier stores, frees old and new objects, and survives another restart."""
        medium = self.medium(tmp_path)
        numbers: set[int] = set()
        for life in range(3):
            tier = medium.open(CAPACITY_BYTES)
            found = {seen.key: spot for seen, spot in scanned(tier)}
            assert set(found) == {key_of(n) for n in numbers}
            placed = put_many(tier, range(life * 10, life * 10 + 4), 30_000)
            tier.free([placed[life * 10], *[found[key_of(n)] for n in list(numbers)[:1]]])
            numbers = set(list(numbers)[1:]) | set(list(placed)[1:])
            tier.close()
        tier = medium.open(CAPACITY_BYTES)

        assert {seen.key for seen, _ in scanned(tier)} == {key_of(n) for n in numbers}
        assert tier.used_bytes == medium.used_bytes()
        tier.close()

    def test_smaller_cap_holds_after_restart(self, tmp_path: Path) -> None:
        """A cap that was lowered holds once the scan is over, and what was kept is whole."""
        medium = self.medium(tmp_path)
        tier = medium.open(CAPACITY_BYTES)
        put_many(tier, range(10), 200_000)
        tier.close()
        again = medium.open(MIB)
        kept = [(seen.key, spot) for seen, spot in scanned(again)]

        assert 0 < len(kept) < 10
        assert again.used_bytes <= MIB
        assert medium.used_bytes() == again.used_bytes
        again.close()


def _spot(placed: Placed) -> tuple[int, int]:
    """Location and size of an object, as a want names them."""
    return placed.location, placed.stored_bytes


def _stored_byte(number: int, raw_bytes: int, offset: int) -> int:
    """The byte of a plain frame of object `number` at an offset."""
    data = content(number, raw_bytes)
    if offset >= HEADER_BYTES:
        return data[offset - HEADER_BYTES]
    return frame.pack(header_of(record(number, raw_bytes), [memoryview(data)]))[offset]
