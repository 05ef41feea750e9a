"""The host's memory as GPUs load from it: over a link, and no faster than what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.planner.hardware import read_hardware

TIER = """
[tier.{name}]
about = "here"
read_gb_per_s = {rate}
write_gb_per_s = {rate}
per_gpu = true
source = "kvwise probe"
mark = "measured"
"""
GPU = """
[gpu.host-gpu]
hbm_gb = 80
hbm_gb_per_s = 3000
bf16_tflops = 700
host_link_gb_per_s = 23
source = "kvwise probe"
mark = "measured"
"""


@pytest.mark.parametrize(
    ("measured", "gpu", "name", "rate"),
    [
        ({}, "h100-sxm", "dram-pcie5", 55),
        ({}, "l40s", "dram", 27.5),
        ({"host-dram": 9}, "h100-sxm", "host-dram", 9),
        ({"host-dram": 9}, "l40s", "host-dram", 9),
        ({"host-dram": 90}, "l40s", "dram", 27.5),
        ({"host-dram": 9, "dram-pcie5": 50}, "h100-sxm", "dram-pcie5", 50),
        ({"host-dram": 9, "dram-pcie5": 23}, "host-gpu", "dram-pcie5", 23),
        ({"host-dram": 9, "dram-pcie5": 23}, "l40s", "dram-pcie5", 23),
        ({"host-dram": 9, "dram-pcie5": 50}, "l40s", "dram", 27.5),
    ],
)
def test_what_was_measured_bounds_the_link(
    measured: dict[str, float], gpu: str, name: str, rate: float, tmp_path: Path
) -> None:
    """What a GPU measured is the whole way; without one, memory's own copies are a bound."""
    path = tmp_path / "host.toml"
    path.write_text(GPU + "".join(TIER.format(name=n, rate=r) for n, r in measured.items()))
    found = read_hardware(path).memory(gpu)

    assert (found.name, found.read_gb_per_s, found.per_gpu) == (name, rate, True)
