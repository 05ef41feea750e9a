"""One tier: a trace against an arena of so many tokens, where nothing queues. It only drives.

Each request asks, loads what the plan says, and offers what the cache did not know. Time is that of
arrival; a load takes the profile's link, computing takes the profile's law. All blocks count alike,
so the prompt ends one token after its last block: the brain always leaves one to compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvwise.core.brain import Brain
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.words import (
    Asked,
    Command,
    Filled,
    Offered,
    Planned,
    Released,
    TierSpec,
    Wanted,
    Why,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import ConfigError
from kvwise.sim.replay.brains import (
    CLIENT,
    LEARNS,
    Digest,
    granted,
    planned,
    space_of,
    teach,
)
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.tape import Tape
from kvwise.sim.trace.assembly import Report
from kvwise.units import NS_PER_S

REPORT_EVERY = 500
_COPIES_TOLD = 64
"""Every so many loads the brain is told how long one took: nothing queues, so nothing changes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: which eviction policy, which plan policy, how much memory."""

    eviction: str
    plan: str
    capacity_tokens: int

    def capacity_blocks(self, tape: Tape) -> int:
        """Blocks that fit.

        Raises:
            ConfigError: none does.
        """
        blocks = self.capacity_tokens // tape.block_tokens
        if not blocks:
            raise ConfigError(
                f"{self.capacity_tokens} tokens hold no block of {tape.block_tokens}; "
                "hint: a larger --capacity-tokens"
            )
        return blocks


@dataclass(slots=True)
class Run:
    """What came of a job.

    Attributes:
        hit_blocks: found before each request, whether loaded or not.
        loaded_blocks, loads: of them, those that were loaded, and in how many requests.
        blocks_written: taken in.
        refused: blocks that were offered and not taken in, by reason.
        seconds_saved, seconds_lost: computing less loading, where that is positive and where not.
        gpu_s: seconds of computing that were left.
    """

    requests: int = 0
    input_blocks: int = 0
    hit_blocks: int = 0
    loaded_blocks: int = 0
    loads: int = 0
    blocks_written: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    seconds_saved: float = 0.0
    seconds_lost: float = 0.0
    gpu_s: float = 0.0
    digest: str = ""

    def not_taken(self) -> int:
        """Blocks that were offered and not taken in."""
        return sum(count for why, count in self.refused.items() if why != Why.PRESENT.value)


class _Driver:
    """One brain and one client of it."""

    def __init__(self, tape: Tape, profile: Profile, job: Job) -> None:
        """A brain that knows the profile's speeds and holds nothing."""
        self._tape, self._profile = tape, profile
        self._space = space_of(profile, tape.block_tokens)
        each = self._space.object_bytes
        blocks = min(job.capacity_blocks(tape), tape.distinct_blocks)
        link = profile.link_bytes_per_s
        tier = TierSpec("dram", blocks * each, each, 0, link, profile.link_latency_s)
        config = BrainConfig(each, (tier,), policy=job.plan, eviction=job.eviction)
        if job.eviction != LEARNS:
            config = replace(config, chance_min=0.0)
        self._brain = Brain(config)
        teach(self._brain, profile, self._space, blocks)
        self._digest = Digest()
        self._each_bytes = each
        self._arrival_ns, self._tokens = tape.arrival_ns.tolist(), tape.input_tokens.tolist()
        self.run = Run()

    def request(self, number: int) -> None:
        """One request, from its question to what it leaves in the cache."""
        tape, brain, space = self._tape, self._brain, self._space
        path = tape.blocks(number)
        keys = tape.keys[path].tobytes()
        now_ns, name = self._arrival_ns[number], str(number)
        total = len(path) * space.chunk_tokens + 1
        out = brain.handle(Asked(now_ns, CLIENT, name, space.digest, keys, 0, total))
        plan = planned(out)
        hits = plan.decision.match_tokens // space.chunk_tokens
        if plan.lease:
            out += self._load(plan, now_ns)
        if hits < len(path):
            at = hits * KEY_BYTES
            parent = keys[at - KEY_BYTES : at] if hits else ROOT
            offer = Offered(now_ns, CLIENT, name, space.digest, parent, keys[at:], total)
            out += self._keep(brain.handle(offer), now_ns)
        self._digest.add(out)
        self._account(number, plan, hits, len(path))

    def _load(self, plan: Planned, now_ns: int) -> list[Command]:
        """Copy what was promised, at once and without anybody in the way."""
        size_bytes = plan.chunks * self._each_bytes
        took_ns = round(self._profile.load_s(size_bytes) * NS_PER_S)
        out = self._brain.handle(Wanted(now_ns, CLIENT, plan.lease, plan.chunks))
        told = self.run.loads % _COPIES_TOLD == 0
        self.run.loads += 1
        copied = (size_bytes, took_ns) if told else (0, 0)
        return out + self._brain.handle(Released(now_ns, CLIENT, plan.lease, *copied, took_ns))

    def _keep(self, out: list[Command], now_ns: int) -> list[Command]:
        """Fill what was granted."""
        grant, run = granted(out), self.run
        for why, count in grant.reasons.items():
            run.refused[why.value] = run.refused.get(why.value, 0) + count
        if not grant.lease:
            return out
        run.blocks_written += len(grant.chunks)
        return out + self._brain.handle(Filled(now_ns, CLIENT, grant.lease, len(grant.chunks)))

    def _account(self, number: int, plan: Planned, hits: int, blocks: int) -> None:
        """What the plan was worth, by the profile's law and the prompt's real length."""
        run, profile = self.run, self._profile
        tokens = self._tokens[number]
        run.requests += 1
        run.input_blocks += blocks
        run.hit_blocks += hits
        run.loaded_blocks += plan.chunks
        covered = min(plan.load_tokens, max(0, tokens - 1))
        run.gpu_s += profile.compute_s(tokens - covered, covered)
        if plan.chunks:
            load_s = profile.load_s(plan.chunks * self._each_bytes)
            gain_s = profile.compute_s(covered, 0) - load_s
            run.seconds_saved += max(0.0, gain_s)
            run.seconds_lost += max(0.0, -gain_s)

    def finish(self) -> Run:
        """The account, with the digest of all commands."""
        self.run.digest = self._digest.text()
        return self.run


def run_single(tape: Tape, profile: Profile, job: Job, report: Report) -> Run:
    """Run a whole trace.

    Raises:
        ConfigError: the capacity holds no block, or the profile's objects are too large.
    """
    driver = _Driver(tape, profile, job)
    for number in range(tape.requests):
        if number % REPORT_EVERY == 0:
            report(f"{job.eviction} at {job.capacity_tokens} tokens: {number} of {tape.requests}")
        driver.request(number)
    return driver.finish()
