"""Recovery: named scenarios on the simulator, one misfortune each. None of them is random."""

from __future__ import annotations

import pytest

from kvwise.sim.faults import Fault, Upset
from kvwise.sim.scenario import LARGE
from kvwise.sim.workload import CHUNK_TOKENS
from tests.sim.support import CHUNKS, ms, prompt, scenario, served

MID_STORE_NS = ms(26.75)
"""Between the first step of `prompt(1, 0)`, which takes 26.7 ms, and the end of its copy."""

CHUNKS_TOKENS = CHUNKS * CHUNK_TOKENS


def test_without_misfortune_the_second_request_loads() -> None:
    """What the scenarios below start from: computed once, written once, loaded once."""
    world = served(scenario(prompt(1, 0), prompt(2, 500)))
    tallies = world.node.ledger.tallies
    assert world.engines[0].served.loaded_chunks == CHUNKS
    assert tallies.hit_tokens == {"dram": CHUNKS_TOKENS}
    assert tallies.read_bytes["disk"] == 0


@pytest.mark.pain("D4")
def test_a_restart_finds_everything_that_was_written() -> None:
    """After the daemon died with a quiet disk, the whole prompt is loaded from there."""
    died = Upset(ms(400), Fault.RESTART, lasts_ns=ms(10))
    world = served(scenario(prompt(1, 0), prompt(2, 500), upsets=(died,)))
    assert world.node.generation == 2
    assert world.engines[0].served.loaded_chunks == CHUNKS
    assert world.node.ledger.tallies.hit_tokens == {"disk": CHUNKS_TOKENS}


@pytest.mark.parametrize("after_us", range(26_000, 34_000, 250))
def test_a_restart_in_the_middle_of_writing_loses_a_tail_only(after_us: int) -> None:
    """Whenever the daemon dies, a prefix of what was stored is found again, and no torn record."""
    died = Upset(ms(after_us / 1000), Fault.RESTART, lasts_ns=ms(10))
    world = served(scenario(prompt(1, 0), prompt(2, 500), prompt(3, 900), upsets=(died,)))
    loaded = world.engines[0].served.loaded_chunks
    assert CHUNKS <= loaded <= 2 * CHUNKS
    assert world.engines[0].served.done == 3


def test_a_daemon_that_dies_during_a_load_costs_one_recompute() -> None:
    """The load fails within its deadline, the request computes, and the next one loads again."""
    crowd = [prompt(9, 200, talk=9), prompt(10, 250, talk=10)]
    died = Upset(ms(500.3), Fault.RESTART, lasts_ns=ms(10))
    made = scenario(
        prompt(1, 0), *crowd, prompt(2, 500), prompt(3, 2000), upsets=(died,), arena_objects=4
    )
    served_by = served(made).engines[0].served
    assert served_by.done == 5
    assert served_by.failed_loads == 1
    assert served_by.loaded_chunks == CHUNKS


def test_a_smaller_cap_after_a_restart_keeps_prefixes() -> None:
    """With half the room the first half of a prompt is still loaded."""
    shrunk = Upset(ms(400), Fault.SMALLER_CAP, lasts_ns=ms(10), share=0.5)
    world = served(scenario(prompt(1, 0), prompt(2, 500), upsets=(shrunk,), disk=CHUNKS))
    assert world.engines[0].served.loaded_chunks == CHUNKS // 2


def test_a_lost_tier_is_a_miss_and_fills_again() -> None:
    """Records that vanished are missing once; then they are computed, written and loaded again."""
    lost = Upset(ms(400), Fault.LOST_RECORDS, share=1.0)
    died = Upset(ms(1400), Fault.RESTART, lasts_ns=ms(10))
    crowd = [prompt(9, 300, talk=9)]
    made = scenario(
        prompt(1, 0), *crowd, prompt(2, 500), prompt(3, 1500), upsets=(lost, died), arena_objects=4
    )
    world = served(made)
    assert world.engines[0].served.failed_loads == 1
    assert world.engines[0].served.loaded_chunks == CHUNKS


def test_a_dead_tier_never_stops_an_engine() -> None:
    """While every read and write fails, requests are computed; afterwards they are loaded."""
    dead = Upset(0, Fault.DEAD_TIER, lasts_ns=ms(1000))
    requests = [prompt(n, 150 * n, talk=n % 3) for n in range(12)]
    world = served(scenario(*requests, upsets=(dead,), arena_objects=4))
    assert world.engines[0].served.done == 12
    assert world.engines[0].served.loaded_chunks > 0
    assert world.node.ledger.tallies.failures["disk|io"] > 0


def test_a_corrupt_block_is_dropped_and_written_anew() -> None:
    """A damaged record costs one failed load; its tail goes with it, and fresh bytes replace it."""
    rotten = Upset(ms(400), Fault.ROTTEN_RECORDS, share=1.0)
    crowd = [prompt(8, 300, talk=8), prompt(9, 1000, talk=9)]
    requests = (prompt(1, 0), *crowd, prompt(2, 500), prompt(3, 1500))
    world = served(scenario(*requests, upsets=(rotten,), arena_objects=4))
    tallies = world.node.ledger.tallies
    assert tallies.failures == {"disk|corrupt": CHUNKS}
    assert world.engines[0].served.failed_loads == 1
    assert tallies.hit_tokens == {"disk": CHUNKS_TOKENS}


def test_a_full_disk_refuses_writes_and_nothing_else() -> None:
    """While the disk is full the arena serves; once it has room again, writes go on."""
    full = Upset(0, Fault.FULL_TIER, lasts_ns=ms(2500))
    requests = [prompt(n, 100 * n, talk=n % 2) for n in range(60)]
    world = served(scenario(*requests, upsets=(full,)))
    tallies = world.node.ledger.tallies
    assert tallies.failures["disk|full"] > 0
    assert tallies.written_bytes["disk"] > 0
    assert tallies.hit_tokens["dram"] == 58 * CHUNKS_TOKENS


def test_a_frozen_writer_keeps_its_pages() -> None:
    """An engine that sleeps through every deadline in the middle of a store harms nobody."""
    frozen = Upset(MID_STORE_NS, Fault.CLIENT_FREEZE, lasts_ns=ms(60_000))
    world = served(scenario(prompt(1, 0), prompt(2, 100), upsets=(frozen,)))
    stored_bytes = world.node.ledger.tallies.written_bytes["dram"]
    assert stored_bytes == CHUNKS * LARGE.layout.object_bytes
    assert world.timeline.now_ns > ms(60_000)
    assert world.engines[0].served.done == 2
    assert world.engines[0].served.loaded_chunks == CHUNKS


def test_a_dead_client_leaves_nothing_behind() -> None:
    """What an engine was storing when it was killed is gone at once; its successor stores it."""
    died = Upset(MID_STORE_NS, Fault.CLIENT_DEATH)
    world = served(scenario(prompt(1, 0), prompt(2, 1000), prompt(3, 1500), upsets=(died,)))
    stored_bytes = world.node.ledger.tallies.written_bytes["dram"]
    assert stored_bytes == CHUNKS * LARGE.layout.object_bytes
    assert world.engines[0].served.done == 3
    assert world.engines[0].served.loaded_chunks == CHUNKS
