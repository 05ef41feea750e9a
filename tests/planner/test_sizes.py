"""More memory in place of drives: taken where it saves more and may be had, else only said."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from kvwise.planner import below, sizes
from kvwise.planner.advise import decide
from kvwise.planner.bill import chosen, net_usd
from kvwise.planner.demand import Demand
from kvwise.planner.site import Decision, Site, Verdict
from kvwise.planner.sizes import MEMORY_MOST_BYTES, sized, weighed
from kvwise.planner.stack import Places, stack_of
from tests.planner.support import by_boundary, demand_of, site_of
from tests.sim.replay.support import made
from tests.sim.trace.support import load, published


@cache
def chats() -> Demand:
    """Chats that are made up."""
    return demand_of(made(1_500, ("chat",)))


def small(drive_usd: float = 50.0, most_bytes: float = 0.0) -> Site:
    """A host with too little memory for them, and drives at a price at which they pay."""
    site = replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9, drive_bytes=1e12)
    drive_tb = replace(site.prices.drive_tb, amount=drive_usd)
    prices = replace(site.prices, drive_tb=drive_tb)
    return replace(site, prices=prices, dram_most_bytes=most_bytes)


def dear(site: Site) -> Site:
    """The same where memory costs a hundred times as much."""
    amount = 100 * site.prices.dram_gb.amount
    dram_gb = replace(site.prices.dram_gb, amount=amount)
    return replace(site, prices=replace(site.prices, dram_gb=dram_gb))


def net(decisions: list[Decision]) -> float:
    """What the levels that are to be save beyond their cost."""
    return net_usd(decisions, chosen(decisions))


def test_more_memory_where_it_saves_more() -> None:
    """Of the sizes from what is given to 90 % of all hits none is better than what is taken."""
    site = small(500.0, MEMORY_MOST_BYTES)
    decisions = decide(site, chats(), {})
    found = by_boundary(decisions)
    dram, nvme = found["dram"], found["nvme"]
    taken = sized(site, chats())
    stack = stack_of(taken, chats(), decisions, Places())
    enough = below.enough_bytes(site, chats())
    others = {part * enough for part in (0.1, 0.25, 0.5, 1.0)} | {site.dram_bytes}
    nets = {one: net(decide(replace(small(500.0), dram_bytes=one), chats(), {})) for one in others}

    assert dram.numbers["bytes"] == taken.dram_bytes > site.dram_bytes
    assert net(decisions) >= max(nets[site.dram_bytes], nets[enough]) > 0
    assert nvme.verdict is Verdict.NO
    assert stack is not None
    assert stack["dram"]["size"] == f"{taken.dram_bytes / 1e9:.0f}GB"
    assert "disk" not in stack
    assert "so much, since 20 GB in each host" in dram.why
    assert dram.numbers["best_saves_more_usd_per_month"] == pytest.approx(
        net(decisions) - nets[site.dram_bytes]
    )


@pytest.mark.parametrize(("share", "is_said"), [(0.5, True), (1.0, False)])
def test_a_size_that_is_the_largest_weighed(
    *, share: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is given the largest size, with hits left, is told how to have more weighed."""
    enough = below.enough_bytes(small(), chats())
    monkeypatch.setattr(sizes, "MEMORY_MOST_BYTES", share * enough)
    site = replace(small(500.0, share * enough), drives=0, dram_bytes=1e9)
    why = by_boundary(decide(site, chats(), {}))["dram"].why

    assert "so much, since" in why
    assert ("is weighed only if --dram gives it" in why) is is_said


def test_memory_of_all_and_of_each() -> None:
    """Memory for all hits is shared by all hosts: each has its part, and the sum stays."""
    found = {}
    for hosts in (1, 2, 4):
        site = replace(small(), hosts=hosts, dram_bytes=1e13, drives=0)
        found[hosts] = by_boundary(decide(site, chats(), {}))["dram"]
    whole = found[1].numbers["bytes"]

    assert "in each" not in found[1].why
    for hosts in (2, 4):
        assert found[hosts].numbers["bytes"] == pytest.approx(whole, abs=hosts * 1e9)
        each, both = re.findall(r"(\d+) GB", found[hosts].why)[:2]
        assert int(each) == pytest.approx(int(both) / hosts, abs=1)
        assert "in each host (" in found[hosts].why
        assert "of all hits, however many hosts share it" in found[hosts].why


def test_drives_where_memory_is_dear() -> None:
    """Where more memory costs more than it saves, what is given stays and nothing is said."""
    site = dear(small(most_bytes=MEMORY_MOST_BYTES))
    found, plain = (
        by_boundary(decide(one, chats(), {})) for one in (site, replace(site, dram_most_bytes=0.0))
    )

    assert sized(site, chats()).dram_bytes == site.dram_bytes
    assert found["nvme"].verdict is Verdict.YES
    assert {name: one.why for name, one in found.items()} == {
        name: one.why for name, one in plain.items()
    }
    assert "best_bytes_per_host" not in found["dram"].numbers


def test_memory_that_may_not_be_had_is_said() -> None:
    """A host that has no more keeps its drives; whoever asks for what is said saves as much."""
    site = small(400.0)
    decisions = decide(site, chats(), {})
    found = by_boundary(decisions)
    words = re.search(r"would save \$([\d,.]+) a month more: --dram (\d+)GB", found["nvme"].why)

    assert (found["dram"].verdict, found["nvme"].verdict) == (Verdict.YES, Verdict.YES)
    assert found["dram"].numbers["bytes"] == site.dram_bytes
    assert words is not None
    asked = replace(site, dram_bytes=float(words[2]) * 1e9)
    assert net(decide(asked, chats(), {})) - net(decisions) == pytest.approx(
        float(words[1].replace(",", "")), abs=0.6
    )


def test_without_drives_it_is_said_of_memory() -> None:
    """Where there are no drives to replace, memory's own line says what more of it would save."""
    found = by_boundary(decide(replace(small(), drives=0), chats(), {}))

    assert re.search(r"in each host would save \$[\d,.]+ a month more: --dram", found["dram"].why)
    assert found["nvme"].why == "no drives are given"


@pytest.mark.parametrize("given_bytes", [0.0, 1e9, 1e14])
def test_a_choice_is_taken_once(given_bytes: float) -> None:
    """What is taken is no less than what is given, within what may be had, and stays as it is."""
    site = replace(small(most_bytes=100e9), dram_bytes=given_bytes)
    taken = sized(site, chats())
    found = weighed(site, chats())

    assert given_bytes <= taken.dram_bytes <= max(given_bytes, 100e9)
    assert sized(taken, chats()) == taken
    assert found.given.net_usd <= found.taken.net_usd <= found.best.net_usd


def test_the_known_chat_cluster() -> None:
    """On three hosts 1,758 GB and no drives save some $1,800 a month more than 1 TB and four."""
    demand = demand_of(load(published("mooncake_conversation_trace.jsonl.gz")))
    site = replace(site_of(), hosts=3, dram_most_bytes=MEMORY_MOST_BYTES)
    found = by_boundary(decide(site, demand, {}))

    assert found["dram"].numbers["bytes"] == pytest.approx(3 * 1.758e12, rel=0.001)
    assert found["dram"].numbers["best_saves_more_usd_per_month"] == pytest.approx(1_800, rel=0.1)
    assert found["nvme"].verdict is Verdict.NO
    assert found["nvme"].numbers["written_tb_per_day"] == pytest.approx(749, rel=0.005)
    assert "in place of so much memory they would save" in found["nvme"].why
