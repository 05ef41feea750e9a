"""The host as the kernel's files show it, and what it cannot give. It changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvwise.config import Config
from kvwise.errors import ConfigError
from kvwise.units import KIB, format_size

UNLIMITED_BYTES = 1 << 60
"""Version 1 control groups write "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as its files show it; `root` is another folder only in tests."""

    root: Path = Path("/")

    def read(self, path: str) -> str:
        """The text of a file, or nothing when it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""


def meminfo(host: Host, name: str) -> int:
    """One line of /proc/meminfo in bytes, 0 when it is not there."""
    for line in host.read("/proc/meminfo").splitlines():
        label, _, value = line.partition(":")
        if label == name:
            return int(value.split()[0]) * (KIB if value.endswith("kB") else 1)
    return 0


def control_group_limits(host: Host) -> Iterator[int]:
    """Memory limits of this process's control groups and their parents, both versions."""
    for line in host.read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        for group in (Path(path), *Path(path).parents):
            text = host.read(f"{base}/{str(group).strip('/')}/{file}")
            if text.isdigit() and int(text) < UNLIMITED_BYTES:
                yield int(text)


def cpu_quotas(host: Host) -> Iterator[float]:
    """Processors that this process's control groups and their parents allow, in version 2."""
    for line in host.read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue
        for group in (Path(path), *Path(path).parents):
            text = host.read(f"/sys/fs/cgroup/{str(group).strip('/')}/cpu.max")
            quota, _, period = text.partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                yield int(quota) / int(period)


def names_in(host: Host, folder: str) -> list[str]:
    """Names in a folder of the kernel, in order; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in (host.root / folder.lstrip("/")).iterdir())
    except OSError:
        return []


def number_list(text: str) -> list[int]:
    """The numbers in a list of the kernel, such as 0-3,8; none in what is no list."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def check_host(config: Config, host: Host | None = None) -> None:
    """Refuse sizes that this machine cannot have. For the process that will own them.

    Raises:
        ConfigError: more memory than the machine has, or a cap above what the filesystems hold.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if config.dram.size > memory:
        raise ConfigError(
            f"dram.size = {format_size(config.dram.size)} is more than this machine's "
            f"{format_size(memory)} of memory; hint: dram.size is for the whole node, lower it"
        )
    limit = min(control_group_limits(host or Host()), default=memory)
    if config.dram.size > limit:
        raise ConfigError(
            f"dram.size = {format_size(config.dram.size)} is more than the {format_size(limit)} of "
            "memory that this process's control group may use: the kernel would kill the daemon "
            "once its arena fills; hint: lower dram.size, or raise the container's limit"
        )
    wanted: dict[int, tuple[int, int, str]] = {}
    for path in config.disk.paths:
        place = next(p for p in (Path(path), *Path(path).parents) if os.access(p, os.F_OK))
        stat, device = os.statvfs(place), place.stat().st_dev
        share = wanted.get(device, (0, 0, ""))[0] + config.disk.size // len(config.disk.paths)
        wanted[device] = (share, stat.f_frsize * stat.f_blocks, path)
    for share, total, path in wanted.values():
        if share + config.disk.min_free > total:
            raise ConfigError(
                f"disk.size puts {format_size(share)} on the filesystem of {path}, which holds "
                f"{format_size(total)} and keeps disk.min_free = "
                f"{format_size(config.disk.min_free)} free; hint: lower disk.size"
            )
