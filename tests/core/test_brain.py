"""Brain: named scenarios, one rule each. Random worlds with faults are in tests/sim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwise.core.brain import Brain
from kvwise.core.hints import Hints
from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.shelf import State
from kvwise.core.uses import STAMP_MAX
from kvwise.core.words import (
    Asked,
    Choice,
    Cleared,
    Command,
    Done,
    Drop,
    Ended,
    Filled,
    Granted,
    Joined,
    Load,
    Namespace,
    Observed,
    Offered,
    Planned,
    Progress,
    Released,
    Store,
    Tick,
    Wanted,
    Why,
)
from kvwise.errors import BugError
from tests.core.tiny import (
    CHUNK,
    KEYS,
    LAYOUT,
    SPACE,
    TOKENS,
    ask,
    brain,
    config,
    evict_dram,
    finish,
    pick,
    recovered,
    store,
)

SECOND = 1_000_000_000


def test_stored_then_loaded() -> None:
    """The whole life of a block: offered, filled, planned, wanted, released."""
    made = brain()
    finish(made, store(made))
    planned = ask(made)
    assert (planned.chunks, planned.load_tokens, planned.ready) == (8, 8 * CHUNK, True)
    assert planned.decision.choice is Choice.LOAD
    commands = made.handle(Wanted(4, 1, planned.lease, 8))
    assert len(pick(commands, Granted).pages) == 16
    assert pick(commands, Progress) == Progress(planned.lease, 8, failed=False)
    made.handle(Released(5, 1, planned.lease, 49152, 1000, 2000))
    made.check()
    counters = made.snapshot()["counters"]
    assert counters["hit_tokens"] == {"dram": 8 * CHUNK}
    assert counters["seconds_saved"]["dram"] == pytest.approx(0.128, rel=0.01)
    assert made.decisions(1)[0].actual_s == pytest.approx(2e-6)


def test_never_the_last_token() -> None:
    """A prompt that ends with the last chunk leaves that chunk to be computed."""
    made = brain()
    store(made)
    planned = pick(made.handle(Asked(3, 1, "q", SPACE.digest, KEYS, 0, len(TOKENS))), Planned)
    assert planned.load_tokens == 7 * CHUNK


def test_device_holds_part_of_a_chunk() -> None:
    """A load may begin inside a chunk: the rest of it still counts."""
    made = brain()
    store(made)
    planned = ask(made, local=CHUNK + 5)
    assert (planned.first_chunk, planned.chunks) == (1, 7)
    assert planned.load_tokens == 7 * CHUNK - 5
    assert sum(planned.decision.tiers.values()) == planned.load_tokens


def test_device_holds_more() -> None:
    """Nothing is loaded when the device already has what the cache has."""
    made = brain()
    store(made, KEYS[:32])
    assert ask(made, local=2 * CHUNK).decision.why is Why.ON_DEVICE
    assert ask(made, name="other").lease != 0


@pytest.mark.pain("D12")
def test_read_from_disk_and_joined_by_a_second_request() -> None:
    """Two requests for the same blocks on disk share one read."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    one = ask(made, name="one")
    assert set(one.decision.tiers) == {"disk"}
    assert not one.ready
    commands = made.handle(Wanted(4, 1, one.lease, 8))
    load = pick(commands, Load)
    assert pick(commands, Progress).ready == 0
    two = ask(made, name="two")
    joined = made.handle(Wanted(5, 1, two.lease, 8))
    assert not [c for c in joined if isinstance(c, Load)]
    for item in (1, 0, 2):
        commands = made.handle(Done(6, load.job, item, elapsed_ns=1000))
    progress = {c.lease: c.ready for c in commands if isinstance(c, Progress)}
    assert progress == {one.lease: 3, two.lease: 3}
    made.check()


