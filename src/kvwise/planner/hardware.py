"""What machines are made of, from an editable file: GPUs, tiers that KV may come from, prices.

It measures nothing and looks nothing up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from datetime import date, timedelta
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from kvwise.errors import ConfigError
from kvwise.planner.fields import read_bounded

MARKS = ("measured", "spec", "assumed")

PROBED = "kvwise probe"
"""The source of what was measured on a host."""

HOST_MEMORY, OVER_LINK = "host-dram", "dram-pcie5"
"""Tiers: a host's memory as it copies itself, and as a GPU reads it over a link."""

PCIE5_GB_PER_S = 64.0
"""The link of `OVER_LINK`."""

LINK_REACHED = 0.86
"""Of a link's rate, what copies reach, as on the link that was measured."""

RATE_MIN, RATE_MAX = 1e-3, 1e9
"""Bounds of what must be given: rates and sizes beyond are a slip of the pen; a price may be 0."""
FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """Where numbers are from: when they were looked up, by whom, and how far to trust them."""

    as_of: str
    source: str
    mark: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; rates are decimal, of one direction, and 0 where it has no such thing.

    Attributes:
        hbm_gb, hbm_gb_per_s: its memory.
        bf16_tflops, fp8_tflops, fp4_tflops: dense products.
        host_link_gb_per_s: to the host's memory.
        scale_up_gb_per_s: to the other GPUs of its host.
    """

    name: str
    hbm_gb: float
    hbm_gb_per_s: float
    bf16_tflops: float
    host_link_gb_per_s: float
    origin: Origin
    fp8_tflops: float = 0.0
    fp4_tflops: float = 0.0
    scale_up_gb_per_s: float = 0.0

    @property
    def between_gb_per_s(self) -> float:
        """To other GPUs, over whatever is fastest."""
        return self.scale_up_gb_per_s or self.host_link_gb_per_s


@dataclass(frozen=True, slots=True)
class TierPart:
    """One unit of what a tier is made of: a host's memory, a drive, an adapter.

    Attributes:
        read_gb_per_s, write_gb_per_s: of one unit.
        latency_us: before the first byte.
        dwpd: drive writes a day that it is sold for; 0 where writing wears nothing.
        per_gpu: whether each GPU has one of its own.
    """

    name: str
    about: str
    read_gb_per_s: float
    write_gb_per_s: float
    origin: Origin
    latency_us: float = 0.0
    dwpd: float = 0.0
    per_gpu: bool = False

    def load_s(self, size_bytes: float) -> float:
        """Seconds in which one unit gives so many bytes, with nothing else to do."""
        return self.latency_us / 1e6 + size_bytes / (self.read_gb_per_s * 1e9)


@dataclass(frozen=True, slots=True)
class Price:
    """What something costs.

    Attributes:
        amount: how much.
        unit: of what, and for what.
    """

    name: str
    amount: float
    unit: str
    origin: Origin


Part = TypeVar("Part", Gpu, TierPart, Price)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Everything that is known, by name."""

    gpus: Mapping[str, Gpu]
    tiers: Mapping[str, TierPart]
    prices: Mapping[str, Price]

    def gpu(self, name: str) -> Gpu:
        """A GPU.

        Raises:
            ConfigError: there is none of that name.
        """
        found = self.gpus.get(name.lower())
        if found is None:
            begun = [one for one in sorted(self.gpus) if one.startswith(f"{name.lower()}-")]
            near = begun or get_close_matches(name.lower(), self.gpus, n=1) or sorted(self.gpus)
            raise ConfigError(f"there is no GPU {name!r}; hint: there is {', '.join(near)}")
        return found

    def memory(self, name: str) -> TierPart:
        """The host's memory as a GPU of that name loads from it.

        That is over the link between them, and no faster than what was measured on the host: by a
        GPU, or else by the host's own copies.
        """
        gpu, measured = self.gpu(name), self.tiers[OVER_LINK]
        is_here = measured.origin.source == PROBED
        if gpu.host_link_gb_per_s == PCIE5_GB_PER_S or (is_here and gpu.origin.source == PROBED):
            link = measured
        else:
            link = _over(gpu)
        bound = measured if is_here else self.tiers.get(HOST_MEMORY)
        return bound if bound is not None and bound.read_gb_per_s < link.read_gb_per_s else link


def _over(gpu: Gpu) -> TierPart:
    """Memory behind a link of which only the data sheet is known."""
    rate = round(LINK_REACHED * gpu.host_link_gb_per_s, 1)
    origin = Origin(gpu.origin.as_of, f"{LINK_REACHED:.0%} of the link of {gpu.name}", "assumed")
    return TierPart(
        name="dram",
        about=f"host memory over the link of {gpu.name}",
        read_gb_per_s=rate,
        write_gb_per_s=rate,
        origin=origin,
        per_gpu=True,
    )


