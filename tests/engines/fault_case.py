"""Owns what every fault is put through: a daemon of its own, the level before and after, a row.

It holds what must hold whatever the fault is; what is special about one is said by its test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engines.fault_stage import CLIENT_S, Engine, HurtDaemon, eventually
from tests.engines.rig import LONG, OTHER, TAIL
from tests.engines.support import Processes

Seen = dict[str, Any]
WARM = "Some text that is only here to warm everything up. " * 8
PROMPTS = (LONG, OTHER, TAIL)
"""On the disk of every daemon from the start, as is `WARM`."""

STORED = (WARM, LONG, TAIL, OTHER)
"""In this order on the disk: what begins with `LONG` comes right after it."""

NEW = (f"Not seen before. {LONG}", f"Nor was that. {OTHER}", f"And not this. {TAIL}")
"""Not on it."""

ASIDE = {"no_load": True, "no_store": True}
PLAN_S = 2.0
TRIES = 3


@dataclass
class Row:
    """What was seen of one fault."""

    fault: str
    tokens: str = "-"
    wait_s: float = 0.0
    bound_s: float = 0.0
    recovered: str = "-"
    leak: str = "-"

    def __str__(self) -> str:
        """As a line of the table."""
        wait = f"{self.wait_s:.2f} of {self.bound_s:.1f}"
        return f"| {self.fault} | {self.tokens} | {wait} | {self.recovered} | {self.leak} |"


@dataclass
class Stage:
    """One engine, and the place where its daemons listen.

    Attributes:
        full: a disk on which `STORED` is.
        rows: of the table.
        known: tokens that prompts give when everything is computed.
    """

    processes: Processes
    engine: Engine
    socket: Path
    full: Path
    rows: list[Row] = field(default_factory=list)
    known: dict[str, list[int]] = field(default_factory=dict)

    def right(self, prompts: tuple[str, ...]) -> list[list[int]]:
        """The tokens that computing everything gives."""
        for prompt in prompts:
            if prompt not in self.known:
                self.engine.ask("forget")
                (answer,) = self.engine.ask("run", prompts=[prompt], hints=ASIDE)["answers"]
                assert answer["cached"] == 0
                assert len(set(answer["tokens"])) > len(answer["tokens"]) * 2 // 3
                self.known[prompt] = answer["tokens"]
        return [self.known[prompt] for prompt in prompts]


@dataclass
class Case:
    """One fault, with a daemon of its own."""

    stage: Stage
    daemon: HurtDaemon
    row: Row
    before: Seen = field(default_factory=dict)
    lives: int = 0

    def run(self, prompts: tuple[str, ...], **how: object) -> Seen:
        """Generate without anything in vLLM's own cache."""
        self.stage.engine.ask("forget")
        seen: Seen = self.stage.engine.ask("run", prompts=prompts, **how)
        return seen

    def start(self) -> None:
        """A new life of the daemon: its arena is empty, and the level before the fault is known."""
        self.daemon.stop()
        self.daemon.start()
        self.warm()
        self.before = eventually(self.level, lambda seen: bool(seen["engine"]["arenas"] == 1))
        assert self.before["engine"]["arenas"] == 1
        under_way = {"load": 0, "store": 0}
        nothing = dict.fromkeys(("pins", "lost_pages", "lost_bytes", "queued", "extra_threads"), 0)
        holds = self.before["daemon"]
        assert holds | nothing | {"leases": under_way, "jobs": under_way} == holds, holds

    def warm(self) -> None:
        """Have everybody load and store something, so that every file and thread is there."""
        assert self.stage.engine.ask("attach")
        self.lives += 1
        self.run((WARM, f"{self.lives} {WARM}"))
        self.daemon.flush()
        self.daemon.equip()

    def level(self) -> Seen:
        """What daemon and engine hold."""
        return {"daemon": self.daemon.holds(), "engine": self.stage.engine.ask("census")}

    def suffer(self, bound_s: float, prompts: tuple[str, ...] = PROMPTS, **how: object) -> Seen:
        """Run prompts under the fault."""
        return self.judge(self.run(prompts, **how), bound_s, prompts)

    def judge(self, seen: Seen, bound_s: float, prompts: tuple[str, ...] = PROMPTS) -> Seen:
        """Tokens as computed, in time."""
        right = self.stage.right(prompts)
        got = [answer["tokens"] for answer in seen["answers"]]
        equal = sum(one == other for one, other in zip(got, right, strict=True))
        self.row.tokens = f"{equal} of {len(right)}"
        self.row.wait_s = max(self.row.wait_s, *seen["seconds"])
        self.row.bound_s = max(self.row.bound_s, bound_s)
        assert got == right
        assert max(seen["seconds"]) < bound_s
        return seen

    def recover(self, prompts: tuple[str, ...] = PROMPTS, *, tier: str = "") -> None:
        """The cache is used again: everything is loaded, and right."""
        assert self.stage.engine.ask("attach")
        for _ in range(TRIES):
            seen = self.run(prompts)
            assert [answer["tokens"] for answer in seen["answers"]] == self.stage.right(prompts)
            hits = [loaded(answer, tier) for answer in seen["answers"]]
            if all(hits):
                break
        self.row.recovered = (
            f"{sum(map(bool, hits))} of {len(hits)} loaded" + f" from {tier}" * bool(tier)
        )
        assert all(hits), seen

    def settle(self) -> None:
        """Everything that was held for the fault is given back."""
        self.stage.engine.ask("forget")
        self.daemon.flush()
        after = eventually(self.level, lambda level: bool(level == self.before))
        self.row.leak = "none" if after == self.before else "LEAK"
        assert after == self.before

    def failures(self) -> Seen:
        """Objects that the daemon could not read or write."""
        failures: Seen = self.daemon.status()["counters"]["failures"]
        return failures


def loaded(answer: Seen, tier: str = "") -> int:
    """The tokens of an answer that kvwise says it loaded, from one tier or from any."""
    said = answer["said"]
    tokens: int = said.get("load_tokens", 0)
    return said.get("tiers", {}).get(tier, 0) if tier and tokens else tokens


def rig(processes: Processes, socket: Path) -> Seen:
    """How the engines of this module are started."""
    extra = {"client.url": str(socket), "client.timeout_s": CLIENT_S}
    return {"model": processes.model("llama"), "extra": extra}


@contextmanager
def case(
    stage: Stage, fault: str, settings: Seen | None = None, *, disk: Path | None = None
) -> Iterator[Case]:
    """A daemon for one fault, not started yet; it is gone afterwards."""
    folder = stage.processes.directory / f"fault-{len(stage.rows)}"
    values: Seen = {"plan.timeout_s": PLAN_S, **(settings or {})}
    daemon = HurtDaemon(folder, stage.socket, values, disk=disk)
    made = Case(stage, daemon, Row(fault))
    stage.rows.append(made.row)
    shutil.copytree(stage.full, daemon.disk)
    try:
        yield made
    finally:
        daemon.kill()
