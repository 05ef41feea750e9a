"""Engine: the twin of a serving engine with a connector, one client of a node.

It batches requests in steps that take as long as its GPU law says, keeps a few prefixes on its
device, asks for the rest, loads or computes, and offers what it computed. It dies and freezes when
told to. What to load is the brain's decision, never its own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys, split_keys
from kvwise.core.words import (
    Asked,
    Event,
    Filled,
    Granted,
    Namespace,
    Observed,
    Offered,
    Planned,
    Released,
    Wanted,
)
from kvwise.sim.faults import Fault
from kvwise.sim.machines import GpuLaw, Link
from kvwise.sim.node import Hall, Node
from kvwise.sim.timeline import Act
from kvwise.sim.transfer import Desk, Lane, LoadTransfer, StoreTransfer
from kvwise.sim.workload import CHUNK_TOKENS, Request
from kvwise.units import NS_PER_MS, NS_PER_S

BLOCK_TOKENS = 16
"""Tokens of one block of the simulated engines."""

DECODE_TOKENS = 48
"""Tokens that a request generates in one step here: it stands for the steps between prefills."""

LIVES_MAX = 6
"""An engine that died so often in transfers dies in no more of them, or nothing would ever end."""

REBOOT_NS = 300 * NS_PER_MS
"""Time until an engine that died is back."""


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "loading"
    COMPUTING = "computing"
    DECODING = "decoding"
    DONE = "done"


@dataclass(slots=True)
class Run:
    """A request being served.

    Attributes:
        tokens: how many have their KV on the device.
        coming: how many more will have it when a load is over.
        offered: chunks that were offered, or need not be.
        first_ns: when the first token was there; 0 before.
    """

    request: Request
    keys: bytes
    phase: Phase = Phase.WAITING
    tokens: int = 0
    coming: int = 0
    offered: int = 0
    first_ns: int = 0
    attempt: int = 0
    load: LoadTransfer | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.request.prompt_tokens

    @property
    def goal_tokens(self) -> int:
        """Tokens of prompt and output."""
        return self.request.prompt_tokens + self.request.output_tokens

    @property
    def name(self) -> str:
        """What the engine calls the request; a new life of the engine, a new name."""
        return f"{self.request.name}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: its GPU, its link, and how many chunks its own cache holds."""

    space: Namespace
    gpu: GpuLaw
    link_bytes_per_s: float
    link_latency_ns: int
    device_chunks: int


@dataclass(slots=True)
class Served:
    """What became of requests."""

    done: int = 0
    aborted: int = 0
    loaded_chunks: int = 0
    failed_loads: int = 0
    ttft_ns: list[int] = field(default_factory=list)


