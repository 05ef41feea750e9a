"""World: one scenario from its first request to an empty cache. It owns the loop and the end.

Virtual time, one heap, one seed. Whatever breaks on the way is an exception; `run` turns it into an
outcome that names it, so that a thousand seeds can be run and the one that failed be looked at.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kvwise.core.hints import Hints
from kvwise.core.keys import ROOT, chain_keys
from kvwise.core.words import DRAM, Cleared, Command, Event, Granted, Offered
from kvwise.errors import KvwiseError
from kvwise.sim.checkers import at_rest, audit, empty
from kvwise.sim.dice import Dice
from kvwise.sim.engine import Engine
from kvwise.sim.faults import Fault, Injector, Upset
from kvwise.sim.machines import Medium
from kvwise.sim.node import Hall, Node
from kvwise.sim.rules import RuleBroken, require
from kvwise.sim.scenario import REQUESTS, Scenario, draw
from kvwise.sim.timeline import Act, Timeline
from kvwise.units import NS_PER_S, round_up

PATIENCE_NS = 600 * NS_PER_S
"""Longest that anything may go on after the last thing that was planned."""

UNSEEN = 0xFFFFFFFF
"""Content that no request has."""

AUDIT_EVERY = 4
"""The whole state is audited after every so many events; the ledger hears each of them."""

FAILURES = (AssertionError, KvwiseError, LookupError, ValueError, TypeError, ArithmeticError)
"""What counts as a failure of what is simulated; anything else is one of the simulator's own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke.

    Attributes:
        rule: in words that are the same whenever the same thing breaks.
        details: the circumstances.
        trace: the last events, oldest first, each with the commands that answered it.
    """

    rule: str
    details: str
    at_event: int
    trace: tuple[tuple[Event, list[Command]], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        digest: of every event and command; equal digests, equal runs.
        simulated_s: virtual time.
        faults: how often each kind happened.
        done, aborted: requests.
        loaded_chunks: whose bytes were checked on arrival.
        ttft_s: mean time to first token.
    """

    seed: int
    digest: str
    events: int
    commands: int
    simulated_s: float
    done: int
    aborted: int
    loaded_chunks: int
    ttft_s: float
    faults: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None


CLAIM = Hints(priority=1.0)
"""With this nothing is refused for being worth little."""


