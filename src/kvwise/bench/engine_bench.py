"""Owns one run of the engine bench, from options to rows. What is measured is for its parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvwise.bench import chat, machine
from kvwise.bench.engine_cpu import Meter
from kvwise.bench.engine_hits import hits
from kvwise.bench.engine_load import Load
from kvwise.bench.engine_one_shot import one_shot
from kvwise.bench.engine_prompts import LEAST_TOKENS, Prompts
from kvwise.bench.engine_rig import Rig, prepared
from kvwise.bench.engine_tax import Plan, Ready, Start, cold_start, cold_tax, usual_tax
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.errors import CacheUnavailable, EngineError
from kvwise.units import GIB, KIB

ANSWER_TOKENS = 16
AT_A_TIME = 3
BURST_REQUESTS = 3
WARM_UPS = 2
SEEDS = 1_000
"""Between the prompts of one start and those of the next."""

WAITED_MAX = 0.01
"""An engine that waits for its processor for more than this part of a request is not alone."""
OTHERS_CORES_MAX = 0.05
"""What else runs and uses more is felt, on the engine's cores or beside them."""
WIDTH_MAX = 0.02
"""A wider interval says little about a hundredth."""

_READING = (
    "ratios are with kvwise / without it just before and after: in one engine that kvwise is taken "
    "away from in turns (cold_tax; cold_tax.all where everything is stored), of two engines "
    "(cold_tax.engines), without kvwise on both sides (control), or kvwise / the engine's own "
    "cache (hits); they are medians, and intervals hold 95 % of bootstrap draws"
)
_BURSTS = (
    f"throughput counts tokens of prompts and answers over a burst of {BURST_REQUESTS} requests "
    f"(hits: every stored prompt), {AT_A_TIME} at a time"
)
_TOKEN_BYTES = 30 * KIB
"""More than a token of the model takes on disk."""


@dataclass(frozen=True, slots=True)
class EngineBenchOptions:
    """What a run is asked for.

    Attributes:
        out: folder for the logs and, during the run, the disk tier.
        usual: cold requests with kvwise as operators meet it.
        usual_bursts: likewise bursts, two at least.
        requests: cold requests with kvwise in each of the other comparisons.
        starts: how often both engines are started for cold requests.
        prompt_tokens: tokens of each prompt.
        bursts: bursts of each kind, two at least.
        hits: prompts that are asked again.
        repeats: how often each of them is asked from memory.
        restarts: of the daemon, after each of which they are asked from disk.
        one_shot: short prompts that nobody sends again.
        learn: prompts at most from which the daemon may learn that none like them comes back.
        spare_cores: cores that the engines leave to everything else.
        seed: draws prompts.
    """

    out: Path
    usual: int
    usual_bursts: int
    requests: int
    starts: int
    prompt_tokens: int
    bursts: int
    hits: int
    repeats: int
    restarts: int
    one_shot: int
    learn: int
    spare_cores: int
    seed: int

    @property
    def disk_bytes(self) -> int:
        """Room for every prompt."""
        prompts = 2 * (self.requests + self.bursts * BURST_REQUESTS) + WARM_UPS + self.learn
        needed = (prompts + self.hits + 1) * self.prompt_tokens * _TOKEN_BYTES
        needed += self.one_shot * LEAST_TOKENS * _TOKEN_BYTES
        return max(GIB, needed)


def run_engine_bench(options: EngineBenchOptions, command: str, progress: Progress) -> Rows:
    """Measure; nothing that was started is left running, however this ends.

    Raises:
        KvwiseError: something could not be installed, started or asked.
    """
    started = datetime.now(UTC)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = machine.describe(options.out)
    out = options.out.resolve()
    try:
        earlier: list[Start] = []
        for number in range(1, options.starts):
            progress.done(f"start {number} of {options.starts}")
            with prepared(out, options.disk_bytes, options.spare_cores, progress) as rig:
                earlier.append(cold_start(_ready(rig, options, number)))
        with prepared(out, options.disk_bytes, options.spare_cores, progress) as rig:
            facts |= {"engine": f"vLLM {chat.version(rig.bare.port)}", "engine_cores": rig.cores}
            rows = _measure(rig, options, earlier)
    except (EngineError, CacheUnavailable) as error:
        error.add_note(f"engine.log and daemon.log below {out} tell more")
        raise
    return Rows(
        bench="engine",
        command=command,
        started=started.isoformat(timespec="seconds"),
        machine=facts | {"load_average_at_the_end": round(os.getloadavg()[0], 2)},
        rows=rows,
        notes=_notes(rows),
    )


