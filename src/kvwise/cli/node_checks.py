"""What about a machine's nodes, clock, locked memory and devices spoils a cache. It sets nothing.

kvwise itself needs little of this; the engines beside it do, and fail late and without a word.
"""

from __future__ import annotations

import ctypes
import re
import resource
from datetime import UTC, datetime

from kvwise.cli.checks import Case, Check, Finding, Grade
from kvwise.host import Host, meminfo, names_in, number_list
from kvwise.units import KIB, MIB, format_size

LOCKED_BYTES_USUAL = 8 * MIB
"""What Linux lets every process lock unless it is told otherwise."""
YEAR_MIN = 2026
"""No clock that is right shows an earlier one."""

_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_LOCK_ADVICE = (
    "`ulimit -l unlimited`, `LimitMEMLOCK=infinity` for a service, `--ulimit memlock=-1` for a "
    "container"
)


def check_locked_memory(case: Case) -> Finding:
    """How much memory may be locked, against what adapters and engines register."""
    name = "locked memory"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding(name, Grade.OK, "no limit; kvwise locks none")
    seen = f"limit {format_size(soft)}"
    adapters = names_in(case.host, "/sys/class/infiniband")
    if adapters and soft < case.config.dram.size:
        seen += f"; {', '.join(adapters)} cannot register memory of the size of dram.size"
        return Finding(name, Grade.WARN, seen, f"{_LOCK_ADVICE}, before engines use RDMA")
    if soft < LOCKED_BYTES_USUAL:
        seen += (
            f", less than the usual {format_size(LOCKED_BYTES_USUAL)}: kvwise locks none, but "
            "NCCL, NIXL and io_uring fail"
        )
        return Finding(name, Grade.WARN, seen, _LOCK_ADVICE)
    return Finding(name, Grade.OK, f"{seen}; kvwise locks none, and there is no RDMA adapter")


def check_numa(case: Case) -> Finding:
    """The arena fits on the nodes that this process may use, and lies on one of them."""
    name, wanted = "numa", case.config.dram.size
    folder = "/sys/devices/system/node"
    nodes = number_list(case.host.read(f"{folder}/online"))
    if len(nodes) < 2:
        return Finding(name, Grade.OK, "one node: no memory is farther away than other memory")
    allowed = _allowed_nodes(case.host) & set(nodes)
    sizes = {node: _node_bytes(case.host, node) for node in sorted(allowed)}
    told = ", ".join(f"node {node} has {format_size(size)}" for node, size in sizes.items())
    seen = f"{len(nodes)} nodes, of which this process may use {len(allowed)}: {told}"
    if sizes and wanted > sum(sizes.values()):
        advice = f"lower dram.size below {format_size(sum(sizes.values()))}, or allow more nodes"
        return Finding(name, Grade.FAIL, f"{seen}; dram.size is {format_size(wanted)}", advice)
    if len(allowed) < 2:
        return Finding(name, Grade.OK, f"{seen}; the arena will lie there")
    near = max(sizes, key=lambda node: sizes[node])
    advice = (
        "run a daemon for the engines of each node, with a socket of its own: "
        f"`numactl --cpunodebind={near} --membind={near} kvwise serve`"
    )
    return Finding(name, Grade.WARN, f"{seen}; copies between nodes are slower", advice)


def _allowed_nodes(host: Host) -> set[int]:
    """Nodes whose memory this process may use."""
    found = re.search(r"^Mems_allowed_list:\s*(\S+)", host.read("/proc/self/status"), re.MULTILINE)
    return set(number_list(found[1])) if found else set()


def _node_bytes(host: Host, node: int) -> int:
    """Memory of a node."""
    text = host.read(f"/sys/devices/system/node/node{node}/meminfo")
    found = re.search(r"MemTotal:\s*(\d+) kB", text)
    return int(found[1]) * KIB if found else meminfo(host, "MemTotal")


def check_clock(case: Case) -> Finding:
    """The clock is quick to read, since every copy is timed, and shows a year that can be."""
    name = "clock"
    source = case.host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    year = datetime.now(UTC).year
    right = "kept right by NTP" if synchronised() else "nothing is known to keep it right"
    seen = f"source {source or 'unknown'}, {right}"
    if year < YEAR_MIN:
        advice = "set it: budgets of writes and times in logs follow it; `timedatectl set-ntp true`"
        return Finding(name, Grade.FAIL, f"it shows the year {year}", advice)
    if source in _SLOW_CLOCKS:
        advice = "boot with `tsc=reliable` if the machine's clock is: reading this one takes 1 us"
        return Finding(name, Grade.WARN, seen, advice)
    return Finding(name, Grade.OK, seen)


def synchronised() -> bool:
    """Whether the kernel says that something keeps its clock right; reading changes nothing."""
    asked = ctypes.create_string_buffer(512)  # struct timex, modes = 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(asked) < 0:
        return False
    status = int.from_bytes(asked.raw[40:44], "little")
    return not status & _UNSYNCHRONISED


def check_direct_storage(case: Case) -> Finding:
    """Whether drives could read into a GPU; kvwise never asks for that, other caches do."""
    name = "gpudirect"
    if not case.host.read("/proc/driver/nvidia/version"):
        return Finding(name, Grade.OK, "no NVIDIA driver; kvwise reads through the host's memory")
    if case.host.read("/proc/driver/nvidia-fs/version"):
        seen = "nvidia-fs is loaded; kvwise reads through the host's memory all the same"
        return Finding(name, Grade.OK, seen)
    settings = case.host.read(case.environ.get("CUFILE_ENV_PATH_JSON") or "/etc/cufile.json")
    allowed = re.search(r'"allow_compat_mode"\s*:\s*(true|false)', settings)
    if allowed and allowed[1] == "false":
        advice = "`modprobe nvidia-fs`, or set allow_compat_mode to true in cufile.json"
        seen = "nvidia-fs is not loaded and compatibility mode is forbidden: whatever asks for GDS"
        return Finding(name, Grade.WARN, f"{seen} fails; kvwise does not", advice)
    seen = "nvidia-fs is not loaded, so GDS is in compatibility mode: through the host's memory"
    return Finding(name, Grade.OK, f"{seen}, as kvwise always reads")


def check_remote_memory(case: Case) -> Finding:
    """A network adapter can reach the GPU's memory; kvwise never asks for that, engines do."""
    name = "rdma"
    adapters = names_in(case.host, "/sys/class/infiniband")
    if not adapters:
        return Finding(name, Grade.OK, "no RDMA adapter")
    seen = ", ".join(adapters)
    modules = case.host.read("/proc/modules")
    driver = case.host.read("/proc/driver/nvidia/version")
    if driver and not re.search(r"^(nvidia_peermem|nv_peer_mem) ", modules, re.MULTILINE):
        seen += "; nvidia-peermem is not loaded: transfers between GPUs of hosts go through memory"
        return Finding(name, Grade.WARN, seen, "as root: `modprobe nvidia-peermem`")
    return Finding(name, Grade.OK, seen)


NODE_CHECKS: tuple[Check, ...] = (
    check_locked_memory,
    check_numa,
    check_clock,
    check_direct_storage,
    check_remote_memory,
)
"""In the order in which they are shown."""