def read_hardware(path: Path | None = None, today: date | None = None) -> Hardware:
    """What kvwise comes with, with the entries of a file of one's own instead of or beside it.

    Where it is told which day it is, nothing may have been looked up later.

    Raises:
        ConfigError: the file cannot be read, or an entry is wrong; the message names it.
    """
    text = resources.files("kvwise.planner").joinpath("hardware.toml").read_text("utf-8")
    sources = [("hardware.toml", tomllib.loads(text))]
    if path is not None:
        sources.append((str(path), _own(path)))
    gpus: dict[str, Gpu] = {}
    tiers: dict[str, TierPart] = {}
    prices: dict[str, Price] = {}
    for is_own, (where, values) in enumerate(sources):
        _check(where, values)
        gpus |= _entries(where, "gpu", Gpu, values)
        tiers |= _entries(where, "tier", TierPart, values)
        own = _entries(where, "price", Price, values)
        if is_own:
            for one in own.values():
                _check_price(where, one, prices, {"gpu-hour": gpus, "drive-tb": tiers})
        prices |= own
    if today is not None:
        parts: list[Gpu | TierPart | Price] = [*gpus.values(), *tiers.values(), *prices.values()]
        for part in parts:
            _check_day(part, today)
    return Hardware(gpus, tiers, prices)


def _own(path: Path) -> dict[str, Any]:
    """The contents of a file."""
    try:
        return tomllib.loads(read_bounded(path, FILE_BYTES_MAX).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def _check(where: str, values: dict[str, Any]) -> None:
    """Refuse a file that has other things."""
    foreign = set(values) - {"gpu", "tier", "price"}
    if foreign:
        raise ConfigError(f"{where}: there is no {min(foreign)!r}; hint: write gpu, tier or price")


def _entries(where: str, kind: str, make: type[Part], values: dict[str, Any]) -> dict[str, Part]:
    """GPUs, tiers or prices of a file."""
    table = values.get(kind, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {kind} is no table")
    found = {}
    for name, entry in table.items():
        at = f"{where}: {kind}.{name}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{at} is no table")
        found[name.lower()] = _entry(at, make, name.lower(), dict(entry))
    return found


def _entry(at: str, make: type[Part], name: str, entry: dict[str, Any]) -> Part:
    """One entry, checked."""
    told = [entry.pop(field, "") for field in ("as_of", "source", "mark")]
    _check_date(at, str(told[0]))
    origin = Origin(str(told[0]), str(told[1]), str(told[2]) or "assumed")
    if origin.mark not in MARKS:
        raise ConfigError(f"{at}: mark {origin.mark!r} is none of {', '.join(MARKS)}")
    known = {one.name: one for one in fields(make) if one.name not in ("name", "origin")}
    for field, value in entry.items():
        if field not in known:
            near = get_close_matches(field, known, n=1) or sorted(known)
            raise ConfigError(f"{at}: there is no {field!r}; hint: there is {', '.join(near)}")
        least = 0.0 if field == "amount" else RATE_MIN
        if not _fits(value, known[field], least):
            raise ConfigError(f"{at}: {field} cannot be {value!r:.40}")
    missing = [name for name, one in known.items() if one.default is MISSING and name not in entry]
    if missing:
        raise ConfigError(f"{at}: {', '.join(missing)} must be given")
    return make(name=name, origin=origin, **entry)


def _check_date(at: str, said: str) -> None:
    """Refuse a date that is none."""
    try:
        date.fromisoformat(said or "2026-11-30")
    except ValueError as error:
        raise ConfigError(f"{at}: as_of {said!r:.40} is no date; hint: 2026-11-30") from error


def _check_day(part: Gpu | TierPart | Price, today: date) -> None:
    """Refuse what is said to have been looked up on a day that is still to come everywhere."""
    said = part.origin.as_of
    if said and date.fromisoformat(said) > today + timedelta(days=1):
        raise ConfigError(
            f"{part.name}: as_of {said} is still to come; hint: the day it was looked up"
        )


def _check_price(
    where: str, price: Price, known: Mapping[str, Price], parts: Mapping[str, Collection[str]]
) -> None:
    """Refuse a price that no plan asks for, or in another unit than plans reckon in."""
    kind = next((one for one in parts if price.name.startswith(f"{one}-")), price.name)
    names = {one for one in known if one in parts or not one.startswith(tuple(parts))}
    names |= {f"{one}-{name}" for one, found in parts.items() for name in found}
    if price.name not in names:
        near = get_close_matches(price.name, names, n=3) or sorted(names & set(known))
        raise ConfigError(
            f"{where}: there is no price.{price.name}; hint: there is {', '.join(near)}"
        )
    unit = known[kind].unit
    if price.unit.strip().lower() != unit.lower():
        raise ConfigError(
            f"{where}: price.{price.name}: unit {price.unit!r:.60} is not what plans reckon in; "
            f'hint: convert the amount, and write unit = "{unit}"'
        )


def _fits(value: object, field: Field[Any], least: float) -> bool:
    """Whether a value is what a field takes; what must be given has a least value."""
    if field.type == "bool":
        return isinstance(value, bool)
    if field.type == "str":
        return isinstance(value, str)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return (value >= least if field.default is MISSING else value >= 0) and value <= RATE_MAX
