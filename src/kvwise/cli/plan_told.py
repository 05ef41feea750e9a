"""What `kvwise plan` answers, as one value: for JSON, text and the page. It decides nothing.

Names are those of `kvwise plan --json`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Any

from kvwise.cli.model import TOKENS, loading
from kvwise.planner.advise import Decision, Site, Verdict
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import Hardware
from kvwise.planner.oracle import Oracle, estimate_of

SHARES = (0.25, 0.5, 0.75, 0.9)


def told_of(
    site: Site, demand: Demand, oracle: Oracle, decisions: Sequence[Decision]
) -> dict[str, Any]:
    """The whole answer."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["kvwise", *sys.argv[1:]]),
        "model": site.model.name,
        "kv": site.kept.kv.name.lower(),
        "token_bytes": site.token_bytes,
        "gpu": oracle.gpu.name,
        "gpus_per_host": site.gpus,
        "hosts": site.hosts,
        "engines_busy_with_prefill": demand.engines,
        "typical_prompt_tokens": demand.typical_tokens,
        "typical_prompt_s": demand.computing_one(demand.typical_tokens),
        "estimate": estimate_of(oracle, demand.longest_tokens).told(),
        "hardware": {
            one.name: {
                "as_of": one.origin.as_of,
                "mark": one.origin.mark,
                "from": one.origin.source,
            }
            for one in (oracle.gpu, site.dram, site.drive)
        },
        "decisions": [
            {
                "boundary": one.boundary,
                "verdict": one.verdict.value,
                "why": one.why,
                "numbers": one.numbers,
                "confidence": one.confidence,
            }
            for one in decisions
        ],
        "serve": _serve(site, decisions),
        "notes": _notes(site, demand, decisions),
    }


def pictured(
    site: Site, demand: Demand, oracle: Oracle, known: Hardware
) -> dict[str, list[dict[str, Any]]]:
    """What pictures show: hits of some sizes, and loading beside computing at some lengths."""
    each = site.token_bytes
    device, memory = site.device_tokens * each, site.memory_bytes
    sizes = {"GPUs alone": device, "with memory": memory, "with drives": memory + site.disk_bytes}
    enough = demand.capacity_for(1.0) * each
    others = {f"{share:.0%} of all hits": demand.capacity_for(share) * each for share in SHARES}
    every = [(label, size, True) for label, size in sizes.items() if size]
    every += [(label, size, False) for label, size in others.items()]
    every.append(("all that can be hit", enough, False))
    shown = sorted(every, key=lambda one: one[1])
    rank = site.model.of_rank(site.gpus)
    lengths = loading(oracle, rank, site.kept, known.tiers, TOKENS)["lengths"]
    return {
        "sizes": [
            {
                "label": label,
                "bytes": size,
                "hit_ratio": demand.saving(size / each).hit_ratio,
                "is_here": is_here,
            }
            for label, size, is_here in shown
            if demand.reuse
        ],
        "loading": lengths,
    }


def _serve(site: Site, decisions: Sequence[Decision]) -> str | None:
    """The daemon that the decisions come to, for one host; None for none."""
    verdicts = {one.boundary: one.verdict for one in decisions}
    if verdicts.get("dram") is not Verdict.YES:
        return None
    numbers = next(one.numbers for one in decisions if one.boundary == "dram")
    enough = numbers["bytes_for_90_percent_of_hits"] / site.hosts
    parts = ["kvwise", "serve", "--dram", f"{ceil(min(site.dram_bytes, enough) / 1e9)}GB"]
    if verdicts.get("nvme") is Verdict.YES:
        for number in range(site.drives):
            parts += ["--disk", f"/mnt/nvme{number}/kvwise"]
        parts += ["--disk-size", f"{0.95 * site.drives * site.drive_bytes / 1e12:.1f}TB"]
        if site.drive.dwpd:
            parts.insert(0, f"KVWISE_DISK_DWPD={site.drive.dwpd:g}")
    return shlex.join(parts)


def _notes(site: Site, demand: Demand, decisions: Sequence[Decision]) -> list[str]:
    """What else a reader must know."""
    verdicts = {one.boundary: one.verdict for one in decisions}
    notes = []
    if verdicts["reuse"] is Verdict.NO:
        notes.append("Do not offload: there is nothing to load again.")
    elif verdicts["hbm"] is Verdict.NO:
        notes.append("Nothing more was looked at: this engine does not start.")
    elif verdicts["dram"] is not Verdict.YES and verdicts["nvme"] is not Verdict.YES:
        notes.append("The engine's own cache is enough for these requests: you need no other.")
    if demand.engines > site.hosts:
        notes.append(
            f"Prefill alone needs {demand.engines:.1f} hosts: {site.hosts} cannot serve this trace "
            "without a cache."
        )
    if site.model.state_bytes(site.kept):
        notes.append("The vLLM connector refuses models with recurrent states so far.")
    return notes
