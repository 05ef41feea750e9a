"""What levels cost and save in a month, and verdicts that a price turns."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from kvwise.errors import ConfigError
from kvwise.planner.below import decided
from kvwise.planner.bill import bill, chosen, net_usd
from kvwise.planner.hardware import read_hardware
from kvwise.planner.prices import Prices
from kvwise.planner.site import Site, Verdict
from tests.planner.support import KNOWN, advise, by_boundary, demand_of, site_of
from tests.sim.replay.support import made
from tests.sim.trace.support import quiet


def small() -> Site:
    """A host whose memory is not enough for the chats that are made up."""
    return replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9, drive_bytes=1e12)


def priced(site: Site, **amounts: float) -> Site:
    """The same at other prices."""
    prices = {
        name: replace(getattr(site.prices, name), amount=amount) for name, amount in amounts.items()
    }
    return replace(site, prices=replace(site.prices, **prices))


def test_a_month() -> None:
    """What is bought is paid over 36 months, GPUs by the hour."""
    prices = Prices.of(KNOWN, "h200-sxm", "nvme-gen5")

    assert prices.memory(1e12) == pytest.approx(14_000 / 36)
    assert prices.drives(8 * 7.68e12) == pytest.approx(8 * 7.68 * 357 / 36)
    assert prices.engines(1, 8) == pytest.approx(63.3 * 730, rel=0.001)
    assert prices.objects(1e12, 0, 0) == pytest.approx(23)
    assert prices.objects(0, 8 << 20, 0) == pytest.approx(5 * 730 * 3600 / 1e6)


def test_every_price_says_where_it_is_from() -> None:
    """Each has a date, a source and a unit; both estimates and what sellers ask are among them."""
    every = list(KNOWN.prices.values())

    assert all(one.origin.as_of and one.origin.source and one.unit for one in every)
    assert {one.origin.mark for one in every} == {"spec", "assumed"}
    for gpu in KNOWN.gpus:
        assert Prices.of(KNOWN, gpu, "nvme-qlc").gpu_hour.amount > 0


def test_a_price_of_ones_own(tmp_path: Path) -> None:
    """A file with a price replaces it; what is there already may cost nothing."""
    path = tmp_path / "own.toml"
    path.write_text("[price.gpu-hour-h100-sxm]\n")
    with pytest.raises(ConfigError, match="amount, unit must be given"):
        read_hardware(path)
    path.write_text('[price.dram-gb]\namount = 0\nunit = "USD to buy a GB"\n')
    prices = Prices.of(read_hardware(path), "h100-sxm", "nvme-gen5")

    assert prices.memory(1e12) == 0
    assert prices.dram_gb.origin.mark == "assumed"
    unit = "months that what is bought is paid over"
    path.write_text(f'[price.write-off]\namount = 0\nunit = "{unit}"\n')
    with pytest.raises(ConfigError, match="give months"):
        Prices.of(read_hardware(path), "h100-sxm", "nvme-gen5")


def test_a_level_that_costs_more_than_it_saves() -> None:
    """The same memory is no where its price is above what it saves, and yes where it is below."""
    demand = demand_of(made(2_000, ("chat",)))
    paid = by_boundary(advise(small(), demand))["dram"]
    saves, costs = (paid.numbers[f"{name}_usd_per_month"] for name in ("saves", "costs"))
    dear = small().prices.dram_gb.amount * saves / costs
    above = by_boundary(advise(priced(small(), dram_gb=1.01 * dear), demand))["dram"]
    below = by_boundary(advise(priced(small(), dram_gb=0.99 * dear), demand))["dram"]

    assert (above.verdict, below.verdict) == (Verdict.NO, Verdict.YES)
    assert "less than they cost" in above.why


def test_drives_within_their_rating() -> None:
    """The gain within the rating lies between all and none, rises with it, and turns verdicts."""
    demand = demand_of(made(2_000, ("chat",)))
    found = []
    for dwpd in (0.01, 0.1, 1.0, 1000.0):
        drive = replace(small().drive, dwpd=dwpd)
        site = replace(small(), drive=drive, drives=1, drive_bytes=1e11)
        numbers = by_boundary(advise(site, demand))["nvme"].numbers
        found.append(numbers["of_computing_within_rating"])
        assert numbers["of_computing_within_rating"] <= numbers["of_computing_best_choice"]
        assert numbers["of_computing_best_choice"] <= numbers["of_computing"] * (1 + 1e-9)
    assert found == sorted(found)
    assert found[0] < found[-1]

    worn = replace(small(), drive=replace(small().drive, dwpd=1e-3), drives=1, drive_bytes=1e11)
    refused = by_boundary(advise(priced(worn, drive_tb=1e6), demand))["nvme"]
    assert refused.verdict is Verdict.NO
    assert "their rating pays for" in refused.why


def test_drives_that_never_wear() -> None:
    """Without a rating nothing is kept back, and nothing is said of years."""
    demand = demand_of(made(2_000, ("chat",)))
    numbers = by_boundary(advise(replace(small(), drive=KNOWN.tiers["cxl"]), demand))[
        "nvme"
    ].numbers

    assert numbers["of_computing_within_rating"] == numbers["of_computing"]
    assert "years_writing_everything" not in numbers


def test_the_bill_adds_up() -> None:
    """The engine's own cache saves its hits, and levels what they save beyond their cost."""
    demand, site = demand_of(made(2_000, ("chat",))), small()
    decisions = advise(site, demand)
    numbers = {one.boundary: one.numbers for one in decisions}
    told = bill(site, demand, decisions)
    own = told["without_cache_usd_per_month"] - told["own_cache_usd_per_month"]
    gained = told["own_cache_usd_per_month"] - told["with_levels_usd_per_month"]

    assert own == pytest.approx(numbers["hbm"]["saves_usd_per_month"])
    assert gained == pytest.approx(net_usd(decisions, ("dram", "nvme")))
    assert told["with_levels_usd_per_million_tokens"] * told["million_tokens_per_month"] == (
        pytest.approx(told["with_levels_usd_per_month"])
    )
    assert told["with_levels_usd_per_month"] < told["own_cache_usd_per_month"]
    costs = {
        level: numbers[level]["costs_usd_per_month"] if level in chosen(decisions) else 0.0
        for level in ("dram", "nvme")
    }
    assert (told["memory_cost_usd_per_month"], told["drives_cost_usd_per_month"]) == (
        costs["dram"],
        costs["nvme"],
    )
    assert told["saved_usd_per_month"] == pytest.approx(gained)
    assert told["saved_gpu_usd_per_month"] - sum(costs.values()) == pytest.approx(gained)
    hourly = told["gpu_hour_usd"] * site.gpus * 730
    assert told["without_cache_usd_per_month"] == pytest.approx(demand.engines * hourly)
    assert told["all_gpus_usd_per_month"] == pytest.approx(site.hosts * hourly)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[price.nope]\namount = 1\nunit = "USD"\n', "no price.nope; hint: there is"),
        (
            '[price.dram-tb]\namount = 1\nunit = "USD to buy a TB"\n',
            "no price.dram-tb; hint: there is .*dram-gb",
        ),
        ('[price.gpu-hour-h101-sxm]\namount = 1\nunit = "USD"\n', "hint: .*gpu-hour-h100-sxm"),
        ('[price.drive-tb-floppy]\namount = 1\nunit = "USD to buy a TB"\n', "no price.drive-tb"),
        ('[price.dram-gb]\namount = 1\nunit = "USD to buy a TB"\n', '"USD to buy a GB"'),
        ('[price.gpu-hour]\namount = 1\nunit = "cents"\n', '"USD for an hour of one GPU"'),
        ('[price.gpu-hour-l40s]\namount = 1\nunit = "EUR"\n', '"USD for an hour of one GPU"'),
        ('[price.drive-tb-nvme-gen4]\namount = 1\nunit = "EUR"\n', '"USD to buy a TB"'),
        ('[price.nic]\namount = 1\nunit = "each"\n', '"USD to buy an adapter of 400 Gb/s"'),
        (
            '[price.dram-gb]\namount = 1\nunit = "USD to buy a GB"\nas_of = 2999-01-01\n',
            "2999-01-01 is still to come",
        ),
        (
            '[price.dram-gb]\namount = 1\nunit = "USD to buy a GB"\nas_of = "lately"\n',
            "'lately' is no date",
        ),
        (
            '[tier.x]\nabout = ""\nread_gb_per_s = 1\nwrite_gb_per_s = 1\nas_of = "2999-01-01"\n',
            "x: as_of 2999-01-01 is still to come",
        ),
    ],
)
def test_prices_that_would_be_misread(text: str, said: str, tmp_path: Path) -> None:
    """A name that no plan asks for, another unit, and a date that is none are errors."""
    path = tmp_path / "own.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_hardware(path, date(2026, 11, 30))


