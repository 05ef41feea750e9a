"""Verbs in any order with any leases, keys and counts: the brain stays sound and leaks nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.keys import ROOT
from kvwise.errors import BugError
from kvwise.live.messages import Ask, Fill, Offer, Release, Step, Timing
from kvwise.live.store import Store
from tests.live.support import CHUNK, PAGE, SPACE, eventually, prompt, settings

HUGE = st.sampled_from([-(1 << 40), -1, 0, 1, 2, 7, 1 << 40])
NAMES = st.sampled_from(["a", "b", "c"])
PIECES = st.lists(
    st.sampled_from(
        [prompt(seed, 6)[at * 16 : at * 16 + 16] for seed in range(3) for at in range(6)]
        + [ROOT, b"\xff" * 16]
    ),
    max_size=8,
).map(b"".join)
KEYS = PIECES | st.builds(prompt, st.integers(0, 2), st.integers(0, 6))
PARENTS = st.sampled_from([ROOT, prompt(0, 1), prompt(1, 1), b"\xee" * 16])

ASKS = st.builds(
    Ask,
    request=NAMES,
    space=st.just(SPACE.digest),
    keys=KEYS,
    local_tokens=st.integers(0, 3 * CHUNK),
    total_tokens=st.integers(0, 8 * CHUNK),
)
OFFERS = st.builds(
    Offer,
    request=NAMES,
    space=st.just(SPACE.digest),
    parent=PARENTS,
    keys=KEYS,
    total_tokens=HUGE,
)
TIMINGS = st.builds(
    Timing, space=st.just(SPACE.digest), tokens=HUGE, pairs=st.floats(), seconds=st.floats()
)
WHICH = st.integers(0, 40)
VERBS = st.one_of(
    ASKS,
    OFFERS,
    TIMINGS,
    st.tuples(st.just("want"), WHICH, HUGE),
    st.tuples(st.just("fill"), WHICH, HUGE),
    st.tuples(st.just("release"), WHICH, HUGE),
    st.just("clear"),
    st.just("flush"),
)


class Talker:
    """Says verbs to a store and remembers every lease that it ever heard of."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leases = [0, 1 << 32 | 5]

    def say(self, verb: object) -> None:
        """Carry a drawn verb out; what the store refuses as nonsense is fine."""
        try:
            self._say(verb)
        except BugError:
            assert self.store._node.pump.is_sound

    def _say(self, verb: object) -> None:
        match verb:
            case Ask():
                self.leases.append(self.store.ask(verb).lease)
            case Offer():
                self.leases += [g.lease for g in self.store.step(Step(offers=[verb]))]
            case Timing():
                self.store.step(Step(timings=[verb]))
            case ("want", int(which), int(count)):
                self.store.want(self._lease(which), count)
            case ("fill", int(which), int(count)):
                self.store.step(Step(fills=[Fill(self._lease(which), count)]))
            case ("release", int(which), int(count)):
                release = Release(self._lease(which), count, count, count, failed=count % 2 == 0)
                self.store.step(Step(releases=[release]))
            case "clear":
                self.store.clear()
            case _:
                self.store.flush(1)

    def _lease(self, which: int) -> int:
        return self.leases[which % len(self.leases)]


@pytest.mark.pain("C1", "C9", "M1")
@given(verbs=st.lists(VERBS, max_size=40))
def test_any_verbs_leave_the_store_sound(verbs: list[object]) -> None:
    """After every verb the invariants hold; once all leases are given back no page is missing."""
    with tempfile.TemporaryDirectory(prefix="kvwise-fuzz-") as folder:
        store = Store.open(settings(Path(folder), disk=True, dram_size="256KiB"))
        store.join(SPACE)
        talker = Talker(store)
        try:
            for verb in verbs:
                talker.say(verb)
                store.check()
            ends = Step(
                fills=[Fill(lease, 0) for lease in talker.leases],
                releases=[Release(lease) for lease in talker.leases],
            )
            store.step(ends)
            store.flush(5)
            store.clear()

            def is_empty() -> bool:
                levels = store.status()["levels"]
                return bool(levels["pages_free"] == (256 << 10) // PAGE and levels["blocks"] == 0)

            assert eventually(is_empty)
            assert store.status()["levels"]["leases"] == {"load": 0, "store": 0}
            store.check()
        finally:
            store.close()
