"""What hurt users of other caches, as far as the brain alone can show that it does not happen here.

Each test is named after its row in the table of the testing page.
"""

from __future__ import annotations

import gc

import pytest

from kvwise.core.keys import adopt_keys, chain_keys, split_keys
from kvwise.core.words import (
    Choice,
    Done,
    Ended,
    Failed,
    Filled,
    Granted,
    Observed,
    Offered,
    Store,
    Tick,
    Wanted,
    Why,
)
from kvwise.errors import FailureKind
from tests.core.test_plan import answer, question
from tests.core.tiny import CHUNK, KEYS, SPACE, ask, brain, evict_dram, finish, pick, store

HOUR_NS = 3600 * 10**9


def cell(prompt: int, hit: int, compute_s: float, hit_s: float) -> tuple[int, float, float]:
    """(chunks to load, seconds to load one, seconds to compute a token) of a published cell.

    Both times are to the first token; what the hit leaves to compute is in both of them.
    """
    token_s = compute_s / prompt
    chunks = hit // 32
    return chunks, (hit_s - (prompt - hit) * token_s) / chunks, token_s


@pytest.mark.pain("R3", "P1")
@pytest.mark.parametrize(
    ("measured", "choice"),
    [
        pytest.param((8192, 7372, 1.725, 2.450), Choice.RECOMPUTE, id="files, 16 at a time"),
        pytest.param((8192, 7372, 1.725, 0.482), Choice.LOAD, id="memory, 16 at a time"),
        pytest.param((131072, 117964, 5.118, 5.250), Choice.RECOMPUTE, id="files, one long prompt"),
        pytest.param((10240, 10208, 8.5 / 32, 29.0 / 32), Choice.RECOMPUTE, id="remote store"),
    ],
)
def test_p1_r3_a_hit_that_is_slower_is_not_taken(
    measured: tuple[int, int, float, float], choice: Choice
) -> None:
    """Published cells in which caches lost time: with their rates the same hit is refused here."""
    chunks, chunk_s, token_s = cell(*measured)

    cut = answer(question((1, chunks), total=measured[0]), tier_s={1: chunk_s}, token_s=token_s)

    assert cut.choice is choice
    assert cut.why is (Why.FASTER if choice is Choice.LOAD else Why.SLOWER)


@pytest.mark.pain("P7", "P10")
def test_p10_where_a_cache_never_pays_it_says_so() -> None:
    """On an engine that computes faster than the disk reads, nothing is read, and it is counted."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    for step in range(80):
        made.handle(Observed(4, 1, SPACE.digest, 500 + step, 500 * 250.0, (500 + step) * 1e-7))

    plans = [ask(made, name=f"r{turn}") for turn in range(5)]

    assert {plan.lease for plan in plans} == {0}
    counters = made.snapshot()["counters"]
    assert counters["decisions"] == {"recompute|slower": 5}
    assert counters["read_bytes"] == {}


@pytest.mark.pain("H1", "H2")
def test_h1_h2_hours_of_silence_end_nothing() -> None:
    """An engine that says nothing for a day is served as before: silence is not death."""
    made = brain()
    store(made, KEYS[:64])
    granted = pick(
        made.handle(Offered(5, 1, "w", SPACE.digest, KEYS[48:64], KEYS[64:], 128)), Granted
    )
    for hour in range(1, 25):
        ended = [c for c in made.handle(Tick(hour * HOUR_NS)) if isinstance(c, Ended)]
        assert ended == []
    assert made.snapshot()["levels"]["clients"] == 1

    made.handle(Filled(24 * HOUR_NS + 1, 1, granted.lease, 4))

    assert ask(made, now_ns=24 * HOUR_NS + 2).load_tokens == 8 * CHUNK
    made.check()


@pytest.mark.pain("W1")
@pytest.mark.parametrize("kind", [FailureKind.IO, FailureKind.TIMEOUT])
@pytest.mark.parametrize("place", range(4))
def test_w1_a_write_that_fails_leaves_no_copy_behind(kind: FailureKind, place: int) -> None:
    """Wherever a run of writes fails: in memory until it leaves there, and then a miss."""
    made = brain(disk_objects=200)
    job = pick(store(made, KEYS[:64]), Store)
    for item in range(4):
        if item == place:
            made.handle(Failed(2, job.job, item, kind))
        else:
            made.handle(Done(2, job.job, item, item + 1, 12288, 1_000_000))
    made.check()
    assert ask(made, name="from memory").load_tokens == 4 * CHUNK
    made.handle(Tick(HOUR_NS))

    evict_dram(made)

    assert ask(made, name="after").load_tokens == place * CHUNK
    made.check()


@pytest.mark.pain("M6")
def test_m6_what_passes_through_leaves_nothing_behind() -> None:
    """Twelve thousand objects through a small cache: index and heap stay as large as they were."""
    made = brain(disk_objects=20)

    def pass_through(first: int, count: int) -> tuple[int, int]:
        for number in range(first, first + count):
            keys = chain_keys(SPACE.digest, [number] * (4 * CHUNK), CHUNK)
            queue = [c for c in store(made, keys, now_ns=number) if isinstance(c, Store)]
            while queue:
                job = queue.pop()
                for item in range(len(job.items)):
                    more = made.handle(Done(number, job.job, item, item + 1, 12288, 1000))
                    queue += [c for c in more if isinstance(c, Store)]
        gc.collect()
        return made.snapshot()["levels"]["index_bytes"], len(gc.get_objects())

    bytes_before, objects_before = pass_through(1, 500)
    bytes_after, objects_after = pass_through(501, 3_000)

    assert bytes_after <= 2 * bytes_before
    assert objects_after <= objects_before + 1_000
    made.check()


@pytest.mark.pain("W5")
def test_w5_a_hundred_thousand_pictures_have_keys_of_their_own() -> None:
    """No key is cut short: digests that differ in one bit anywhere, or by a number, never meet."""
    pictures = [number.to_bytes(32, "little") for number in range(100_000)]
    pictures += [(1 << bit).to_bytes(32, "big") for bit in range(256)]
    keys = split_keys(adopt_keys(SPACE.digest, pictures))

    assert len(set(keys)) == len(set(pictures))


@pytest.mark.pain("C1", "C3")
def test_c1_c3_a_request_that_comes_back_in_any_order_is_answered() -> None:
    """Asked, preempted, asked again while its store is under way, wanted with less, or twice."""
    made = brain(pages=40, disk_objects=4)
    granted = pick(
        made.handle(Offered(1, 1, "r", SPACE.digest, b"\0" * 16, KEYS[:64], 128)), Granted
    )
    during = ask(made, name="r")
    assert during.chunks == 0
    made.handle(Filled(2, 1, granted.lease, 2))
    first, second = ask(made, name="r"), ask(made, name="r")
    assert second.chunks == 2
    grants = [
        pick(made.handle(Wanted(3, 1, lease, chunks)), Granted)
        for lease, chunks in ((first.lease, 2), (second.lease, 1), (second.lease, 2))
    ]
    assert [len(grant.chunks) for grant in grants] == [0, 1, 0]
    made.check()


def test_the_cells_can_be_told_apart() -> None:
    """The control for the published cells: the same hit at a tenth of the time is taken."""
    chunks, chunk_s, token_s = cell(8192, 7372, 1.725, 2.450)

    cut = answer(question((1, chunks), total=8192), tier_s={1: chunk_s / 10}, token_s=token_s)

    assert (cut.choice, cut.chunks) == (Choice.LOAD, chunks)