def test_prices_of_ones_own_hardware(tmp_path: Path) -> None:
    """What a file brings may have a price in it, and a file may be called as kvwise's own."""
    path = tmp_path / "hardware.toml"
    path.write_text(
        "[gpu.ours]\nhbm_gb = 80\nhbm_gb_per_s = 3000\nbf16_tflops = 700\nhost_link_gb_per_s = 50\n"
        '[price.gpu-hour-ours]\namount = 3\nunit = "usd for an hour of one GPU"\n'
        '[price.drive-tb-nvme-gen4]\namount = 90\nunit = "USD to buy a TB"\nas_of = 2026-01-31\n'
    )
    with contextlib.chdir(tmp_path):
        found = read_hardware(Path("hardware.toml"))

    prices = Prices.of(found, "ours", "nvme-gen4")
    assert (prices.gpu_hour.amount, prices.drive_tb.amount) == (3, 90)
    assert set(KNOWN.gpus) < set(found.gpus)


@pytest.mark.parametrize("cheap", [True, False])
def test_the_bill_of_several_hosts(*, cheap: bool) -> None:
    """Hosts are billed with what each holds: in turn, and by the router if it is yes."""
    demand = demand_of(made(1_500, ("chat",)))
    site = priced(replace(small(), hosts=3, drives=0), dram_gb=1.0 if cheap else 1e6)
    decisions = by_boundary(advise(site, demand))
    told = bill(site, demand, list(decisions.values()))
    levels = chosen(list(decisions.values()))
    verdicts = {name: one.verdict for name, one in decisions.items()}
    held = decided(site, demand, verdicts).memory_tokens / site.hosts
    own = demand.routed("round_robin", site.hosts, site.device_tokens / site.hosts, quiet)
    way = "kv_aware" if cheap else "round_robin"
    best = demand.routed(way, site.hosts, held, quiet)
    without, with_own, with_all = (
        told[f"{name}_usd_per_month"] for name in ("without_cache", "own_cache", "with_levels")
    )

    assert decisions["router"].verdict is (Verdict.YES if cheap else Verdict.NO)
    assert ("dram" in levels) is cheap
    saved = site.worth(demand.saved_by(own.hit_ratio), demand)["saves_usd_per_month"]
    assert without - with_own == pytest.approx(saved)
    saved = site.worth(demand.saved_by(best.hit_ratio), demand)["saves_usd_per_month"]
    assert without - with_all == pytest.approx(saved - told["levels_cost_usd_per_month"])
    assert with_all <= with_own < without
