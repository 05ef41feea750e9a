"""How much memory each host is best given: what there is, or more in place of drives. It buys none.

More memory and drives hold the same blocks. So each size is decided on with the drives behind it,
hosts as one cache, and the one that saves most beyond its cost is the best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from kvwise.planner import below
from kvwise.planner.demand import Demand
from kvwise.planner.site import Decision, Site, Verdict, size_text, usd

MEMORY_MOST_BYTES = 2e12
"""What hosts of several GPUs are sold with: more than that is weighed where the user gives it."""

GB = 1e9


@dataclass(frozen=True, slots=True)
class Size:
    """One size of memory with the drives that pay behind it.

    Attributes:
        host_bytes: of each host.
        has_drives: whether drives are to be.
        net_usd: what memory and drives save in a month beyond their cost.
    """

    host_bytes: float
    has_drives: bool
    net_usd: float


@dataclass(frozen=True, slots=True)
class Weighed:
    """What is given, beside more.

    Attributes:
        given: the memory that a host has.
        taken: the best of what it may have.
        best: the best of all sizes that were looked at, whether it may have them or not.
    """

    given: Size
    taken: Size
    best: Size


def weighed(site: Site, demand: Demand) -> Weighed:
    """Weigh what is given against one or two larger sizes from the curve, up to 90 % of all hits.

    Of sizes that save as much, the smallest counts.
    """
    given = _size(site, demand, site.dram_bytes)
    enough_bytes = below.enough_bytes(site, demand)
    allowed = max(site.dram_bytes, site.dram_most_bytes)
    tops = {min(enough_bytes, most) for most in (allowed, MEMORY_MOST_BYTES)}
    larger = {one for top in tops for one in _between(site.dram_bytes, top)}
    sizes = [given, *(_size(site, demand, one) for one in sorted(larger))]
    taken = [one for one in sizes if one.host_bytes <= allowed]
    return Weighed(given, _best(taken), _best(sizes))


def sized(site: Site, demand: Demand) -> Site:
    """The same with the memory that is best of what it may have, and no choice any more."""
    if site.dram_most_bytes <= site.dram_bytes:
        return site
    return replace(site, dram_bytes=weighed(site, demand).taken.host_bytes, dram_most_bytes=0.0)


def told(site: Site, found: Weighed, memory: Decision, disk: Decision) -> tuple[Decision, Decision]:
    """Memory and drives, with what more memory comes to said where it matters.

    `site` is what was given; the decisions are on what was taken.
    """
    given, taken, best = found.given, found.taken, found.best
    if best == given:
        return memory, disk
    numbers = {
        **memory.numbers,
        "bytes_given": site.memory_bytes,
        "best_bytes_per_host": best.host_bytes,
        "best_saves_more_usd_per_month": best.net_usd - given.net_usd,
    }
    memory = replace(memory, numbers=numbers)
    if taken == given:
        advice = _advice(given, best)
        if disk.verdict in {Verdict.YES, Verdict.MAYBE}:
            return memory, replace(disk, why=disk.why + advice)
        return replace(memory, why=memory.why + advice), disk
    if memory.verdict is not Verdict.YES:
        return memory, disk
    less_usd = taken.net_usd - given.net_usd
    drives = f" with {site.drives} x {site.drive.name}" if given.has_drives else ""
    why = (
        f"{memory.why}; so much, since {size_text(given.host_bytes)} in each host{drives} would "
        f"save {usd(less_usd)} a month less{_capped(taken, memory)}"
    )
    if given.has_drives and disk.verdict is not Verdict.YES:
        less = f"; in place of so much memory they would save {usd(less_usd)} a month less"
        disk = replace(disk, why=disk.why + less)
    return replace(memory, why=why), disk


def _advice(given: Size, best: Size) -> str:
    """What to ask for, where more memory than there may be is better."""
    without = " and no drives" if given.has_drives and not best.has_drives else ""
    return (
        f"; {size_text(best.host_bytes)} in each host{without} would save "
        f"{usd(best.net_usd - given.net_usd)} a month more: --dram {best.host_bytes / GB:.0f}GB"
    )


def _capped(taken: Size, memory: Decision) -> str:
    """That larger sizes were not looked at, where they might be better."""
    if taken.host_bytes < MEMORY_MOST_BYTES or memory.numbers["share_of_hits"] >= below.ENOUGH:
        return ""
    return f"; more than {size_text(MEMORY_MOST_BYTES)} is weighed only if --dram gives it"


def _between(least_bytes: float, most_bytes: float) -> Iterable[float]:
    """The larger size, and one on the way to it, in whole GB."""
    if most_bytes <= least_bytes:
        return ()
    middle = ceil((max(least_bytes, most_bytes / 4) * most_bytes) ** 0.5 / GB) * GB
    return (middle, most_bytes) if least_bytes < middle < most_bytes else (most_bytes,)


def _best(sizes: Iterable[Size]) -> Size:
    """The one that saves most; of equal ones the first."""
    return max(sizes, key=lambda one: one.net_usd)


def _size(site: Site, demand: Demand, host_bytes: float) -> Size:
    """A size, decided on as one cache of all hosts."""
    site = replace(site, dram_bytes=host_bytes, dram_most_bytes=0.0)
    memory = below.dram(site, demand, demand.saving(site.device_tokens))
    _, disk = below.behind(site, demand, memory)
    paying = [one.numbers for one in (memory, disk) if one.verdict is Verdict.YES]
    net = sum(one["saves_usd_per_month"] - one["costs_usd_per_month"] for one in paying)
    return Size(host_bytes, disk.verdict is Verdict.YES, net)
