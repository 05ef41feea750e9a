"""What a host must have and should have for kvwise: one function per check. It changes nothing.

A check looks at one thing and returns a `Finding`: how good it is, what was seen, what to do. The
host is reached through `Host`, so that a test can show these checks a broken one.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kvwise.config import Config
from kvwise.config.values import split_address
from kvwise.errors import ProtocolError
from kvwise.host import Host, control_group_limits, cpu_quotas, meminfo
from kvwise.live.clock import deadline_after
from kvwise.live.link import Link
from kvwise.live.messages import PROTOCOL, Attach
from kvwise.tiers import mapping
from kvwise.units import GIB, MIB, format_size

PYTHON_MIN = (3, 11)
CORES_WANTED = 2
OPEN_FILES_SPARE = 256
"""Descriptors for connections, the arena, logs and libraries, beside segment files."""
SHM_BYTES_WANTED = GIB
"""vLLM's tensor-parallel workers pass messages there; a container's 64 MiB are too few."""

ANSWER_S = 2.0
"""How long a daemon may take to let somebody attach."""


class Grade(Enum):
    """How good a thing is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was looked at.
        grade: how good it is.
        seen: what is there, in words and numbers.
        advice: what to do, commands between backticks; empty when nothing needs doing.
    """

    name: str
    grade: Grade
    seen: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """What is examined: a configuration on a host, for an engine.

    Attributes:
        engine_python: interpreter of the engine's environment; None means this one.
        engines: how many engines this host runs.
        ranks: workers of each engine.
        device_cache_bytes: what each rank keeps of KV on its device; 0 where nobody said.
        environ: the environment that engines would be started in.
    """

    config: Config = field(default_factory=Config)
    host: Host = field(default_factory=Host)
    engine_python: Path | None = None
    engines: int = 1
    ranks: int = 1
    device_cache_bytes: int = 0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


Check = Callable[[Case], Finding]


def check_python(_case: Case) -> Finding:
    """The interpreter is new enough."""
    seen = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < PYTHON_MIN:
        return Finding("python", Grade.FAIL, seen, "install Python 3.11 or newer")
    return Finding("python", Grade.OK, seen)


def check_kernel(_case: Case) -> Finding:
    """The kernel gives anonymous shared memory that can be passed between processes."""
    seen = f"{platform.system()} {platform.release()}"
    try:
        os.close(os.memfd_create("kvwise-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except (AttributeError, OSError) as error:
        advice = "kvwise needs Linux 3.17 or newer, and a sandbox that allows memfd_create"
        return Finding("kernel", Grade.FAIL, f"{seen}, memfd_create: {error}", advice)
    return Finding("kernel", Grade.OK, f"{seen}, memfd_create works")


def check_cpu(case: Case) -> Finding:
    """Cores this process may use, and the vector instructions that copying and engines want."""
    cores = len(os.sched_getaffinity(0))
    quota = min(cpu_quotas(case.host), default=float(cores))
    flags = set(case.host.read("/proc/cpuinfo").partition("flags")[2].partition("\n")[0].split())
    vector = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    plural = "core" if cores == 1 else "cores"
    seen = f"{platform.machine()}, {cores} {plural}, {', '.join(vector) or 'no AVX2'}"
    if platform.machine() == "x86_64" and "avx2" not in flags:
        return Finding("cpu", Grade.WARN, seen, "vLLM's CPU build needs AVX2; a GPU build does not")
    if platform.machine() != "x86_64":
        seen = f"{platform.machine()}, {cores} {plural}"
    if quota < cores:
        seen += f", of which the control group may use {quota:g}"
    if min(cores, quota) < CORES_WANTED:
        advice = "give the engine and the daemon two cores, or they will wait for each other"
        return Finding("cpu", Grade.WARN, seen, advice)
    return Finding("cpu", Grade.OK, seen)


def check_memory(case: Case) -> Finding:
    """The arena fits into the memory that this process may use."""
    total = meminfo(case.host, "MemTotal")
    available = meminfo(case.host, "MemAvailable")
    limit = memory_limit(case)
    wanted = case.config.dram.size
    seen = f"dram.size {format_size(wanted)}; {format_size(available)} available"
    seen += f" of {format_size(total)}"
    if limit < total:
        seen += f", control group limit {format_size(limit)}"
    if wanted > limit:
        advice = f"lower dram.size below {format_size(limit)}, less what the engine needs"
        return Finding("memory", Grade.FAIL, seen, advice)
    if wanted > available:
        advice = "lower dram.size or stop something: a full arena would push this host into swap"
        return Finding("memory", Grade.WARN, seen, advice)
    return Finding("memory", Grade.OK, seen)


def memory_limit(case: Case) -> int:
    """Memory that this process may use at most."""
    return min([meminfo(case.host, "MemTotal"), *control_group_limits(case.host)])


def check_huge_pages(case: Case) -> Finding:
    """The arena can be backed by huge pages, which saves address translations while copying."""
    wanted = case.config.dram.hugepages
    size = meminfo(case.host, "Hugepagesize") or 2 * MIB
    free = meminfo(case.host, "HugePages_Free") * size
    modes = case.host.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    mode = modes.partition("[")[2].partition("]")[0] or "unknown"
    seen = f"{format_size(free)} reserved and free, transparent for shared memory: {mode}"
    reachable = free >= case.config.dram.size or mode not in {"never", "deny", "unknown"}
    if wanted == "off":
        return Finding("huge pages", Grade.OK, f"{seen}; not asked for")
    if reachable:
        return Finding("huge pages", Grade.OK, seen)
    if wanted == "auto" and mapping.can_join():
        return Finding("huge pages", Grade.OK, f"{seen}; kvwise joins small pages itself")
    advice = "as root: `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`"
    if case.config.dram.size <= memory_limit(case):
        advice += f", or `sysctl vm.nr_hugepages={-(-case.config.dram.size // size)}`"
    if wanted == "on":
        return Finding("huge pages", Grade.FAIL, seen, f"{advice}; or set dram.hugepages = auto")
    return Finding("huge pages", Grade.WARN, f"{seen}; the arena will use 4 KiB pages", advice)


def check_open_files(case: Case) -> Finding:
    """There are enough descriptors for every segment file of the disk tier."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = case.config.disk
    needed = -(-disk.size // disk.segment) + OPEN_FILES_SPARE
    seen = f"limit {soft}, at most {needed} needed"
    if soft != resource.RLIM_INFINITY and soft < needed:
        grade = Grade.FAIL if hard != resource.RLIM_INFINITY and hard < needed else Grade.WARN
        advice = (
            f"`ulimit -n {needed}`, `LimitNOFILE={needed}` for a service, or raise disk.segment"
        )
        return Finding("open files", grade, seen, advice)
    return Finding("open files", Grade.OK, seen)


def check_shared_memory(case: Case) -> Finding:
    """The engine has room for its own processes to talk; kvwise keeps nothing there."""
    place = case.host.root / "dev/shm"
    try:
        found = os.statvfs(place)
    except OSError as error:
        advice = "mount a tmpfs there if the engine uses tensor parallelism"
        return Finding("shared memory", Grade.WARN, f"{place}: {error.strerror}", advice)
    size = found.f_frsize * found.f_blocks
    seen = f"/dev/shm has {format_size(size)}; the engine's, kvwise uses none"  # noqa: S108
    if size < SHM_BYTES_WANTED:
        advice = "for tensor parallelism give the container more: `--shm-size=1g` or `--ipc=host`"
        return Finding("shared memory", Grade.WARN, seen, advice)
    return Finding("shared memory", Grade.OK, seen)


class Door(Enum):
    """Who is at a Unix socket."""

    NOBODY = "nobody"
    SILENT = "gives no answer"
    CLOSED = "closes the connection"
    OPEN = "answers"


def check_socket(case: Case) -> Finding:
    """The daemon's socket can lie where it should, or a daemon already answers there."""
    path = Path(case.config.socket_path)
    door = door_at(path)
    if door is Door.OPEN:
        return Finding("socket", Grade.OK, f"{path}: a daemon is listening and answers")
    if door is Door.SILENT:
        seen = f"{path}: a daemon is listening and gives no answer within {ANSWER_S:.0f} s"
        advice = "it hangs or was stopped: see its log, then end it and start another"
        return Finding("socket", Grade.FAIL, seen, advice)
    if door is Door.CLOSED:
        seen = f"{path}: who listens there closes the connection"
        advice = "it is another user's, another program or has no descriptor left: see its log"
        return Finding("socket", Grade.FAIL, seen, advice)
    folder = next(p for p in path.parents if p.exists())
    status = folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = "set serve.socket to a path in a directory of your own"
        return Finding("socket", Grade.FAIL, f"{folder} cannot be written", advice)
    if folder == path.parent and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        advice = "set serve.socket to a path in a directory of your own"
        if not status.st_mode & stat.S_ISVTX:  # else it is everybody's, as /tmp is
            advice = f"`chmod 700 {folder}`, or {advice}"
        return Finding("socket", Grade.WARN, f"{folder} can be written by other users", advice)
    return Finding("socket", Grade.OK, f"{path}: free, no daemon is running")


def door_at(path: Path) -> Door:
    """Who is at a Unix socket, asked to let this process attach, for `ANSWER_S` at most."""
    deadline_ns = deadline_after(ANSWER_S)
    try:
        link = Link(str(path), deadline_ns)
    except TimeoutError:
        return Door.SILENT
    except OSError:
        return Door.NOBODY
    try:
        link.ask(Attach(PROTOCOL, f"doctor-{os.getpid()}"), deadline_ns)
    except TimeoutError:
        return Door.SILENT
    except (OSError, ProtocolError):
        return Door.CLOSED
    finally:
        link.close()
    return Door.OPEN


def check_metrics(case: Case) -> Finding:
    """The metrics address is free, unless a running daemon has it."""
    address = case.config.serve.metrics
    if not address:
        return Finding("metrics", Grade.OK, "switched off")
    host, port = split_address(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if door_at(Path(case.config.socket_path)) is not Door.NOBODY:
            return Finding("metrics", Grade.OK, f"{address}: in use, a daemon is running")
        advice = "set serve.metrics to another host:port, or to nothing"
        return Finding("metrics", Grade.FAIL, f"{address}: {error.strerror or error}", advice)
    if host not in {"127.0.0.1", "localhost", "::1"}:
        advice = "anyone who reaches this address can read the metrics; 127.0.0.1 is the default"
        return Finding("metrics", Grade.WARN, f"{address} is free, and not loopback", advice)
    return Finding("metrics", Grade.OK, f"{address} is free")


HOST_CHECKS: tuple[Check, ...] = (
    check_python,
    check_kernel,
    check_cpu,
    check_memory,
    check_huge_pages,
    check_open_files,
    check_shared_memory,
    check_socket,
    check_metrics,
)
"""Every check of the host, in the order in which they are shown."""
