"""Sites and traces for tests of the planner. It tests nothing."""

from __future__ import annotations

from kvwise.planner.advise import decide, routes
from kvwise.planner.catalogue import find_model
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import read_hardware
from kvwise.planner.prefill import Prefill
from kvwise.planner.prices import Prices
from kvwise.planner.shapes import Precisions
from kvwise.planner.site import Decision, Site
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.records import Trace
from tests.sim.trace.support import quiet

KNOWN = read_hardware()


def demand_of(trace: Trace, model: str = "llama-3.1-70b", gpu: str = "h100-sxm") -> Demand:
    """A trace on eight GPUs."""
    return Demand(trace, measure_reuse(trace, quiet), Prefill(find_model(model), KNOWN.gpu(gpu), 8))


def site_of(model: str = "llama-3.1-70b", gpu: str = "h100-sxm") -> Site:
    """Two hosts with 1 TB of memory and eight drives of 7.68 TB in all."""
    return Site(
        model=find_model(model),
        kept=Precisions(),
        gpus=8,
        hbm_bytes=KNOWN.gpu(gpu).hbm_gb * 1e9,
        weight_bytes=2.0,
        hosts=2,
        dram=KNOWN.tiers["dram-pcie5"],
        dram_bytes=1e12,
        drive=KNOWN.tiers["nvme-gen5"],
        drives=4,
        drive_bytes=7.68e12,
        prices=Prices.of(KNOWN, gpu, "nvme-gen5"),
    )


def by_boundary(decisions: list[Decision]) -> dict[str, Decision]:
    """Decisions by what they are about."""
    return {one.boundary: one for one in decisions}


def advise(site: Site, demand: Demand) -> list[Decision]:
    """All decisions, with requests routed for the last ones."""
    return decide(site, demand, routes(site, demand, quiet))
