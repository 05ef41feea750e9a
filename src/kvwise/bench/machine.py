"""Owns the description of the machine that a measurement was taken on. It changes nothing on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kvwise.units import KIB, format_size


def describe(folder: Path) -> dict[str, Any]:
    """Processor, memory, system, how busy it is, and what filesystem `folder` lies on."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": format_size(memory_bytes("MemTotal")),
        "kernel": platform.release(),
        "filesystem": filesystem(folder),
        "load_average": round(os.getloadavg()[0], 2),
    }


def memory_bytes(name: str) -> int:
    """A line of /proc/meminfo in bytes, such as MemAvailable; 0 where it does not exist."""
    value = _field("/proc/meminfo", name)
    return int(value.split()[0]) * KIB if value else 0


def filesystem(folder: Path) -> str:
    """Type of the filesystem that holds `folder`."""
    place = folder.resolve()
    best, kind = 0, "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point, name = line.split(" ")[1:3]
        if place.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), name
    return kind


def _field(path: str, name: str) -> str:
    """The value of the first `name: value` line of a file of the kernel."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
