"""What sizes come to on a host with several engines and ranks. It reads no device.

In kvwise a size is for the node. Elsewhere it is often one for each rank, and the two are mixed up.
"""

from __future__ import annotations

from kvwise.cli.checks import Case, Check, Finding, Grade, memory_limit
from kvwise.units import GIB, format_size

CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""Where vLLM on a CPU is told how many GiB of KV it keeps."""


def check_scope(case: Case) -> Finding:
    """What dram.size comes to over all engines: a daemon without an address is one for each."""
    name, each, engines = "sizes", case.config.dram.size, case.engines
    seen = f"dram.size {format_size(each)} is for the node: all ranks share it"
    if case.config.client.url:
        seen += f", and all engines, as they all name {case.config.client.url}"
        return Finding(name, Grade.OK, seen)
    if engines == 1:
        return Finding(name, Grade.OK, f"{seen}, and more engines if they name one client.url")
    seen = (
        f"{engines} engines without client.url start a daemon each: {engines} x "
        f"{format_size(each)} are {format_size(engines * each)} of memory"
    )
    if case.config.disk.paths:
        seen += ", and only one of them gets the directories of the disk tier"
    advice = (
        f"run `kvwise serve --dram {format_size(each).replace(' ', '')}` once, "
        "and give its socket to every engine as client.url"
    )
    too_much = engines * each > memory_limit(case)
    grade = Grade.FAIL if too_much or case.config.disk.paths else Grade.WARN
    return Finding(name, grade, seen, advice)


def check_device_cache(case: Case) -> Finding:
    """The cache holds more than the engines' own caches, or it can hardly add a hit."""
    name, here = "device cache", case.config.dram.size
    disk = case.config.disk.size
    each = case.device_cache_bytes or _cpu_cache_bytes(case)
    if not each:
        seen = "not known; --device-cache SIZE, for each rank, has it held against dram.size"
        return Finding(name, Grade.OK, seen)
    own = each * case.ranks * case.engines
    parts = f"{case.engines} x {case.ranks} x {format_size(each)}"
    seen = f"engines keep {format_size(own)} themselves ({parts}), dram.size is {format_size(here)}"
    if here > own:
        return Finding(name, Grade.OK, seen)
    advice = f"raise dram.size above {format_size(own)}"
    if disk > own:
        seen += ": memory adds no hits, only the disk does"
        return Finding(name, Grade.WARN, seen, advice)
    advice += ", or do without: what the engines still hold is all that would be hit"
    return Finding(name, Grade.FAIL, seen, advice)


def _cpu_cache_bytes(case: Case) -> int:
    """What vLLM on a CPU was told to keep; 0 where it was told nothing."""
    text = case.environ.get(CPU_CACHE, "")
    return int(text) * GIB if text.isdecimal() else 0


SIZE_CHECKS: tuple[Check, ...] = (check_scope, check_device_cache)
"""In the order in which they are shown."""
