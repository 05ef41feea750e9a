"""The verbs, over the store in this process and over a client: one suite, same answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from kvwise.core.keys import ROOT
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Choice, Namespace, Why
from kvwise.errors import BugError, CacheUnavailable, ConfigError
from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from kvwise.live.messages import Ask, Cache, Fill, Offer, Release, Step, Timing
from kvwise.live.store import Store
from tests.live.support import (
    LAYOUT,
    OTHER,
    PAGE,
    SPACE,
    eventually,
    payloads,
    prompt,
    question,
    settings,
    thread_daemon,
)

REFUSED = (BugError, CacheUnavailable)


@pytest.fixture(params=["store", "client"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    """A cache with a disk tier, in this process or behind a socket, with a namespace joined."""
    config = settings(tmp_path, disk=True)
    with ExitStack() as stack:
        cache: Cache
        if request.param == "store":
            cache = Store.open(config)
        else:
            stack.enter_context(thread_daemon(config))
            cache = Client(config.socket_path, "engine", timeout_s=5.0)
        stack.callback(cache.close)
        cache.join(SPACE)
        yield cache


@pytest.mark.pain("D9")
def test_what_was_put_comes_back(cache: Cache) -> None:
    """Every payload comes back under its key, byte for byte."""
    keys = prompt(1, 5)

    assert put(cache, SPACE, keys, payloads(keys)) == 5
    assert get(cache, SPACE, keys) == payloads(keys)


def test_a_prefix_is_a_hit(cache: Cache) -> None:
    """A longer prompt hits as far as it was stored, and no further."""
    keys = prompt(1, 6)
    put(cache, SPACE, keys[: 4 * 16], payloads(keys)[:4])

    assert get(cache, SPACE, keys) == payloads(keys)[:4]


def test_nothing_stored_is_a_miss(cache: Cache) -> None:
    """An unknown prompt has no lease and says why."""
    plan = cache.ask(question(prompt(9, 3)))

    assert plan.lease == 0
    assert plan.decision.why is Why.NO_MATCH


def test_namespaces_do_not_mix(cache: Cache) -> None:
    """The same keys asked for in another namespace load nothing of the first."""
    cache.join(OTHER)
    keys = prompt(1, 3)
    put(cache, SPACE, keys, payloads(keys))

    assert get(cache, OTHER, prompt(1, 3, OTHER)) == []


@pytest.mark.pain("K2")
def test_putting_twice_stores_once(cache: Cache) -> None:
    """A second offer of the same chunks gets no pages."""
    keys = prompt(1, 4)
    put(cache, SPACE, keys, payloads(keys))

    assert put(cache, SPACE, keys, payloads(keys)) == 0


@pytest.mark.pain("W1", "W13")
def test_unfilled_pages_are_never_read(cache: Cache) -> None:
    """A store lease that ends without its bytes leaves a miss behind."""
    keys = prompt(1, 2)
    (grant,) = cache.step(Step(offers=[Offer("r", SPACE.digest, ROOT, keys)]))
    assert get(cache, SPACE, keys) == []

    cache.step(Step(fills=[Fill(grant.lease, 1)]))

    assert cache.ask(question(keys)).chunks == 1


def test_store_lease_reads_as_alive_until_filled(cache: Cache) -> None:
    """Progress of a store lease is what tells a copying process that the pages are its own."""
    (grant,) = cache.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 2))]))
    assert cache.progress(grant.lease) == (0, False)

    cache.step(Step(fills=[Fill(grant.lease, 2)]))

    assert cache.progress(grant.lease)[1]


def test_a_load_reads_as_over_after_release(cache: Cache) -> None:
    """Progress reaches the count while the lease lives and fails once it was released."""
    keys = prompt(1, 3)
    put(cache, SPACE, keys, payloads(keys))
    plan = cache.ask(question(keys))
    grant = cache.want(plan.lease, plan.chunks)
    assert cache.progress(grant.lease) == (3, False)

    cache.step(Step(releases=[Release(grant.lease)]))

    assert cache.progress(grant.lease)[1]


def test_fewer_chunks_can_be_wanted(cache: Cache) -> None:
    """An engine with room for less gets pages for less."""
    keys = prompt(1, 4)
    put(cache, SPACE, keys, payloads(keys))
    plan = cache.ask(question(keys))

    assert cache.want(plan.lease, 2).chunks == [0, 1]


def test_asking_again_replaces_the_lease(cache: Cache) -> None:
    """The earlier lease of a request ends; wanting it grants nothing."""
    keys = prompt(1, 2)
    put(cache, SPACE, keys, payloads(keys))
    first = cache.ask(question(keys))
    second = cache.ask(question(keys))

    assert cache.want(first.lease, 2).chunks == []
    assert cache.want(second.lease, 2).chunks == [0, 1]


@pytest.mark.pain("C9")
@pytest.mark.parametrize("lease", [1, 7 << 32 | 1, -1, (1 << 62) + 5])
def test_leases_of_nobody_are_harmless(cache: Cache, lease: int) -> None:
    """A lease that no living daemon gave grants nothing, ends nothing and reads as failed."""
    assert cache.want(lease, 1).chunks == []
    assert cache.step(Step(fills=[Fill(lease, 1)], releases=[Release(lease)])) == []
    assert cache.progress(lease)[1]


def test_offers_are_granted_in_order(cache: Cache) -> None:
    """Each offer of a step has one grant, in the same place."""
    offers = [
        Offer(str(seed), SPACE.digest, ROOT, prompt(seed, count))
        for seed, count in ((1, 2), (2, 0), (3, 3))
    ]

    grants = cache.step(Step(offers=offers))

    assert [grant.chunks for grant in grants] == [[0, 1], [], [0, 1, 2]]


@pytest.mark.parametrize(
    "ask",
    [
        Ask("r", b"n" * 16, prompt(1, 1), 0, 17),
        Ask("r", SPACE.digest, b"short", 0, 17),
        Ask("r", SPACE.digest, prompt(1, 1), 40, 17),
        Ask("r", SPACE.digest, prompt(1, 1), -1, 17),
        Ask("r" * 2000, SPACE.digest, prompt(1, 1), 0, 17),
        Ask("r", SPACE.digest, prompt(1, 1), 0, (1 << 64) - 1),
    ],
    ids=["namespace", "keys", "too-local", "negative", "long-name", "endless"],
)
def test_nonsense_is_refused_and_the_cache_goes_on(cache: Cache, ask: Ask) -> None:
    """A request that cannot be meant is refused; the next one is served."""
    with pytest.raises(REFUSED):
        cache.ask(ask)

    assert cache.ask(question(prompt(1, 1))).lease == 0
    assert cache.status()["counters"]["asked_tokens"] < 100


@pytest.mark.parametrize(
    "more",
    [
        {"backlog_tokens": -1},
        {"backlog_tokens": 1 << 62},
        {"backlog_tokens": 5, "backlog_pairs": float("nan")},
        {"backlog_tokens": 5, "backlog_pairs": -1.0},
    ],
    ids=["negative", "endless", "no-number", "below-nothing"],
)
def test_a_backlog_that_cannot_be_counts_as_none(cache: Cache, more: dict[str, float]) -> None:
    """What an engine says of its work is believed only if it can be true; asking works anyway."""
    keys = prompt(1, 2)
    put(cache, SPACE, keys, payloads(keys))
    asked = msgspec.structs.replace(question(keys, "odd"), layers=-5, requests=-5, **more)
    busy = msgspec.structs.replace(question(keys, "busy"), backlog_tokens=1000)

    assert cache.ask(asked).decision.backlog_s == 0.0
    assert cache.ask(busy).decision.backlog_s == pytest.approx(1.0)


def test_a_step_with_a_bad_offer_still_ends_leases(cache: Cache) -> None:
    """Fills count even when an offer beside them is nonsense: pages must not leak."""
    keys = prompt(1, 2)
    (grant,) = cache.step(Step(offers=[Offer("r", SPACE.digest, ROOT, keys)]))

    with pytest.raises(REFUSED):
        cache.step(Step(fills=[Fill(grant.lease, 2)], offers=[Offer("r", SPACE.digest, b"", keys)]))

    assert cache.ask(question(keys)).chunks == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e308])
def test_impossible_timings_teach_nothing(cache: Cache, value: float) -> None:
    """A timing that is no number would bend every later estimate; it is left out."""
    before = cache.status()["costs"]
    cache.step(Step(timings=[Timing(SPACE.digest, 100, value, 0.1)]))
    cache.step(Step(timings=[Timing(SPACE.digest, 100, 5000.0, value)]))

    assert cache.status()["costs"] == before


def test_timings_are_learned(cache: Cache) -> None:
    """Measured steps change what computing is believed to cost."""
    for _ in range(20):
        cache.step(Step(timings=[Timing(SPACE.digest, 100, 5000.0, 1.0)]))

    assert cache.status()["costs"]["namespaces"]["tiny"]["samples"] == 20


def test_too_large_an_object_cannot_join(cache: Cache) -> None:
    """A namespace whose objects exceed the arena is refused with what to change."""
    layout = Layout(16, 16, (Group(GroupKind.FULL, (1 << 21,)),))

    with pytest.raises(ConfigError, match=r"dram\.size"):
        cache.join(Namespace(b"L" * 16, "large", layout))


def test_one_namespace_has_one_layout(cache: Cache) -> None:
    """A second layout under the same digest is refused."""
    layout = Layout(16, 32, LAYOUT.groups)

    with pytest.raises(ConfigError, match="another layout"):
        cache.join(Namespace(SPACE.digest, "tiny", layout))


def test_decisions_are_explained(cache: Cache) -> None:
    """The last decisions can be read back, newest last, with what they took."""
    keys = prompt(1, 2)
    put(cache, SPACE, keys, payloads(keys))
    get(cache, SPACE, keys)
    cache.ask(question(prompt(2, 1), "other"))

    loaded, missed = cache.explain(2)

    assert loaded.choice is Choice.LOAD
    assert loaded.actual_s > 0
    assert (missed.request, missed.why) == ("other", Why.NO_MATCH)


def test_clear_drops_everything(cache: Cache) -> None:
    """After a clear nothing is found, in memory or on disk."""
    keys = prompt(1, 4)
    put(cache, SPACE, keys, payloads(keys))
    assert cache.flush(10)

    cache.clear(SPACE.digest)

    assert cache.ask(question(keys)).lease == 0
    assert cache.status()["levels"]["tiers"]["disk"]["used_bytes"] == 0


def test_clear_of_another_namespace_keeps_this_one(cache: Cache) -> None:
    """Only the named namespace is dropped; a name of the wrong length is refused."""
    keys = prompt(1, 2)
    put(cache, SPACE, keys, payloads(keys))

    cache.clear(OTHER.digest)
    with pytest.raises(REFUSED):
        cache.clear(b"odd")

    assert get(cache, SPACE, keys) == payloads(keys)


def test_flush_writes_to_disk(cache: Cache) -> None:
    """After a flush every object is on the disk tier too."""
    keys = prompt(1, 5)
    put(cache, SPACE, keys, payloads(keys))

    assert cache.flush(10)

    assert cache.status()["levels"]["tiers"]["disk"]["objects"] == 5


@pytest.mark.pain("K4", "D12")
def test_what_memory_lost_comes_from_disk(cache: Cache) -> None:
    """Far more than the arena holds can be read back once it was written."""
    prompts = [prompt(seed, 20) for seed in range(8)]
    for keys in prompts:
        put(cache, SPACE, keys, payloads(keys))
        assert cache.flush(10)

    assert cache.status()["counters"]["dropped"]["dram|evicted"] > 0
    assert [get(cache, SPACE, keys) for keys in prompts] == [payloads(keys) for keys in prompts]
    assert cache.status()["counters"]["hit_tokens"]["disk"] > 0


@pytest.mark.pain("O1")
def test_status_adds_up(cache: Cache) -> None:
    """Levels and counters tell what was done, exactly."""
    keys = prompt(1, 3)
    put(cache, SPACE, keys, payloads(keys))
    get(cache, SPACE, keys)

    status = cache.status()

    assert status["levels"]["clients"] == 1
    assert status["levels"]["leases"] == {"load": 0, "store": 0}
    assert status["levels"]["tiers"]["dram"]["used_bytes"] == 3 * 3 * PAGE
    assert status["counters"]["hit_tokens"] == {"dram": 48}
    assert status["counters"]["asked_tokens"] == 49
    assert status["arena"]["pages"] == (1 << 20) // PAGE


def test_the_arena_is_shared_memory(cache: Cache) -> None:
    """Pages start at the address, are page aligned and as many as configured."""
    assert len(cache.pages) == 1 << 20
    assert cache.page_bytes == PAGE
    assert cache.address % PAGE == 0


def test_closed_is_unavailable(cache: Cache) -> None:
    """After close every verb says so, and closing again does nothing."""
    keys = prompt(1, 1)
    (grant,) = cache.step(Step(offers=[Offer("r", SPACE.digest, ROOT, keys)]))
    cache.close()
    cache.close()

    with pytest.raises(CacheUnavailable):
        cache.ask(question(keys))
    assert cache.progress(grant.lease)[1]


@pytest.mark.pain("M2")
def test_pages_return_when_leases_end(cache: Cache) -> None:
    """Failed stores and releases leave no page taken and no lease alive."""
    for seed in range(20):
        (grant,) = cache.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(seed, 10))]))
        cache.step(Step(fills=[Fill(grant.lease, 0)]))

    levels = cache.status()["levels"]

    assert levels["pages_free"] == (1 << 20) // PAGE
    assert levels["leases"]["store"] == 0
    assert eventually(lambda: cache.status()["levels"]["blocks"] == 0)


def test_a_namespace_keeps_the_size_that_the_disk_knows(tmp_path: Path) -> None:
    """Objects found on disk fix the size of their namespace; another size cannot join it."""
    config = settings(tmp_path, disk=True)
    store = Store.open(config)
    store.join(SPACE)
    put(store, SPACE, prompt(1, 2), payloads(prompt(1, 2)))
    store.close()
    store = Store.open(config)
    other = Layout(16, 16, (Group(GroupKind.FULL, (500,)),))

    with pytest.raises(ConfigError, match="another size"):
        store.join(Namespace(SPACE.digest, "tiny", other))

    store.join(SPACE)
    assert get(store, SPACE, prompt(1, 2)) == payloads(prompt(1, 2))
    store.close()


@pytest.mark.parametrize(
    "space",
    [
        Namespace(b"short", "x", LAYOUT),
        Namespace(b"t" * 16, "x", LAYOUT, float("nan")),
        Namespace(b"t" * 16, "x", LAYOUT, 1e308),
        Namespace(b"t" * 16, "x" * 1025, LAYOUT),
        Namespace(b"t" * 16, "x", Layout(16, 16, (Group(GroupKind.FULL, (1,) * 16385),))),
    ],
    ids=["digest", "token-time", "endless", "long-name", "layers"],
)
def test_what_is_no_namespace_is_refused(cache: Cache, space: Namespace) -> None:
    """A digest of the wrong length or an impossible first guess never reaches the brain."""
    with pytest.raises(ConfigError):
        cache.join(space)

    assert get(cache, SPACE, prompt(1, 1)) == []


def test_there_is_a_bound_on_namespaces(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """One namespace too many is refused with what to do; those that are open go on."""
    monkeypatch.setattr("kvwise.live.node.SPACES_MAX", 3)
    for number in range(2):
        cache.join(Namespace(bytes([number]) * 16, f"n{number}", LAYOUT))

    with pytest.raises(ConfigError, match="3 namespaces are open"):
        cache.join(Namespace(b"\7" * 16, "more", LAYOUT))

    cache.join(Namespace(b"\0" * 16, "n0", LAYOUT))
    assert put(cache, SPACE, prompt(1, 1), payloads(prompt(1, 1))) == 1


@pytest.mark.pain("C11")
def test_absurd_measurements_of_a_load_break_nothing(cache: Cache) -> None:
    """A release that claims what no link can do leaves counters and costs that can be printed."""
    keys = prompt(1, 2)
    put(cache, SPACE, keys, payloads(keys))
    for number in range(3):
        plan = cache.ask(question(keys, f"r{number}"))
        cache.want(plan.lease, plan.chunks)
        cache.step(Step(releases=[Release(plan.lease, (1 << 64) - 1, 1, (1 << 64) - 1)]))

    status = cache.status()
    assert status["counters"]["read_bytes"]["dram"] <= 3 << 40
    assert math.isfinite(status["costs"]["namespaces"]["tiny"]["device_bytes_per_s"])