def test_what_another_request_is_storing_is_stored_once() -> None:
    """Who computes the same meanwhile gets no second pages, and adds below what is on its way."""
    made = brain()
    half = 4 * KEY_BYTES
    first = pick(made.handle(Offered(1, 1, "a", SPACE.digest, ROOT, KEYS[:half], 128)), Granted)
    assert ask(made, name="b").decision.match_tokens == 0
    second = pick(made.handle(Offered(4, 1, "b", SPACE.digest, ROOT, KEYS, 128)), Granted)
    assert second.chunks == (4, 5, 6, 7)
    assert second.reasons == {Why.PRESENT: 4}
    made.handle(Filled(5, 1, second.lease, 4))
    assert ask(made, name="c").decision.match_tokens == 0
    made.handle(Filled(6, 1, first.lease, 4))
    assert ask(made, name="d").decision.match_tokens == 8 * CHUNK
    made.check()


def test_an_unused_plan_expires_but_a_store_lease_does_not() -> None:
    """A frozen writer keeps its pages: they must not be handed out while it may still write."""
    made = brain()
    store(made, KEYS[:64])
    planned = ask(made)
    made.handle(Offered(5, 1, "w", SPACE.digest, KEYS[48:64], KEYS[64:], 128))
    commands = made.handle(Tick(60 * SECOND))
    assert [c for c in commands if isinstance(c, Ended)] == [Ended(planned.lease)]
    assert made.snapshot()["levels"]["leases"] == {"load": 0, "store": 1}
    assert pick(made.handle(Wanted(61 * SECOND, 1, planned.lease, 4)), Granted).chunks == ()
    made.check()


@pytest.mark.pain("O4")
def test_asking_again_replaces_the_plan_and_counts_once() -> None:
    """O4: a request that is asked about in every step pins once and counts once."""
    made = brain()
    store(made)
    leases = [ask(made).lease for _ in range(5)]
    assert len(set(leases)) == 5
    assert made.snapshot()["levels"]["leases"]["load"] == 1
    assert made.snapshot()["counters"]["asked_tokens"] == len(TOKENS) + 1
    assert sum(made.snapshot()["counters"]["decisions"].values()) == 1
    made.check()


@pytest.mark.pain("C1")
def test_pinned_blocks_survive_pressure() -> None:
    """C1: what a plan promised is still there when the engine comes for it."""
    made = brain(pages=20, disk_objects=2)
    store(made)
    planned = ask(made)
    for number in range(6):
        store(made, chain_keys(SPACE.digest, [number] * (3 * CHUNK), CHUNK))
        made.check()
    granted = pick(made.handle(Wanted(9, 1, planned.lease, 8)), Granted)
    assert len(granted.chunks) == 8


@pytest.mark.pain("W10")
def test_suffix_goes_before_prefix() -> None:
    """Under pressure a chain loses its tail first, so what is left can still be matched."""
    made = brain(pages=20, disk_objects=0)
    store(made)
    store(made, chain_keys(SPACE.digest, [7] * (5 * CHUNK), CHUNK))
    assert ask(made).load_tokens == 5 * CHUNK


def test_too_short_no_store_no_load() -> None:
    """Hints and the minimum length are obeyed, with their reasons."""
    made = brain(tokens_min=100)
    short = pick(made.handle(Offered(1, 1, "a", SPACE.digest, ROOT, KEYS, 50)), Granted)
    hint = Hints(no_store=True)
    told = pick(made.handle(Offered(1, 1, "b", SPACE.digest, ROOT, KEYS, 128, hint)), Granted)
    assert short.reasons == {Why.TOO_SHORT: 8}
    assert told.reasons == {Why.DISABLED: 8}
    store(made)
    total = len(TOKENS) + 1
    hinted = Asked(3, 1, "c", SPACE.digest, KEYS, 0, total, Hints(no_load=True))
    assert pick(made.handle(hinted), Planned).decision.why is Why.DISABLED
    few = Asked(3, 1, "d", SPACE.digest, KEYS, 0, 40)
    assert pick(made.handle(few), Planned).decision.why is Why.TOO_SHORT


def test_no_parent_no_block() -> None:
    """A chunk whose parent is unknown could never be matched, so it is not kept."""
    made = brain()
    granted = pick(
        made.handle(Offered(1, 1, "w", SPACE.digest, KEYS[:16], KEYS[16:48], 128)), Granted
    )
    assert granted.reasons == {Why.NO_PARENT: 2}
    assert made.snapshot()["levels"]["blocks"] == 0


