"""What would change a verdict: it does so at the value that is said, and not before it."""

from __future__ import annotations

from dataclasses import replace

from kvwise.planner.advise import decide, routes
from kvwise.planner.bill import chosen, net_usd
from kvwise.planner.sensitivity import KNOBS, others, swings, with_changes
from kvwise.planner.site import Site, Verdict
from tests.planner.support import KNOWN, by_boundary, demand_of, site_of
from tests.sim.replay.support import made
from tests.sim.trace.support import quiet

CLOSE = 1.03


def small() -> Site:
    """A host whose memory is not enough for the chats that are made up."""
    return replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9, drive_bytes=1e12)


def test_verdicts_change_where_it_is_said() -> None:
    """At the value that is named the verdict is the one named, and a little nearer it is not."""
    demand, site = demand_of(made(1_500, ("chat",))), replace(small(), hosts=2)
    routed = routes(site, demand, quiet)
    decisions = with_changes(site, demand, decide(site, demand, routed), routed)
    knobs = {knob.name: knob for knob in KNOBS}
    named = set()
    for one in decisions:
        for change in one.changes:
            knob = knobs[change.knob]
            still = routed if knob.keeps_room else {}
            nearer = change.factor / CLOSE if change.factor > 1 else change.factor * CLOSE
            there, before = (
                by_boundary(decide(*knob.turn(site, demand, factor), still)).get(one.boundary)
                for factor in (change.factor, nearer)
            )
            assert (there.verdict if there else Verdict.NO) is change.becomes
            assert (before.verdict if before else Verdict.NO) is one.verdict
            assert change.becomes is not one.verdict
            named.add((one.boundary, change.knob))

    assert ("nvme", "drive rate") in named
    assert ("nvme", "drive price") in named
    assert ("quantise", "reuse") in named


def test_of_routing_nothing_is_said_where_sizes_change() -> None:
    """Requests were routed to what was decided on: other sizes tell nothing of router and tier."""
    demand = demand_of(made(1_500, ("chat",)))
    site = replace(small(), hosts=2, dram_most_bytes=200e9)
    routed = routes(site, demand, quiet)
    decisions = with_changes(site, demand, decide(site, demand, routed), routed)
    knobs = {knob.name: knob for knob in KNOBS}
    bought = {name: by_boundary(decisions)[name].numbers["bytes"] for name in chosen(decisions)}
    routing = [one for one in decisions if one.boundary in {"shared", "router"}]

    assert len(routing) == 2
    for change in (change for one in routing for change in one.changes):
        turned = decide(*knobs[change.knob].turn(site, demand, change.factor), routed)
        held = {name: by_boundary(turned)[name].numbers["bytes"] for name in chosen(turned)}
        assert held == bought


def test_swings_are_what_levels_save() -> None:
    """A dearer GPU makes the levels save more, a dearer drive less, and the widest come first."""
    demand, site = demand_of(made(1_500, ("chat",))), small()
    decisions = decide(site, demand, {})
    found = {one.knob.name: one for one in swings(site, demand, decisions)}
    middle = net_usd(decisions, chosen(decisions))

    assert chosen(decisions) == ("dram", "nvme")
    assert found["GPU price"].low_usd < middle < found["GPU price"].high_usd
    assert found["drive price"].low_usd > middle > found["drive price"].high_usd
    assert found["prefill time"].low_usd < middle < found["prefill time"].high_usd
    widths = [abs(one.high_usd - one.low_usd) for one in found.values()]
    assert widths == sorted(widths, reverse=True)


def test_other_hardware_is_decided_anew() -> None:
    """FP8 KV leaves nothing to compress, and there is a case for each other kind of hardware."""
    demand, site = demand_of(made(1_500, ("chat",))), small()
    found = {one.name: one for one in others(site, demand, KNOWN, "h100-sxm")}

    assert found["KV in FP8"].becomes["compression"] is Verdict.NO
    assert "memory behind dram-c2c" in found
    assert "drives of nvme-qlc" in found
    assert any("CXL" in name for name in found)
