"""The bench of choosing: its arithmetic, and the daemon that is slow and told its policy."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.never_worse import WAYS, Cell, Fixed, flip, notes_of
from kvwise.bench.slow_serve import IDLE_NS, Link, Orders, Standing
from kvwise.core.words import Choice, Decision, Why
from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from kvwise.live.clock import now_ns
from kvwise.units import MIB
from tests.bench.fakes import Notes
from tests.live.support import SPACE, payloads, prompt, question

LOADED = Decision(
    now_ns=1,
    request="r",
    namespace="t",
    total_tokens=1001,
    local_tokens=0,
    match_tokens=1000,
    load_tokens=1000,
    tiers={"disk": 1000},
    load_s=0.5,
    recompute_s=0.768,
    margin=0.0,
    choice=Choice.LOAD,
    why=Why.FASTER,
    actual_s=0.4,
)
FIXED = Fixed(expected_s=0.288, measured_s=0.27)
COMPUTED = replace(LOADED, load_tokens=0, tiers={}, choice=Choice.RECOMPUTE, actual_s=0.0)


def cell(rate: float, *, loads: bool, auto_ms: float = 510.0, jitter_s: float = 0.0) -> Cell:
    """A rate at which loading takes half a second, computing three quarters, and auto so long."""
    times = {"load": [500.0] * 3, "recompute": [750.0] * 3, "auto": [auto_ms] * 3}
    chosen = LOADED if loads else COMPUTED
    decisions = {"load": [LOADED] * 3, "recompute": [COMPUTED] * 3, "auto": [chosen] * 3}
    return Cell(rate, jitter_s, times, decisions)


def test_a_cell_is_judged_by_the_better_policy() -> None:
    """The ratio is to loading here; break-even and estimates come from times and decisions."""
    row = cell(50.0, loads=True).row(FIXED)
    assert (row["ttft_ratio"], row["auto_loads"], row["disk_share"]) == (1.02, 3, 1.0)
    assert row["break_even_expected_mb_per_s"] == row["break_even_measured_mb_per_s"] == 48.0
    assert row["load_estimate_ratio"] == 1.25
    one = row["requests"]["load"][0]
    assert (one["load_ms"], one["compute_ms"], one["load_took_ms"]) == (500.0, 768.0, 400.0)


def test_where_loading_never_pays_there_is_no_break_even() -> None:
    """Computing is quicker than the fastest load: no rate would do."""
    slow = Fixed(expected_s=0.8, measured_s=0.8)
    row = cell(50.0, loads=False).row(slow)
    assert row["break_even_expected_mb_per_s"] is row["break_even_measured_mb_per_s"] is None
    assert flip([cell(50.0, loads=False)], slow)["loads_from_measured"] is None


def test_prompts_that_are_stored_in_part_are_told() -> None:
    """A chunk less is twice the time of a hit, under any policy: no difference between them."""
    alike, other = cell(50.0, loads=True), cell(50.0, loads=True)
    assert len(notes_of([alike, other])) == 1
    other.decisions["load"] = [LOADED, replace(LOADED, match_tokens=968), LOADED]
    assert other.row(FIXED)["found_tokens"] == [968, 1000]
    assert "968 to 1000 tokens stored" in notes_of([alike, other])[-1]


def test_what_was_left_in_memory_is_no_load_from_disk() -> None:
    """A choice that loads one chunk from memory and computes the rest counts as computing."""
    some = cell(50.0, loads=False)
    some.decisions["auto"] = [replace(LOADED, load_tokens=32, tiers={"dram": 32})] * 3
    assert some.row(FIXED)["auto_loads"] == 0


@pytest.mark.parametrize(
    ("loading", "computing", "flips", "right"),
    [
        ((0.0, 100.0, 55.0), (45.0, 20.0), (0.94, 1.15), True),
        ((0.0, 100.0), (64.0, 40.0, 20.0), (1.33, 2.08), False),
        ((0.0, 100.0, 36.0), (20.0,), (0.42, 0.75), False),
        ((0.0, 100.0, 45.0), (55.0, 20.0), (1.15, 0.94), True),
        ((0.0,), (45.0,), (0.94, None), False),
    ],
)
def test_where_the_choice_flips(
    loading: tuple[float, ...],
    computing: tuple[float, ...],
    flips: tuple[float, float | None],
    right: bool,
) -> None:
    """Near the break-even of 48 MB/s, or not; a jittered cell does not mislead."""
    cells = [cell(rate, loads=True) for rate in loading]
    cells += [cell(rate, loads=False) for rate in computing]
    row = flip([*cells, cell(200.0, loads=False, jitter_s=0.1)], FIXED)
    for way in WAYS:
        assert (row[f"computes_up_to_{way}"], row[f"loads_from_{way}"]) == flips
        assert row[f"is_where_{way}"] is right


def test_a_daemon_is_slow_and_chooses_as_ordered(tmp_path: Path) -> None:
    """The policy changes between two requests; a rate changes what the next read is held to."""
    orders, keys = tmp_path / "orders.json", prompt(1, 8)
    Orders("recompute").write(orders)
    settings = {"KVWISE_DRAM_PAGE": "4096", "KVWISE_DISK_MIN_FREE": str(MIB)}
    options = DaemonOptions(
        tmp_path / "kvwise.sock",
        32 * 4096,
        tmp_path / "daemon.log",
        disk=tmp_path / "disk",
        disk_bytes=16 * MIB,
        settings=settings | {"KVWISE_DISK_SEGMENT": str(4 * MIB)},
        program=("kvwise.bench.slow_serve", str(orders)),
    )
    with (
        Daemon.start(options, Notes()) as daemon,
        closing(Client(str(options.socket), "test", timeout_s=5.0)) as client,
    ):
        client.join(SPACE)
        put(client, SPACE, keys, payloads(keys))
        assert daemon.written(20.0)
        other = prompt(2, 10)
        put(client, SPACE, other, payloads(other))
        assert client.ask(question(keys)).decision.why is Why.FORCED
        assert not client.ask(question(keys)).chunks
        Orders("load", bytes_per_s=len(payloads(keys)) * 9000 / 0.05).write(orders)
        begin_s = time.monotonic()
        assert get(client, SPACE, keys) == payloads(keys)
        assert time.monotonic() - begin_s >= 0.04


def test_the_first_byte_of_a_load_takes_its_time(tmp_path: Path) -> None:
    """What is asked for right behind it follows at the rate; after a pause there is one more."""
    orders = tmp_path / "orders.json"
    Orders("load", bytes_per_s=1e6, first_byte_s=0.1).write(orders)
    link, begin_ns = Link(Standing(orders)), now_ns()

    first_ns, second_ns = link.reserve(1000), link.reserve(2000)
    assert first_ns >= begin_ns + 101_000_000
    assert second_ns == pytest.approx(first_ns + 2_000_000, abs=1000)

    while now_ns() <= second_ns + IDLE_NS:
        time.sleep(0.01)
    assert link.reserve(0) >= second_ns + IDLE_NS + 100_000_000