def _ready(rig: Rig, options: EngineBenchOptions, start: int) -> Ready:
    """Both engines warm, with prompts that no other start has."""
    plan = Plan(
        usual=options.usual,
        usual_bursts=options.usual_bursts,
        requests=options.requests,
        bursts=options.bursts,
        burst_requests=BURST_REQUESTS,
        at_a_time=AT_A_TIME,
        hits=options.hits,
        repeats=options.repeats,
        restarts=options.restarts,
    )
    bare, cached = (
        Load(engine.port, ANSWER_TOKENS, Meter.of_workers(engine.session))
        for engine in (rig.bare, rig.cached)
    )
    prompts = Prompts(_counter(cached), options.prompt_tokens, options.seed + SEEDS * start)
    rig.progress.now("warming up")
    for _ in range(WARM_UPS):
        bare.one(prompts.next())
        cached.one(prompts.next())
    return Ready(rig, plan, prompts, bare, cached)


def _counter(load: Load) -> Callable[[list[chat.Message]], int]:
    """Counts the tokens of a conversation by asking an engine."""
    return lambda messages: chat.count_tokens(load.port, messages)


def _measure(rig: Rig, options: EngineBenchOptions, earlier: list[Start]) -> list[Row]:
    """Every row; cold requests of earlier starts are among them."""
    ready = _ready(rig, options, 0)
    plan, prompts, cached = ready.plan, ready.prompts, ready.cached
    cold = cold_tax(ready, earlier)
    computed_ms = cold[0]["base_ttft_ms"]["median"]
    found = [*cold, *hits(rig, plan, prompts, cached, computed_ms)]
    short = Prompts(_counter(cached), LEAST_TOKENS, options.seed + 1)
    shot = one_shot(rig, options.one_shot, short, cached, prompts.next())
    return [usual_tax(ready, options.learn), *found, shot]


def _notes(rows: list[Row]) -> list[str]:
    """What a reader must know to take the numbers right."""
    usual, all_, _, control = rows[:4]
    notes = [_READING, _BURSTS]
    if usual["stored_tokens_per_request"]:
        notes.append(
            f"{usual['stored_tokens_per_request']} tokens of a request of cold_tax were stored: "
            f"{usual['learned_prompts']} prompts were too few to learn that none of them comes back"
        )
    if all_["stored_tokens_per_request"] < all_["prompt_tokens"] // 2:
        notes.append(
            f"{all_['stored_tokens_per_request']} of {all_['prompt_tokens']} tokens of a cold "
            "request were stored: cold_tax.all says little about what storing costs"
        )
    for name in ("ttft_ratio", "throughput_ratio"):
        low, high = control[f"{name}_interval"]
        notes.append(
            f"{name} of an engine without kvwise against itself came to {control[name]:.3f} "
            f"({low:.3f} to {high:.3f}): cold_tax.engines cannot tell a smaller tax from none"
        )
    return [*notes, *_disturbed(usual)]


def _disturbed(tax: Row) -> list[str]:
    """What else ran while this row was measured, and what the machine made of equal work."""
    notes = []
    if tax["others_cores"] > OTHERS_CORES_MAX:
        notes.append(
            f"something else used {tax['others_cores']:.2f} cores meanwhile: end it, and measure "
            "again"
        )
    if tax["waited"] > WAITED_MAX:
        notes.append(
            f"others had the engine's processors for {tax['waited']:.1%} of a cold request "
            "without kvwise: end what else runs, and measure again"
        )
    low, high = tax["ttft_ratio_interval"]
    if high - low > WIDTH_MAX:
        notes.append(
            f"cold_tax lies somewhere between {low:.3f} and {high:.3f}, since the middle half of "
            f"the requests without kvwise lie {tax['unrest']:.1%} apart: only more requests "
            "(--cold-requests) or a quieter machine can tell one in a hundred"
        )
    return notes
