"""What `kvwise plan` answers, as one value: for JSON, text and page. It decides nothing.

Names are those of `kvwise plan --json`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

from kvwise.cli.plan_options import BUSY
from kvwise.planner.bill import bill, net_usd
from kvwise.planner.bill import chosen as bought
from kvwise.planner.catalogue import NAMELESS
from kvwise.planner.demand import Demand
from kvwise.planner.flags import Flags, sglang, vllm
from kvwise.planner.hardware import HOST_MEMORY, Hardware, Origin
from kvwise.planner.oracle import Oracle, estimate_of
from kvwise.planner.prefill import Prefill
from kvwise.planner.sensitivity import KNOBS, others, swings
from kvwise.planner.site import WEIGHT_BYTES, Decision, Site, Verdict, weights_of
from kvwise.planner.sizes import sized
from kvwise.planner.stack import Places, Stack, stack_of, toml

NAMED = "put the model's folder or repository there"
"""What to do about a model that has no name for engines."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was planned for and what came of it.

    Attributes:
        site, demand, oracle, known: for what.
        decisions: what came of it.
        places: where things are on a host.
        engine_model: what engines call the model.
    """

    site: Site
    demand: Demand
    oracle: Oracle
    known: Hardware
    decisions: Sequence[Decision]
    places: Places
    engine_model: str

    @property
    def taken(self) -> Site:
        """The site with the memory that was decided on."""
        return sized(self.site, self.demand)

    @property
    def stack(self) -> Stack | None:
        """The daemon's configuration on each host."""
        return stack_of(self.taken, self.demand, self.decisions, self.places)

    @property
    def stack_toml(self) -> str | None:
        """The same as a file."""
        stack, site = self.stack, self.site
        if stack is None:
            return None
        gpus = f"{site.gpus} x {self.oracle.gpu.name}"
        heading = [
            f"For each of {site.hosts} hosts of {gpus}, {site.model.name} in {site.kept.kv.name}.",
            f"Start: kvwise serve --config FILE. Made by: {_command()}",
        ]
        return toml(stack, heading)


def told_of(plan: Plan) -> dict[str, Any]:
    """The whole answer."""
    site, demand, oracle = plan.site, plan.demand, plan.oracle
    billed = bill(site, demand, plan.decisions) if site.device_tokens else None
    return {
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": _command(),
        "model": site.model.name,
        "weights": _weights(site),
        "kv": site.kept.kv.name.lower(),
        "token_bytes": site.token_bytes,
        "token_bytes_on_gpus": site.gpus * site.rank_token_bytes,
        "gpu": oracle.gpu.name,
        "gpus_per_host": site.gpus,
        "hosts": site.hosts,
        "engines_busy_with_prefill": demand.engines,
        "typical_prompt_tokens": demand.typical_tokens,
        "typical_prompt_s": demand.computing_one(demand.typical_tokens),
        "estimate": estimate_of(oracle, demand.longest_tokens).told(),
        "hardware": {one.name: _origin(one.origin) for one in (oracle.gpu, site.dram, site.drive)},
        "prices": {
            one.name: {"amount": one.amount, "unit": one.unit, **_origin(one.origin)}
            for one in site.prices.each()
        },
        "decisions": [_decision(plan, one) for one in plan.decisions],
        "bill": billed,
        "sensitivity": _sensitivity(plan),
        "stack": plan.stack,
        "stack_toml": plan.stack_toml,
        "serve": _serve(plan.stack),
        "engine_flags": _engines(plan),
        "notes": [*_verdict_notes(plan), *_host_notes(plan, billed), *_basis_notes(plan)],
    }


def _weights(site: Site) -> str:
    """How weights are taken to be kept."""
    return {size: name for name, size in WEIGHT_BYTES.items()}[site.weight_bytes]


def _command() -> str:
    """What was typed."""
    return shlex.join(["kvwise", *sys.argv[1:]])


def _origin(origin: Origin) -> dict[str, str]:
    """Where a number is from."""
    return {"as_of": origin.as_of, "mark": origin.mark, "from": origin.source}


def _decision(plan: Plan, one: Decision) -> dict[str, Any]:
    """One level."""
    values = {knob.name: knob.value(plan.site, plan.demand) for knob in KNOBS}
    units = {knob.name: knob.unit for knob in KNOBS}
    return {
        "boundary": one.boundary,
        "verdict": one.verdict.value,
        "why": one.why,
        "numbers": one.numbers,
        "confidence": one.confidence,
        "sensitivity": [
            {
                "input": change.knob,
                "now": values[change.knob],
                "at": change.factor * values[change.knob],
                "times": change.factor,
                "unit": units[change.knob],
                "becomes": change.becomes.value,
            }
            for change in one.changes
        ],
    }


