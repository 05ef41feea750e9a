"""Drives that are not there, as a kernel's files and `smartctl` would show them. It tests nothing.

The reports are written by hand after the documented schema; no drive of this project has one.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvwise.host import Host
from kvwise.live.drives import Drive

TB = 10**12
NVME: dict[str, object] = {
    "smartctl": {"version": [7, 4], "exit_status": 0},
    "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
    "model_name": "EXAMPLE 3840G",
    "user_capacity": {"blocks": 7501476528, "bytes": 3840755982336},
    "logical_block_size": 512,
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "available_spare": 100,
        "percentage_used": 20,
        "data_units_read": 1000,
        "data_units_written": 2_000_000,
    },
}
SATA: dict[str, object] = {
    "model_name": "EXAMPLE SSD",
    "user_capacity": {"bytes": 960 * 10**9},
    "logical_block_size": 512,
    "ata_smart_attributes": {
        "table": [
            {"id": 5, "name": "Reallocated_Sector_Ct", "raw": {"value": 0}},
            {"id": 241, "name": "Total_LBAs_Written", "raw": {"value": 2_000_000_000}},
        ]
    },
    "endurance_used": {"current_percent": 3},
}
SSD = Drive("nvme0n1", 4 * TB, spins=False, virtual=False)


def machine(
    root: Path, device: int, name: str = "nvme0n1", *, slaves: tuple[str, ...] = ()
) -> Host:
    """A machine whose kernel shows a partition of a drive under this device number."""
    devices = root / "sys/devices/pci0000:00"
    for drive in slaves or (name,):
        whole = devices / f"nvme/{drive}"
        (whole / "queue").mkdir(parents=True)
        (whole / "size").write_text(f"{4 * TB // 512}\n")
        (whole / "queue/rotational").write_text("0\n")
    if slaves:
        entry = root / "sys/devices/virtual/block" / name
        (entry / "slaves").mkdir(parents=True)
        for drive in slaves:
            (entry / "slaves" / drive).symlink_to(devices / f"nvme/{drive}")
    else:
        entry = devices / f"nvme/{name}/{name}p1"
        entry.mkdir()
        (entry / "partition").write_text("1\n")
    numbers = root / "sys/dev/block"
    numbers.mkdir(parents=True)
    (numbers / f"{os.major(device)}:{os.minor(device)}").symlink_to(entry)
    return Host(root)
