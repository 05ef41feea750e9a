"""Wrappers around any tier: metered, throttled, delayed, faulty. No tier carries such code itself.

Clocks and sleeping are handed in, so that wrapped tiers behave the same in tests as in life.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

from kvwise.errors import FailureKind, TierError
from kvwise.tiers.base import Buffers, Found, Placed, Record, Spent, Tier, Want
from kvwise.units import NS_PER_S

_SCALE = 1 << 64
_JUNK = b"\xdb"


class Wrapped:
    """A tier that passes every call on; wrappers change what they are about."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name = inner.name

    @property
    def used_bytes(self) -> int:
        """As the inner tier says."""
        return self.inner.used_bytes

    @property
    def free_bytes(self) -> int:
        """As the inner tier says."""
        return self.inner.free_bytes

    @property
    def down(self) -> Sequence[str]:
        """As the inner tier says."""
        return self.inner.down

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """As the inner tier does."""
        return self.inner.put(objects)

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """As the inner tier does."""
        yield from self.inner.get(wants)

    def free(self, placed: Sequence[Placed]) -> None:
        """As the inner tier does."""
        self.inner.free(placed)

    def scan(self) -> Iterator[Found]:
        """As the inner tier does."""
        return self.inner.scan()

    def spent(self) -> Sequence[Spent]:
        """As the inner tier says."""
        return self.inner.spent()

    def close(self) -> None:
        """As the inner tier does."""
        self.inner.close()


@dataclass(slots=True)
class Meter:
    """What passed one way through a tier.

    Attributes:
        objects, size_bytes: that went well; bytes are payload bytes.
        failures: that did not, by kind.
        busy_ns: time inside the tier, summed over calls that may overlap.
    """

    objects: int = 0
    size_bytes: int = 0
    failures: Counter[FailureKind] = field(default_factory=Counter)
    busy_ns: int = 0

    def note(self, size_bytes: int, error: TierError | None) -> None:
        """Count one object."""
        if error is not None:
            self.failures[error.kind] += 1
            return
        self.objects += 1
        self.size_bytes += size_bytes


class Metered(Wrapped):
    """Counts what passes. Attributes `puts` and `gets` are its meters."""

    def __init__(self, inner: Tier, *, clock_ns: Callable[[], int]) -> None:
        super().__init__(inner)
        self.puts, self.gets = Meter(), Meter()
        self._clock_ns = clock_ns
        self._lock = threading.Lock()

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Write, and count each object."""
        start_ns = self._clock_ns()
        answers = self.inner.put(objects)
        elapsed_ns = self._clock_ns() - start_ns
        with self._lock:
            self.puts.busy_ns += elapsed_ns
            for (record, _), answer in zip(objects, answers, strict=True):
                self.puts.note(record.raw_bytes, None if isinstance(answer, Placed) else answer)
        return answers

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read, and count each object; the time that the caller takes in between is not counted."""
        reading = self.inner.get(wants)
        while True:
            start_ns = self._clock_ns()
            answer = next(reading, None)
            with self._lock:
                self.gets.busy_ns += self._clock_ns() - start_ns
                if answer is None:
                    return
                self.gets.note(wants[answer[0]].raw_bytes, answer[1])
            yield answer


class Throttled(Wrapped):
    """A tier behind a link of so many bytes a second, shared by everything that passes."""

    def __init__(
        self,
        inner: Tier,
        *,
        bytes_per_s: float,
        clock_ns: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__(inner)
        self._ns_per_byte = NS_PER_S / bytes_per_s
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at_ns = 0.0

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Send everything over the link, then write it."""
        self._pass(sum(record.raw_bytes for record, _ in objects))
        return self.inner.put(objects)

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read; what was found comes over the link one object at a time."""
        for index, error in self.inner.get(wants):
            if error is None:
                self._pass(wants[index].raw_bytes)
            yield index, error

    def _pass(self, size_bytes: int) -> None:
        """Wait until the link has carried so many bytes, behind those that came before."""
        with self._lock:
            now_ns = self._clock_ns()
            self._free_at_ns = max(self._free_at_ns, now_ns) + size_bytes * self._ns_per_byte
            wait_ns = self._free_at_ns - now_ns
        self._sleep(wait_ns / NS_PER_S)


class Delayed(Wrapped):
    """A tier far away: each call takes longer by a fixed time and some jitter.

    The jitter of a call follows from the seed and its first key: a rerun waits just as long.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        fixed_s: float,
        jitter_s: float,
        seed: int,
        sleep: Callable[[float], None],
    ) -> None:
        super().__init__(inner)
        self._fixed_s = fixed_s
        self._jitter_s = jitter_s
        self._seed = seed
        self._sleep = sleep

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Wait, then write."""
        if objects:
            self._wait(b"put", objects[0][0].key)
        return self.inner.put(objects)

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Wait, then read."""
        if wants:
            self._wait(b"get", wants[0].key)
        yield from self.inner.get(wants)

    def _wait(self, verb: bytes, key: bytes) -> None:
        """Wait as long as this call has to."""
        self._sleep(self._fixed_s + self._jitter_s * chance(self._seed, verb, key))


class Faulty(Wrapped):
    """A tier that fails now and then, always for the same keys under the same seed.

    A faulty `put` writes nothing. A faulty `get` scribbles over the buffers, as a real one may.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        seed: int,
        puts: Mapping[FailureKind, float] | None = None,
        gets: Mapping[FailureKind, float] | None = None,
    ) -> None:
        """Fail with these probabilities, by kind; those of one verb add up to at most 1."""
        super().__init__(inner)
        self._seed = seed
        self._puts = puts or {}
        self._gets = gets or {}

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Write those that do not fail."""
        faults = [self._fault(b"put", self._puts, record.key) for record, _ in objects]
        good = [one for one, fault in zip(objects, faults, strict=True) if fault is None]
        answers = iter(self.inner.put(good))
        return [next(answers) if fault is None else fault for fault in faults]

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read those that do not fail."""
        good: list[int] = []
        for index, want in enumerate(wants):
            fault = self._fault(b"get", self._gets, want.key)
            if fault is None:
                good.append(index)
                continue
            for piece in want.buffers:
                piece[:] = _JUNK * piece.nbytes
            yield index, fault
        for position, error in self.inner.get([wants[index] for index in good]):
            yield good[position], error

    def _fault(
        self, verb: bytes, rates: Mapping[FailureKind, float], key: bytes
    ) -> TierError | None:
        """The fault of this verb for this key, if it has one."""
        drawn = chance(self._seed, verb, key)
        for kind, rate in rates.items():
            if drawn < rate:
                return TierError(kind, f"injected: {verb.decode()} of {key.hex()}")
            drawn -= rate
        return None


def chance(seed: int, verb: bytes, key: bytes) -> float:
    """A number in [0, 1) that follows from the seed, the verb and the key alone."""
    return xxhash.xxh3_64_intdigest(verb + key, seed) / _SCALE
