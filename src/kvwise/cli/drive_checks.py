"""How the drives of the disk tier wear, and what limits that. It writes nothing and sets nothing.

One finding for each drive that is seen under the configured directories, and one for the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvwise.cli.checks import Case, Finding, Grade
from kvwise.core.govern import LIFE_YEARS_MAX, YEAR_DAYS, life_years, pace_per_day
from kvwise.core.layout import OBJECT_BYTES_MIN
from kvwise.live.budget import read_all
from kvwise.live.drives import RATED_YEARS, Drive, Health, daily_bytes, drives_under, health_of
from kvwise.units import format_size

WORN_PERCENT = 90
LIFE_YEARS_MIN = 1.0

FILL_DAYS_MAX = 366.0
"""A budget that fills the disk tier no sooner is a mistake: no drive is rated for so little, and
what is cached is out of use by then."""


def check_drives(case: Case) -> Iterator[Finding]:
    """Every finding about wear; none without a disk tier."""
    if not case.config.disk.paths:
        return
    drives = drives_under(case.config.disk.paths, case.host)
    saved, damaged = read_all([Path(path) for path in case.config.disk.paths])
    pace_bytes = pace_per_day(saved.balance) if saved is not None else 0.0
    for drive in drives:
        health = health_of(drive)
        yield check_wear(drive, health, case, pace_bytes / len(drives))
    yield check_budget(case, drives)
    for path, why in damaged.items():
        advice = "nothing, if the next start may begin with an empty budget; else bring it back"
        yield Finding("write budget", Grade.WARN, f"{path} says nothing: {why}", advice)


def check_wear(drive: Drive, health: Health, case: Case, pace_bytes: float) -> Finding:
    """How worn a drive is, and how long it lasts at a pace of so many bytes a day."""
    name, disk = "drive wear", case.config.disk
    seen = f"{drive.name}: {format_size(drive.size_bytes)}"
    if drive.spins and not drive.virtual:
        return Finding(name, Grade.OK, f"{seen}, a hard disk, which does not wear by writing")
    if health.why:
        seen = f"{seen}, {health.why}"
    else:
        written = format_size(health.written_bytes)
        seen = f"{seen}, {health.model}, {health.used_percent} % worn, {written} written so far"
    rated = drive.size_bytes * disk.dwpd * RATED_YEARS * YEAR_DAYS
    left_bytes = health.left_bytes(rated)
    years = life_years(left_bytes, pace_bytes, disk.write_amplification)
    if left_bytes and pace_bytes:
        pace = format_size(pace_bytes)
        more = "over " if years >= LIFE_YEARS_MAX else ""
        seen = f"{seen}; {pace} a day last {more}{years:.1f} years"
    if health.used_percent >= WORN_PERCENT:
        advice = "replace the drive, or take its directory out of disk.paths"
        return Finding(name, Grade.WARN, seen, advice)
    if left_bytes and pace_bytes and years < LIFE_YEARS_MIN:
        advice = "lower write.per_day or disk.dwpd, or raise write.min_chance"
        return Finding(name, Grade.WARN, seen, advice)
    return Finding(name, Grade.OK, seen)


def check_budget(case: Case, drives: tuple[Drive, ...]) -> Finding:
    """What may be written in a day; nothing to warn of where nothing here wears."""
    name, limit = "write budget", daily_bytes(case.config, case.host)
    if limit:
        return _weighed(case, limit)
    seen = "nothing limits what is written to disk in a day"
    if drives and all(drive.spins or drive.virtual for drive in drives):
        return Finding(name, Grade.OK, f"{seen}; no drive here is seen to wear")
    advice = (
        "set disk.dwpd to what the data sheet says (about 1 for drives of servers, 0.3 for others),"
        " or write.per_day"
    )
    return Finding(name, Grade.WARN, seen, advice)


def _weighed(case: Case, limit: int) -> Finding:
    """A budget of so many bytes a day; a warning where a disk tier can do nothing with it."""
    name, size = "write budget", case.config.disk.size
    seen = f"{format_size(limit)} may be written to disk in a day"
    days = size / limit
    if limit >= OBJECT_BYTES_MIN and days <= FILL_DAYS_MAX:
        return Finding(name, Grade.OK, seen)
    if limit < OBJECT_BYTES_MIN:
        seen += f", less than one object of the usual {format_size(OBJECT_BYTES_MIN)}"
    else:
        seen += f": disk.size of {format_size(size)} is full after {days / YEAR_DAYS:,.1f} years"
    key = "write.per_day" if limit == case.config.write.per_day else "disk.dwpd"
    advice = (
        f"raise {key}: drives are rated for 0.3 to 3 times what they hold in a day; "
        "0 is no limit, and a cache that must not write does without disk.paths"
    )
    return Finding(name, Grade.WARN, seen, advice)