class Engine:
    """One engine process after another, under one name."""

    def __init__(self, spec: EngineSpec, node: Node, hall: Hall) -> None:
        """An idle engine, attached to the node."""
        self.served = Served()
        self.pending = 0
        self._spec = spec
        self._node = node
        self._hall = hall
        self._life = 0
        self._frozen_ns = 0
        self._alive = True
        self._stepping = False
        self._waiting: deque[Run] = deque()
        self._running: list[Run] = []
        self._device: OrderedDict[bytes, None] = OrderedDict()
        self._links = self._fresh_links()
        self._attach()
        node.restarted.append(lambda: self._later(NS_PER_MS, self._reattach))

    # --- from outside ---

    @property
    def space(self) -> Namespace:
        """The namespace that this engine uses."""
        return self._spec.space

    def arrive(self, request: Request) -> None:
        """A request comes in."""
        keys = chain_keys(
            self._spec.space.digest, request.content, self._chunk_tokens // CHUNK_TOKENS
        )
        self._waiting.append(Run(request, keys))
        self.pending += 1
        self._wake()

    def die(self) -> None:
        """The process is killed, with whatever it holds; another one takes its requests over."""
        if not self._alive:
            return
        self._alive = False
        self._life += 1
        self._frozen_ns = 0
        if self._attached:
            self._node.leave(self._client)
        again = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._device.clear()
        self._later(REBOOT_NS, lambda: self._reboot(again))

    def freeze(self, lasts_ns: int) -> None:
        """The process stops for a while, in the middle of whatever it does."""
        self._frozen_ns = max(self._frozen_ns, self._hall.timeline.now_ns + lasts_ns)

    def leave(self) -> None:
        """The engine is shut down in order."""
        if self._alive and self._attached:
            self._node.leave(self._client)
        self._alive = False
        self._life += 1

    # --- life ---

    @property
    def _chunk_tokens(self) -> int:
        """Tokens of one chunk of this engine's model."""
        return self._spec.space.layout.chunk_tokens

    def _fresh_links(self) -> tuple[Lane, ...]:
        """Both directions of each rank's link."""
        spec = self._spec

        def link() -> Link:
            return Link(
                self._hall.timeline,
                rate_bytes_per_s=spec.link_bytes_per_s,
                latency_ns=spec.link_latency_ns,
            )

        return tuple(Lane(link(), link()) for _ in range(spec.space.layout.ranks))

    def _attach(self) -> None:
        """Attach to the daemon; the one of another generation knows this engine no more."""
        self._generation = 0
        if self._node.is_up:
            self._client = self._node.join([self._spec.space])
            self._generation = self._node.generation

    def _reattach(self) -> None:
        """The daemon is back; a dead engine will see that when it is back itself."""
        if self._alive and not self._attached:
            self._attach()

    @property
    def _attached(self) -> bool:
        return self._node.is_up and self._node.generation == self._generation

    def _reboot(self, again: list[Run]) -> None:
        self._alive = True
        self._stepping = False
        self._links = self._fresh_links()
        self._attach()
        for run in again:
            self._waiting.append(Run(run.request, run.keys, attempt=run.attempt + 1))
        self._wake()

    def _later(self, delay_ns: int, act: Act) -> None:
        """Have something happen in this life of the engine, not before it thaws."""
        self._later_in(self._life, delay_ns, act)

    def _later_in(self, life: int, delay_ns: int, act: Act) -> None:
        def happen() -> None:
            if life != self._life:
                return
            if self._hall.timeline.now_ns < self._frozen_ns:
                self._hall.timeline.at(self._frozen_ns, happen)
            else:
                act()

        self._hall.timeline.after(delay_ns, happen)

    def _say(self, event: Event) -> Planned | Granted | None:
        """Say something to the daemon, if it is there."""
        return self._node.handle(event) if self._attached else None

    def _desk(self) -> Desk:
        return Desk(
            node=self._node,
            client=self._client,
            generation=self._generation,
            later=partial(self._later_in, self._life),
            now_ns=lambda: self._hall.timeline.now_ns,
            thaws_ns=lambda: self._frozen_ns,
            injector=self._hall.injector,
            lanes=self._links,
            layout=self._spec.space.layout,
            begun=self._mishap,
        )

    def _mishap(self, key: bytes, copy_ns: int) -> None:
        """What happens to the engine in the middle of a copy, if anything does."""
        injector = self._hall.injector
        if injector.strikes(Fault.FREEZE_IN_TRANSFER, key):
            detail = injector.dice(Fault.FREEZE_IN_TRANSFER, key)
            lasts_ns = int(detail.wait(detail.pick((1.0, 30.0, 2000.0))) * NS_PER_MS)
            self._later(detail.below(copy_ns + 1), partial(self.freeze, lasts_ns))
        if self._life < LIVES_MAX and injector.strikes(Fault.DEATH_IN_TRANSFER, key):
            detail = injector.dice(Fault.DEATH_IN_TRANSFER, key)
            self._later(detail.below(copy_ns + 1), self.die)

    # --- steps ---

    def _wake(self) -> None:
        if self._alive and not self._stepping:
            self._stepping = True
            self._later(0, self._step)

    def _step(self) -> None:
        """Begin a step, if there is anything to compute."""
        self._admit()
        batch = self._batch()
        if not batch:
            self._stepping = False
            return
        work = [(new, run.tokens) for run, new in batch if run.phase is Phase.COMPUTING]
        crowd = [(0, 0)] * (len(batch) - len(work))
        seconds = self._spec.gpu.seconds([*work, *crowd])
        self._later(int(seconds * NS_PER_S), lambda: self._step_done(batch, work, seconds))

    def _admit(self) -> None:
        """Let waiting requests run, as many as may."""
        while self._waiting and len(self._running) < self._spec.gpu.running_max:
            run = self._waiting.popleft()
            self._running.append(run)
            self._start(run)

    def _batch(self) -> list[tuple[Run, int]]:
        """What each request computes in this step."""
        batch, left = [], self._spec.gpu.step_tokens
        for run in self._running:
            if run.phase is Phase.COMPUTING and left:
                new = min(left, run.prompt_tokens - run.tokens)
                left -= new
                batch.append((run, new))
            elif run.phase is Phase.DECODING:
                batch.append((run, min(DECODE_TOKENS, run.goal_tokens - run.tokens)))
        return batch

    def _step_done(
        self, batch: list[tuple[Run, int]], work: list[tuple[int, int]], seconds: float
    ) -> None:
        """A step ran: say how long it took, and offer what it computed."""
        if work:
            self._observe(work, len(batch), seconds)
        for run, new in batch:
            if run.phase is Phase.DONE:
                continue
            run.tokens += new
            if run.phase is Phase.COMPUTING and run.tokens >= run.prompt_tokens:
                run.phase = Phase.DECODING
                run.first_ns = self._hall.timeline.now_ns
                self.served.ttft_ns.append(run.first_ns - run.request.at_ns)
            self._offer(run)
            if run.tokens >= run.goal_tokens:
                self._finish(run)
        self._step()

    def _observe(self, work: list[tuple[int, int]], requests: int, seconds: float) -> None:
        name = str(self._hall.timeline.now_ns)
        if self._hall.injector.strikes(Fault.WILD_TIMING, name):
            detail = self._hall.injector.dice(Fault.WILD_TIMING, name)
            seconds *= detail.pick((0.0, 1e-6, 1e-2, 1e2, 1e6))
        tokens = sum(new for new, _ in work)
        pairs = sum(new * (before + new / 2) for new, before in work)
        space = self._spec.space.digest
        now_ns = self._node.clock_ns()
        self._say(Observed(now_ns, self._client, space, tokens, pairs, seconds, requests))

    def _finish(self, run: Run, *, aborted: bool = False) -> None:
        """A request is over; its prefix stays on the device for a while."""
        run.phase = Phase.DONE
        self._running.remove(run)
        self.pending -= 1
        if aborted:
            self.served.aborted += 1
            return
        self.served.done += 1
        for key in split_keys(run.keys[: run.tokens // self._chunk_tokens * KEY_BYTES]):
            self._device[key] = None
            self._device.move_to_end(key)
        while len(self._device) > self._spec.device_chunks:
            self._device.popitem(last=False)

    # --- loads ---

    def _start(self, run: Run) -> None:
        """Ask what to load, and load it or compute."""
        run.phase = Phase.COMPUTING
        run.tokens = self._local_tokens(run)
        planned = self._ask(run)
        injector, name = self._hall.injector, run.name
        if injector.strikes(Fault.ASK_AGAIN, name):
            planned = self._ask(run)
        if injector.strikes(Fault.ABORT, name):
            self._abort(run, planned)
        elif planned is not None and planned.lease:
            run.phase, run.coming = Phase.LOADING, planned.load_tokens
            delay_ns = 0
            if injector.strikes(Fault.UNUSED_PLAN, name):
                most_ns = 2 * self._node.config.lease_ttl_ns
                delay_ns = injector.dice(Fault.UNUSED_PLAN, name).below(most_ns)
            self._later(delay_ns, lambda: self._want(run, planned))

    def _local_tokens(self, run: Run) -> int:
        """Tokens of the prompt that the device holds; at least one is left to compute."""
        chunks = 0
        for key in split_keys(run.keys):
            if key not in self._device:
                break
            chunks += 1
        blocks = chunks * self._chunk_tokens // BLOCK_TOKENS
        if blocks and self._hall.dice.named("local", run.name).chance(0.3):
            blocks -= 1
        return min(blocks, (run.prompt_tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS

    def _backlog(self, run: Run) -> tuple[int, float]:
        """What is still to be computed of the prompts before this one: tokens, and pairs."""
        tokens, pairs = 0, 0.0
        for other in self._running:
            if other is not run and other.phase in (Phase.COMPUTING, Phase.LOADING):
                before = other.tokens + other.coming
                new = max(0, other.prompt_tokens - before)
                tokens += new
                pairs += new * (before + new / 2)
        return tokens, pairs

    def _ask(self, run: Run) -> Planned | None:
        backlog_tokens, backlog_pairs = self._backlog(run)
        asked = Asked(
            now_ns=self._node.clock_ns(),
            client=self._client,
            request=run.name,
            space=self._spec.space.digest,
            keys=run.keys[: run.prompt_tokens // self._chunk_tokens * KEY_BYTES],
            local_tokens=run.tokens,
            total_tokens=run.prompt_tokens,
            hints=run.request.hints,
            backlog_tokens=backlog_tokens,
            backlog_pairs=backlog_pairs,
            requests=len(self._running),
        )
        answer = self._say(asked)
        return answer if isinstance(answer, Planned) else None

    def _abort(self, run: Run, planned: Planned | None) -> None:
        """A user hangs up; an engine in a hurry forgets to give the plan back."""
        tidy = self._hall.injector.dice(Fault.ABORT, run.name).chance(0.5)
        if planned is not None and planned.lease and tidy:
            self._say(Released(self._node.clock_ns(), self._client, planned.lease))
        self._finish(run, aborted=True)
        self._wake()

    def _want(self, run: Run, planned: Planned) -> None:
        """The engine has blocks: load."""
        injector, chunks = self._hall.injector, planned.chunks
        if injector.strikes(Fault.FEWER_CHUNKS, run.name):
            chunks = injector.dice(Fault.FEWER_CHUNKS, run.name).between(-1, chunks)
        now_ns = self._node.clock_ns()
        answer = self._say(Wanted(now_ns, self._client, planned.lease, chunks))
        if injector.strikes(Fault.STRAY_WORD, run.name):
            self._say(Wanted(now_ns, self._client, planned.lease, planned.chunks))
            self._say(Wanted(now_ns, self._client + 1, planned.lease, 1))
            self._say(Filled(now_ns, self._client, planned.lease, 1))
            self._say(Released(now_ns, self._client + 1, planned.lease, failed=True))
        if not isinstance(answer, Granted) or not answer.chunks:
            self._say(Released(now_ns, self._client, planned.lease, failed=True))
            self._loaded(run, planned, 0)
            return
        first, stop = planned.first_chunk, planned.first_chunk + len(answer.chunks)
        keys = split_keys(run.keys[first * KEY_BYTES : stop * KEY_BYTES])
        transfer = LoadTransfer(
            self._desk(), planned, answer, keys, lambda: self._load_over(run, planned)
        )
        run.load = transfer
        if injector.strikes(Fault.ABORT, run.name):
            most_ns = max(1, planned.deadline_ns)
            delay_ns = injector.dice(Fault.ABORT, run.name).below(most_ns)
            self._later(delay_ns, transfer.cancel)

    def _load_over(self, run: Run, planned: Planned) -> None:
        load = run.load
        self._loaded(run, planned, load.copied if load is not None else 0)

    def _loaded(self, run: Run, planned: Planned, chunks: int) -> None:
        """A load ended, well or badly, with so many chunks on the device: compute the rest."""
        run.load, run.coming = None, 0
        if chunks:
            stop = planned.first_chunk + chunks
            run.tokens = max(run.tokens, stop * self._chunk_tokens)
            run.offered = max(run.offered, stop)
            self.served.loaded_chunks += chunks
        self.served.failed_loads += chunks < planned.chunks
        run.phase = Phase.COMPUTING
        self._wake()

    # --- stores ---

    def _offer(self, run: Run) -> None:
        """Offer every chunk that is whole now."""
        whole = min(run.tokens // self._chunk_tokens, len(run.keys) // KEY_BYTES)
        if whole <= run.offered or not self._attached:
            return
        first, run.offered = run.offered, whole
        parent = run.keys[(first - 1) * KEY_BYTES : first * KEY_BYTES] if first else ROOT
        keys = run.keys[first * KEY_BYTES : whole * KEY_BYTES]
        offered = Offered(
            now_ns=self._node.clock_ns(),
            client=self._client,
            request=run.name,
            space=self._spec.space.digest,
            parent=parent,
            keys=keys,
            total_tokens=run.prompt_tokens,
            hints=run.request.hints,
        )
        granted = self._say(offered)
        if isinstance(granted, Granted) and granted.chunks:
            split = split_keys(keys)
            StoreTransfer(self._desk(), granted, [split[chunk] for chunk in granted.chunks])