@pytest.mark.pain("P7")
def test_slow_engine_or_slow_disk_changes_the_choice() -> None:
    """P7: with the disk slower than recomputing, the same blocks are recomputed."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    assert ask(made, name="fast disk").decision.choice is Choice.LOAD
    for step in range(80):
        made.handle(Observed(4, 1, SPACE.digest, 500 + step, 500 * 250.0, (500 + step) * 1e-7))
    slow = ask(made, name="fast engine")
    assert (slow.decision.choice, slow.decision.why) == (Choice.RECOMPUTE, Why.SLOWER)
    assert slow.decision.load_s > slow.decision.recompute_s


@pytest.mark.pain("P6")
def test_writes_wait_for_reads() -> None:
    """Reads go before writes: no deferred write starts while a load is under way."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    planned = ask(made)
    load = pick(made.handle(Wanted(4, 1, planned.lease, 8)), Load)
    other = chain_keys(SPACE.digest, [77] * CHUNK, CHUNK)
    assert not [c for c in store(made, other) if isinstance(c, Store)]
    assert made.waiting_writes() == 1
    out: list[Command] = []
    for item in range(8):
        out += made.handle(Done(5, load.job, item, elapsed_ns=1000))
    assert [type(c) for c in out if isinstance(c, Store)] == [Store]


@pytest.mark.pain("P8")
def test_a_full_queue_drops_and_says_so() -> None:
    """The deferred-write queue is bounded; over the bound a write is a lost chance, counted."""
    made = brain(disk_objects=200)
    many = [store(made, chain_keys(SPACE.digest, [n] * (2 * CHUNK), CHUNK)) for n in range(30)]
    assert made.snapshot()["counters"]["refused"]["disk|full"] > 0
    assert made.snapshot()["levels"]["tiers"]["disk"]["queued_bytes"] <= 200_000
    for commands in many:
        finish(made, commands)


@pytest.mark.pain("D1", "D2")
def test_d1_the_cap_holds_at_every_step() -> None:
    """D1, D2: a long fill never holds more than the cap, and gives space back as it goes."""
    made = brain(disk_objects=10)
    dropped = 0
    for number in range(40):
        keys = chain_keys(SPACE.digest, [number] * (3 * CHUNK), CHUNK)
        begun = store(made, keys)
        out = begun + finish(made, begun, first=10 * number)
        dropped += sum(len(c.locations) for c in out if isinstance(c, Drop) and c.tier == 1)
        disk = made.snapshot()["levels"]["tiers"]["disk"]
        assert disk["used_bytes"] <= disk["capacity_bytes"]
    assert dropped == 120 - 10


@pytest.mark.pain("D4")
def test_recovery_in_any_order_drops_what_has_no_parent() -> None:
    """D4: every record with its whole prefix is found again; an orphan's space is given back."""
    made = Brain(config(disk_objects=200))
    order = [5, 2, 0, 7, 1, 3]
    for number in order:
        key = KEYS[number * 16 : number * 16 + 16]
        parent = KEYS[number * 16 - 16 : number * 16] if number else ROOT
        made.handle(recovered(key, parent, (number,)))
    ended = made.handle(recovered(b"", b"", ()))
    assert [(c.locations, c.why) for c in ended if isinstance(c, Drop)] == [((5, 7), Why.ORPHANED)]
    made.check()
    made.handle(Joined(2, 1, SPACE))
    assert ask(made).load_tokens == 4 * CHUNK