def _sensitivity(plan: Plan) -> dict[str, Any]:
    """What levels save when an input is off, and what other hardware would make of the plan."""
    site, demand, decisions = plan.site, plan.demand, plan.decisions
    if "dram" not in {one.boundary for one in decisions}:
        return {"net_usd_per_month": 0.0, "inputs": [], "others": []}
    return {
        "net_usd_per_month": net_usd(decisions, bought(decisions)),
        "inputs": [
            {
                "input": one.knob.name,
                "unit": one.knob.unit,
                "low": one.knob.low * one.value,
                "now": one.value,
                "high": one.knob.high * one.value,
                "net_usd_per_month_at_low": one.low_usd,
                "net_usd_per_month_at_high": one.high_usd,
            }
            for one in swings(plan.taken, demand, decisions)
        ],
        "others": [
            {
                "instead": one.name,
                "becomes": {name: verdict.value for name, verdict in one.becomes.items()},
                "net_usd_per_month": one.net_usd,
            }
            for one in others(site, demand, plan.known, plan.oracle.gpu.name)
        ],
    }


def _serve(stack: Stack | None) -> str | None:
    """The stack as a command, for one host; None for none."""
    if stack is None:
        return None
    parts = ["kvwise", "serve", "--dram", str(stack["dram"]["size"])]
    disk = stack.get("disk")
    if disk is not None:
        paths = disk["paths"]
        for path in paths if isinstance(paths, list) else []:
            parts += ["--disk", str(path)]
        parts += ["--disk-size", str(disk["size"])]
        if disk["dwpd"]:
            parts.insert(0, f"KVWISE_DISK_DWPD={disk['dwpd']:g}")
            amplified = f"KVWISE_DISK_WRITE_AMPLIFICATION={disk['write_amplification']:g}"
            parts.insert(1, amplified)
    parts += ["--socket", str(stack["serve"]["socket"])]
    return shlex.join(parts)


def _engines(plan: Plan) -> dict[str, Any]:
    """How to start each engine; nothing where none would start."""
    if not plan.site.device_tokens:
        return {}
    flags = {
        "vllm": vllm(plan.site, plan.engine_model, plan.stack),
        "sglang": sglang(plan.site, plan.engine_model, plan.decisions, plan.stack),
    }
    return {
        name: {
            "engine": one.engine,
            "command": list(one.words),
            "environment": dict(one.environment),
            "shell": shell(one),
            "tried": one.tried,
        }
        for name, one in flags.items()
    }


def shell(flags: Flags) -> str:
    """A command as a shell takes it."""
    given = [f"{name}={shlex.quote(value)}" for name, value in flags.environment.items()]
    return " ".join([*given, shlex.join(flags.words)])


def _verdict_notes(plan: Plan) -> Iterator[str]:
    """What the verdicts come to where that is nothing."""
    verdicts = {one.boundary: one.verdict for one in plan.decisions}
    if verdicts["reuse"] is Verdict.NO:
        yield "Do not offload: there is nothing to load again."
    elif verdicts["hbm"] is Verdict.NO:
        yield "Nothing more was looked at: this engine does not start."
    elif {verdicts["dram"], verdicts["nvme"]} == {Verdict.NO}:
        yield "The engine's own cache is enough for these requests: you need no other."


def _host_notes(plan: Plan, billed: Mapping[str, float] | None) -> Iterator[str]:
    """Whether there are too few hosts, or more than it takes."""
    hosts, needed = plan.site.hosts, plan.demand.engines
    if needed > hosts:
        yield (
            f"Prefill alone needs {needed:.1f} hosts: {hosts} cannot serve this trace "
            "without a cache."
        )
    if billed is None:
        return
    busy = billed["with_levels_hosts_busy"]
    fewer = max(1, ceil(busy / BUSY))
    if fewer < min(hosts, ceil(needed / BUSY)):
        yield (
            f"Without a cache prefill keeps {needed:.2f} of {hosts} hosts busy, and with these "
            f"levels {busy:.2f}: --hosts {fewer} plans for as many as that takes."
        )


def _basis_notes(plan: Plan) -> Iterator[str]:
    """What the plan rests on that its user may not expect."""
    site = plan.site
    if isinstance(plan.oracle, Prefill) and plan.oracle.caution:
        yield f"{plan.oracle.caution}."
    measured = plan.known.tiers.get(HOST_MEMORY)
    if site.dram.name == HOST_MEMORY:
        yield (
            f"Memory is taken to give each GPU {site.dram.read_gb_per_s:g} GB/s, as tier."
            f"{HOST_MEMORY} was measured by one thread that copies; a GPU that reads memory itself "
            "may be quicker: `kvwise probe` measures it where torch sees the GPU."
        )
    elif measured is not None and measured.read_gb_per_s >= site.dram.read_gb_per_s:
        yield (
            f"Memory is taken to give each GPU {site.dram.read_gb_per_s:g} GB/s ("
            f"{site.dram.about}): tier.{HOST_MEMORY}, {measured.read_gb_per_s:g} GB/s, is no "
            "slower."
        )
    published = weights_of(site.model)
    if site.device_tokens and WEIGHT_BYTES[published] != site.weight_bytes:
        yield (
            f"Weights are taken to be {_weights(site)}, and {site.model.name} is published in "
            f"{published}: the engines need a checkpoint that is, or a flag of theirs for it."
        )
    if site.model.state_bytes(site.kept):
        yield "The vLLM connector refuses models with recurrent states so far."
    if plan.engine_model == NAMELESS and site.device_tokens:
        yield (
            f"Engines are told to serve {NAMELESS}, since {site.model.name} has no weights beside "
            f"it: {NAMED}."
        )