class World:
    """Machines, engines and one node, set up as a scenario says."""

    def __init__(self, scenario: Scenario, *, audit_every: int) -> None:
        """Everything is scheduled; nothing has happened."""
        self.timeline = Timeline()
        dice = Dice(scenario.seed).named("world")
        self.injector = Injector(dice.named("faults"), scenario.plan.rates)
        hall = Hall(self.timeline, self.injector, dice.named("node"), audit_every)
        self.node = Node(scenario.brain, scenario.drives, hall)
        self.engines = [Engine(spec, self.node, hall) for spec in scenario.engines]
        self._dice = dice.named("upsets")
        self._planned = 0
        self._last_ns = 0
        for request in scenario.requests:
            engine = self.engines[request.engine % len(self.engines)]
            self._plan(request.at_ns, partial(engine.arrive, request))
        for upset in scenario.plan.upsets:
            self._plan(upset.at_ns, partial(self._upset, upset))

    def run(self) -> None:
        """Serve everything, then see that nothing is left behind.

        Raises:
            AssertionError: a rule was broken. Other exceptions are the brain's own.
        """
        self._until(lambda: not self._planned and not any(e.pending for e in self.engines))
        self._until(self._is_quiet)
        audit(self.node.brain, self.node.ledger)
        at_rest(self.node.ledger, self.node.media)
        self._claim_arena()
        self._until(lambda: not self._kept_bytes())
        for engine in self.engines:
            engine.leave()
        self.node.handle(Cleared(self.node.clock_ns()))
        self._until(self._is_quiet)
        empty(self.node.brain, self.node.ledger, self.node.media)

    # --- inside ---

    def _plan(self, at_ns: int, act: Act) -> None:
        """Have something happen that the scenario names."""
        self._planned += 1
        self._last_ns = max(self._last_ns, at_ns)

        def happen() -> None:
            self._planned -= 1
            act()

        self.timeline.at(at_ns, happen)

    def _until(self, over: Callable[[], bool]) -> None:
        """Let time pass until something is so."""
        from_ns = max(self.timeline.now_ns, self._last_ns)
        while not over():
            self.timeline.step()
            pending = [engine.pending for engine in self.engines]
            in_time = self.timeline.now_ns <= from_ns + PATIENCE_NS
            require("everything ends", (pending, self.node.ledger.jobs), held=in_time)

    def _is_quiet(self) -> bool:
        """Whether nothing is held and nothing is under way."""
        node, ledger = self.node, self.node.ledger
        held = ledger.promises or ledger.grants or ledger.jobs
        return node.is_up and not held and all(drive.settled for drive in node.drives.values())

    def _kept_bytes(self) -> int:
        """Bytes of the arena that hints keep."""
        return int(self.node.brain.snapshot()["levels"]["hint_pinned_bytes"])

    def _claim_arena(self) -> None:
        """While nobody holds anything, whoever needs the arena gets all but what hints keep."""
        node, space = self.node, self.engines[0].space
        client = node.join([space])
        each = round_up(space.layout.object_bytes, node.config.page_bytes)
        count = node.config.tiers[DRAM].capacity_bytes // each
        keys = chain_keys(space.digest, [UNSEEN] * count, 1)
        offered = Offered(node.clock_ns(), client, "claim", space.digest, ROOT, keys, hints=CLAIM)
        granted = node.handle(offered)
        given = len(granted.chunks) if isinstance(granted, Granted) else 0
        kept = -(-self._kept_bytes() // each)
        can = given + kept >= count
        require("what nobody holds can be had", (granted, count, kept), held=can)
        node.leave(client)

    def _upset(self, upset: Upset) -> None:
        """Something goes wrong, if there is anything that could."""
        node, now_ns = self.node, self.timeline.now_ns
        engine = self.engines[upset.target % len(self.engines)]
        media = list(node.media.values())
        medium = media[upset.target % len(media)] if media else None
        match upset.kind:
            case Fault.CLIENT_DEATH:
                engine.die()
            case Fault.CLIENT_FREEZE:
                engine.freeze(upset.lasts_ns)
            case Fault.CLEAR | Fault.CLEAR_SPACE if node.is_up:
                space = engine.space.digest if upset.kind is Fault.CLEAR_SPACE else b""
                node.handle(Cleared(node.clock_ns(), space))
            case Fault.RESTART:
                node.crash(down_ns=upset.lasts_ns)
            case Fault.SMALLER_CAP:
                node.crash(down_ns=upset.lasts_ns, capacity_share=upset.share)
            case Fault.CLOCK_JUMP:
                jump_ns = self._dice.named("jump", upset.at_ns).between(-2, 40) * NS_PER_S
                node.offset_ns = max(node.offset_ns + jump_ns, -now_ns)
            case _ if medium is not None:
                self._harm(medium, upset)
            case _:
                return
        self.injector.count(upset.kind)

    def _harm(self, medium: Medium, upset: Upset) -> None:
        """Something happens to a medium."""
        until_ns = self.timeline.now_ns + upset.lasts_ns
        match upset.kind:
            case Fault.SLOW_TIER:
                medium.slow_until_ns = until_ns
            case Fault.FULL_TIER:
                medium.full_until_ns = until_ns
            case Fault.DEAD_TIER:
                medium.dead_until_ns = until_ns
            case _:
                dice = self._dice.named("harm", upset.at_ns)
                for location in [at for at in medium.records if dice.chance(upset.share)]:
                    if upset.kind is Fault.LOST_RECORDS:
                        medium.lose(location)
                    else:
                        medium.records[location].rotten = True


def run(scenario: Scenario, *, audit_every: int = AUDIT_EVERY) -> Outcome:
    """Run a scenario; what breaks is named in the outcome."""
    world = World(scenario, audit_every=audit_every)
    failure = None
    try:
        world.run()
    except FAILURES as error:
        failure = _failure(error, world.node)
    node, served = world.node, [engine.served for engine in world.engines]
    ttft_ns = [ns for one in served for ns in one.ttft_ns]
    return Outcome(
        seed=scenario.seed,
        digest=node.digest,
        events=node.events,
        commands=node.commands,
        simulated_s=world.timeline.now_ns / NS_PER_S,
        done=sum(one.done for one in served),
        aborted=sum(one.aborted for one in served),
        loaded_chunks=sum(one.loaded_chunks for one in served),
        ttft_s=sum(ttft_ns) / max(1, len(ttft_ns)) / NS_PER_S,
        faults={fault.value: n for fault, n in sorted(world.injector.seen.items(), key=_by_name)},
        reasons=dict(sorted(node.reasons.items())),
        failure=failure,
    )


def run_seed(seed: int, *, requests: int = REQUESTS, audit_every: int = AUDIT_EVERY) -> Outcome:
    """Draw the scenario of a seed and run it."""
    return run(draw(seed, requests), audit_every=audit_every)


def _by_name(counted: tuple[Fault, int]) -> str:
    return counted[0].value


def _failure(error: Exception, node: Node) -> Failure:
    """Name what broke: a rule, or the place in the code where it did."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"
    if isinstance(error, RuleBroken):
        rule, details = error.rule, str(error)
    else:
        rule, details = place, str(error) or str(last.line)
    return Failure(rule, details, node.events, tuple(node.recent))