def test_recovery_beyond_the_bound_on_namespaces_gives_space_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of one namespace too many are dropped; those of a namespace that is known stay."""
    monkeypatch.setattr("kvwise.core.world.SPACES_MAX", 1)
    made, other = brain(), b"o" * 16
    record = recovered(KEYS[:16], ROOT, (1,))
    dropped = made.handle(replace(record, space=other))
    kept = made.handle(record)

    assert [c.locations for c in dropped if isinstance(c, Drop)] == [(1,)]
    assert [c for c in kept if isinstance(c, Drop)] == []
    made.check()


@pytest.mark.pain("D5")
def test_recovery_under_a_smaller_cap_evicts() -> None:
    """A cap that shrank between two lives holds from the first moment."""
    made = Brain(config(disk_objects=3))
    made.handle(recovered(KEYS, ROOT + KEYS[:-16], tuple(range(8))))
    made.handle(recovered(b"", b"", ()))
    made.check()
    assert made.snapshot()["levels"]["tiers"]["disk"]["objects"] == 3


@pytest.mark.parametrize("pages", [3, 8, 11, 16, 40])
def test_one_offer_is_as_many_offers_of_one_chunk(pages: int) -> None:
    """The same blocks enter and the same are evicted; what has no room is refused with a reason."""
    whole, single = (brain(pages=pages, disk_objects=0) for _ in range(2))
    for made in (whole, single):
        store(made, chain_keys(SPACE.digest, [7] * (3 * CHUNK), CHUNK)[: 16 * min(3, pages // 2)])
    granted = pick(whole.handle(Offered(2, 1, "w", SPACE.digest, ROOT, KEYS, 128)), Granted)
    whole.check()
    leases, got = [], []
    for at in range(0, len(KEYS), 16):
        parent = KEYS[at - 16 : at] if at else ROOT
        event = Offered(2, 1, "w", SPACE.digest, parent, KEYS[at : at + 16], 128)
        one = pick(single.handle(event), Granted)
        leases += [one.lease] * len(one.chunks)
        got += [at // 16 for _ in one.chunks]
    assert list(granted.chunks) == got == list(range(min(8, pages // 2)))
    assert sum(granted.reasons.values()) == 8 - len(got)
    assert (Why.NO_ROOM in granted.reasons) == (len(got) < 8)
    whole.handle(Filled(3, 1, granted.lease, len(got)))
    for lease in leases:
        single.handle(Filled(3, 1, lease, 1))
    both = [
        {(h.key, h.parent, h.pins, h.states) for h in made.holdings()} for made in (whole, single)
    ]
    assert both[0] == both[1]
    whole.check()


def test_stamps_that_are_used_up_begin_anew_and_keep_their_order() -> None:
    """After four billion uses the least recently used block still goes first."""
    made = brain(pages=8)
    finish(made, store(made, KEYS[:32]))
    blocks = made._world.blocks
    blocks.reuse.uses.skip(STAMP_MAX - blocks.reuse.uses.last)
    for number in (1, 2):
        key = chain_keys(SPACE.digest, [number] * CHUNK, CHUNK)
        finish(made, store(made, key), first=10 * number)
    assert blocks.reuse.uses.last < STAMP_MAX // 2 + 10
    ask(made)
    store(made, chain_keys(SPACE.digest, [3] * CHUNK, CHUNK))
    made.check()
    held = {holding.key for holding in made.holdings() if holding.states[0] is State.READY}
    assert chain_keys(SPACE.digest, [1] * CHUNK, CHUNK) not in held
    assert {KEYS[:16], KEYS[16:32], chain_keys(SPACE.digest, [2] * CHUNK, CHUNK)} <= held


def test_room_is_made_before_it_is_counted_on() -> None:
    """A write at the cap comes after the drop that makes room for it, in the order of commands."""
    made = brain(disk_objects=2)
    finish(made, store(made, KEYS[:32]))
    commands = store(made, chain_keys(SPACE.digest, [9] * CHUNK, CHUNK))
    kinds = [type(c) for c in commands if isinstance(c, Store) or (isinstance(c, Drop) and c.tier)]
    assert kinds == [Drop, Store]


def test_an_engine_that_wants_less_hits_less() -> None:
    """Tokens and seconds count what was loaded, not what the plan had promised."""
    made = brain()
    store(made)
    planned = ask(made)
    made.handle(Wanted(4, 1, planned.lease, 2))
    made.handle(Released(5, 1, planned.lease, 12288, 1000, 2000))
    counters = made.snapshot()["counters"]
    assert counters["hit_tokens"] == {"dram": 2 * CHUNK}
    assert counters["seconds_saved"]["dram"] == pytest.approx(0.032, rel=0.01)


def test_clear_spares_what_is_in_use() -> None:
    """Clearing dooms pinned blocks: invisible at once, gone with the last pin."""
    made = brain()
    finish(made, store(made))
    planned = ask(made)
    made.handle(Wanted(4, 1, planned.lease, 8))
    made.handle(Cleared(5))
    assert ask(made, name="other").chunks == 0
    made.check()
    assert made.snapshot()["levels"]["blocks"] == 8
    assert made.snapshot()["levels"]["pins"] == 8
    made.handle(Released(6, 1, planned.lease, 1, 1, 1))
    made.check()
    assert made.snapshot()["levels"]["blocks"] == 0
    assert made.snapshot()["levels"]["pins"] == 0
    assert made.snapshot()["levels"]["pages_free"] == 40


def test_holdings_show_every_copy() -> None:
    """Every block is shown with its parent, its pins and the state of each of its copies."""
    made = brain(disk_objects=200)
    finish(made, store(made, KEYS[:32]))
    made.handle(Offered(3, 1, "w", SPACE.digest, KEYS[16:32], KEYS[32:48], 128))
    shown = {held.key: (held.parent, held.pins, held.states) for held in made.holdings()}
    assert shown == {
        KEYS[:16]: (ROOT, 0, (State.READY, State.READY)),
        KEYS[16:32]: (KEYS[:16], 0, (State.READY, State.READY)),
        KEYS[32:48]: (KEYS[16:32], 1, (State.STORING, State.ABSENT)),
    }


def test_namespaces_do_not_see_each_other() -> None:
    """Clearing one namespace leaves the other."""
    made = brain()
    other = Namespace(b"o" * 16, "other", LAYOUT)
    made.handle(Joined(1, 1, other))
    finish(made, store(made, KEYS[:32]))
    keys = chain_keys(other.digest, TOKENS, CHUNK)
    granted = pick(made.handle(Offered(1, 1, "w", other.digest, ROOT, keys[:32], 9)), Granted)
    finish(made, made.handle(Filled(2, 1, granted.lease, 2)), first=10)
    made.handle(Cleared(3, other.digest))
    assert made.snapshot()["levels"]["blocks"] == 2
    assert ask(made).chunks == 2


@pytest.mark.parametrize(
    "event",
    [
        Asked(1, 1, "q", b"?" * 16, KEYS, 0, 100),
        Offered(1, 1, "q", b"?" * 16, ROOT, KEYS, 100),
        Observed(1, 1, b"?" * 16, 10, 1.0, 1.0),
    ],
)
def test_a_namespace_must_be_joined(event: Asked | Offered | Observed) -> None:
    """Using a namespace that nobody joined is the caller's mistake, and changes nothing."""
    made = brain()
    with pytest.raises(BugError, match="before anybody joined"):
        made.handle(event)
    made.check()


def test_an_object_larger_than_the_arena_is_refused() -> None:
    """A namespace whose objects can never be held is refused when it is joined."""
    with pytest.raises(BugError, match="exceeds the arena"):
        Brain(config(pages=1)).handle(Joined(0, 1, SPACE))


def test_reads_are_priced_as_a_whole() -> None:
    """A plan expects what reads of many objects really took, not what one object's share was."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    now_ns = SECOND
    for turn in range(6):
        evict_dram(made, seed=100 * turn + 5)
        planned = ask(made, name=f"turn {turn}", now_ns=now_ns)
        load = pick(made.handle(Wanted(now_ns, 1, planned.lease, 8)), Load)
        for item in range(8):
            now_ns += 1_000_000
            made.handle(Done(now_ns, load.job, item, elapsed_ns=10))
        made.handle(Released(now_ns, 1, planned.lease, 49152, 1000, 8_000_000))
    evict_dram(made, seed=5000)
    expected = ask(made, name="last", now_ns=now_ns).decision.load_s
    assert expected == pytest.approx(8e-3, rel=0.1)
