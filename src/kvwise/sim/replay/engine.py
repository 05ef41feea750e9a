"""Engine: prompts in order of arrival, computed in steps, beside loads and decoding. No policy.

A request asks the cache as soon as it may run: what it loads travels while others are computed.
Steps take the prompts in order of arrival, so many tokens at a time, and one token of every request
that decodes. A load that is late is given up, and all of it is computed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kvwise.core.hints import Hints
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.words import (
    Asked,
    Filled,
    Observed,
    Offered,
    Planned,
    Progress,
    Released,
    Wanted,
)
from kvwise.sim.replay.brains import Space, granted, planned
from kvwise.sim.replay.device import Device
from kvwise.sim.replay.node import Node, Pipe
from kvwise.sim.replay.profile import Profile
from kvwise.units import NS_PER_S


@dataclass(eq=False, slots=True)
class Call:
    """One request, and how far it is.

    Attributes:
        path: numbers of its blocks.
        keys: of its blocks, joined.
        tokens: of the prompt that are on the device.
        coming: how many more will be when a load is over.
        found_blocks: matched on the device or in the cache, loaded or not.
        known_blocks: that the cache has for sure.
        local_blocks: found on the device.
        held_blocks: room on the device that is set aside for it.
        loaded: tokens that were loaded, by tier.
        wait_s: how long its load took, 0 without one.
        is_late: whether a load was given up.
        copied_chunks, copy_ns: of its load, that were copied to the device, and how long it took.
        left_tokens: of the answer.
        first_ns: when its first token was there.
    """

    number: int
    arrival_ns: int
    input_tokens: int
    output_tokens: int
    path: list[int]
    keys: bytes
    tokens: int = 0
    coming: int = 0
    found_blocks: int = 0
    known_blocks: int = 0
    local_blocks: int = 0
    held_blocks: int = 0
    loaded: dict[str, int] = field(default_factory=dict)
    wait_s: float = 0.0
    is_late: bool = False
    copied_chunks: int = 0
    copy_ns: int = 0
    left_tokens: int = 0
    first_ns: int = 0

    def work(self) -> tuple[int, float]:
        """What is to be computed of the prompt: tokens and pairs."""
        before = self.tokens + self.coming
        new = max(0, self.input_tokens - before)
        return new, new * (before + new / 2)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine.

    Attributes:
        step_tokens: most tokens of prompts in one step.
        running_max: most requests at once, those that load included.
        hints: what every request says to the cache.
    """

    profile: Profile
    space: Space
    step_tokens: int
    running_max: int
    hints: Hints


class Engine:
    """One engine: a client of a node.

    Attributes:
        busy_s: seconds of all steps.
        prompts_s: of them, what prompts alone would have taken.
        computed_tokens: tokens of prompts in them.
    """

    def __init__(self, client: int, spec: EngineSpec, node: Node, device: Device | None) -> None:
        """An idle engine; without a device's cache nothing stays on it."""
        self._client, self._spec, self._node, self._device = client, spec, node, device
        self._timeline = node.timeline
        profile = spec.profile
        rates = (profile.link_bytes_per_s, profile.link_latency_s)
        self.link_in, self.link_out = (Pipe(self._timeline, *rates) for _ in range(2))
        self._waiting: deque[Call] = deque()
        self._running: dict[int, Call] = {}
        self._prompts: list[tuple[int, Call]] = []
        self._decoding: dict[int, Call] = {}
        self._on_first: Callable[[Call], None] = _nothing
        self._step = 0
        self._is_stepping = False
        self._decode_began: tuple[int, int, int] | None = None
        self.busy_s = 0.0
        self.prompts_s = 0.0
        self.computed_tokens = 0

    def on_first(self, told: Callable[[Call], None]) -> None:
        """Have somebody told of every first token."""
        self._on_first = told

    def backlog(self) -> tuple[int, float]:
        """What is to be computed of all prompts that are here and run: tokens and pairs."""
        tokens, pairs = 0, 0.0
        for call in self._running.values():
            new, more = call.work()
            tokens += new
            pairs += more
        return tokens, pairs

    def work_s(self) -> float:
        """Seconds of computing for all prompts that are here, those that wait included."""
        profile, (tokens, pairs) = self._spec.profile, self.backlog()
        for call in self._waiting:
            new, more = call.work()
            tokens += new
            pairs += more
        return profile.token_s * tokens + profile.pair_s * pairs

    def match(self, path: list[int]) -> int:
        """Blocks of a prompt that are on the device."""
        return self._device.match(path) if self._device else 0

    def submit(self, call: Call) -> None:
        """A request arrives."""
        self._waiting.append(call)
        self._admit()

    def _admit(self) -> None:
        """Start those that wait, in order, while there is room."""
        while self._waiting and len(self._running) < self._spec.running_max:
            call = self._waiting[0]
            tokens = call.input_tokens + call.output_tokens
            call.held_blocks = -(-tokens // self._spec.space.chunk_tokens)
            if self._device and not self._device.hold(call.held_blocks):
                return
            self._waiting.popleft()
            self._start(call)

    # --- loading ---

    def _start(self, call: Call) -> None:
        """Ask the cache, and load or compute."""
        spec, now_ns = self._spec, self._timeline.now_ns
        chunk = spec.space.chunk_tokens
        call.local_blocks = min(self.match(call.path), (call.input_tokens - 1) // chunk)
        call.tokens = call.local_blocks * chunk
        tokens, pairs = self.backlog()
        asked = Asked(
            now_ns, self._client, str(call.number), spec.space.digest, call.keys, call.tokens,
            call.input_tokens, spec.hints, tokens, pairs,
        )  # fmt: skip
        plan = planned(self._node.say(asked))
        self._running[call.number] = call
        call.found_blocks = plan.decision.match_tokens // chunk
        if not call.local_blocks:
            call.known_blocks = call.found_blocks
        if not plan.lease:
            self._ready(call)
            return
        call.coming = plan.load_tokens
        self._node.hear(plan.lease, partial(self._progress, call, plan, now_ns))
        self._timeline.after(plan.deadline_ns, partial(self._late, call, plan, now_ns))
        self._node.say(Wanted(now_ns, self._client, plan.lease, plan.chunks))

    def _progress(self, call: Call, plan: Planned, begun_ns: int, told: Progress) -> None:
        """Copy what arrived in memory; a load that will never be whole is given up."""
        if told.failed:
            self._timeline.after(0, partial(self._late, call, plan, begun_ns))
            return
        more = told.ready - call.copied_chunks
        if more <= 0:
            return
        call.copied_chunks = told.ready
        size_bytes = more * self._spec.space.object_bytes
        before_ns = self.link_in.busy_ns
        end_ns = self.link_in.finish_ns(size_bytes)
        call.copy_ns += self.link_in.busy_ns - before_ns
        if told.ready == plan.chunks:
            self._timeline.at(end_ns, partial(self._loaded, call, plan, begun_ns))

    def _loaded(self, call: Call, plan: Planned, begun_ns: int) -> None:
        """All of it is on the device."""
        if not call.coming:
            return
        call.tokens += call.coming
        call.loaded = plan.decision.tiers
        self._release(call, plan, begun_ns, failed=False)

    def _late(self, call: Call, plan: Planned, begun_ns: int) -> None:
        """Give a load up that is not over."""
        if call.coming:
            call.is_late = True
            self._release(call, plan, begun_ns, failed=True)

    def _release(self, call: Call, plan: Planned, begun_ns: int, *, failed: bool) -> None:
        now_ns = self._timeline.now_ns
        call.coming = 0
        call.wait_s = (now_ns - begun_ns) / NS_PER_S
        self._node.forget(plan.lease)
        size_bytes = 0 if failed else plan.chunks * self._spec.space.object_bytes
        copy_ns = 0 if failed else call.copy_ns
        self._node.say(
            Released(
                now_ns, self._client, plan.lease, size_bytes, copy_ns, now_ns - begun_ns, failed
            )
        )
        self._ready(call)

    def _ready(self, call: Call) -> None:
        """The rest of a prompt can be computed."""
        heapq.heappush(self._prompts, (call.number, call))
        self._interrupt()
        self._go()

    # --- computing ---

    def _go(self) -> None:
        """Begin a step if none is under way and there is something to do."""
        if self._is_stepping or not (self._prompts or self._decoding):
            return
        if self._prompts:
            self._prefill()
        else:
            self._decode()

    def _prefill(self) -> None:
        """One step of prompts, and a token of everybody who decodes."""
        profile, budget = self._spec.profile, self._spec.step_tokens
        work: list[tuple[Call, int]] = []
        tokens, pairs = 0, 0.0
        for _, call in heapq.nsmallest(_HEADS_MAX, self._prompts):
            new = min(call.input_tokens - call.tokens, budget - tokens)
            if new <= 0:
                break
            work.append((call, new))
            tokens += new
            pairs += new * (call.tokens + new / 2)
        prompts_s = profile.step_s + profile.token_s * tokens + profile.pair_s * pairs
        self.prompts_s += prompts_s
        decoding = len(self._decoding)
        least_s = profile.decode_step_s if decoding else 0.0
        seconds = max(prompts_s, least_s) + profile.decode_token_s * decoding
        end = partial(self._prefilled, work, (tokens, pairs, seconds))
        self._begin(seconds, end)

    def _begin(self, seconds: float, end: Callable[[], None]) -> None:
        self.busy_s += seconds
        self._is_stepping = True
        self._step += 1
        self._timeline.after(max(1, round(seconds * NS_PER_S)), end)

    def _prefilled(self, work: list[tuple[Call, int]], step: tuple[int, float, float]) -> None:
        """A step of prompts is over."""
        tokens, pairs, seconds = step
        now_ns, space = self._timeline.now_ns, self._spec.space
        self.computed_tokens += tokens
        self._node.say(Observed(now_ns, self._client, space.digest, tokens, pairs, seconds))
        self._decoded(1)
        done = []
        for call, new in work:
            call.tokens += new
            if call.tokens >= call.input_tokens:
                done.append(call)
        if done:
            self._prompts = [one for one in self._prompts if one[1] not in done]
            heapq.heapify(self._prompts)
        for call in done:
            self._first(call)
        self._is_stepping = False
        self._admit()
        self._go()

    def _first(self, call: Call) -> None:
        """A prompt is computed: its first token is there, and its blocks are offered."""
        call.first_ns = self._timeline.now_ns
        call.left_tokens = call.output_tokens - 1
        if self._device:
            prompt = len(call.path)
            self._device.keep(call.path, min(prompt, call.held_blocks))
            call.held_blocks = max(0, call.held_blocks - prompt)
        self._offer(call)
        if call.left_tokens > 0:
            self._decoding[call.number] = call
        else:
            self._finish(call)
        self._on_first(call)

    def _finish(self, call: Call) -> None:
        del self._running[call.number]
        self._decoding.pop(call.number, None)
        if self._device:
            self._device.free(call.held_blocks)

    def _offer(self, call: Call) -> None:
        """Offer what the cache was not known to have, whole blocks only."""
        spec, now_ns = self._spec, self._timeline.now_ns
        known, whole = call.known_blocks, call.input_tokens // spec.space.chunk_tokens
        if known >= whole:
            return
        keys = call.keys[known * KEY_BYTES : whole * KEY_BYTES]
        parent = call.keys[(known - 1) * KEY_BYTES : known * KEY_BYTES] if known else ROOT
        name = str(call.number)
        offer = Offered(
            now_ns,
            self._client,
            name,
            spec.space.digest,
            parent,
            keys,
            call.input_tokens,
            spec.hints,
        )
        grant = granted(self._node.say(offer))
        if grant.lease:
            good = len(grant.chunks)
            end_ns = self.link_out.finish_ns(good * spec.space.object_bytes)
            self._timeline.at(end_ns, partial(self._filled, grant.lease, good))

    def _filled(self, lease: int, good: int) -> None:
        self._node.say(Filled(self._timeline.now_ns, self._client, lease, good))

    # --- decoding ---

    def _decode(self) -> None:
        """As many steps as nobody leaves in; somebody who arrives ends them early."""
        profile = self._spec.profile
        each_s = profile.decode_step_s + profile.decode_token_s * len(self._decoding)
        steps = min(call.left_tokens for call in self._decoding.values())
        each_ns = max(1, round(each_s * NS_PER_S))
        self._decode_began = (self._timeline.now_ns, each_ns, steps)
        self._begin(each_ns * steps / NS_PER_S, partial(self._decode_over, self._step + 1, steps))

    def _interrupt(self) -> None:
        """Let a run of decoding steps end with the step that is under way."""
        if self._decode_began is None:
            return
        began_ns, each_ns, steps = self._decode_began
        some = max(1, -(-(self._timeline.now_ns - began_ns) // each_ns))
        if some >= steps:
            return
        self._decode_began = (began_ns, each_ns, some)
        self.busy_s -= each_ns * (steps - some) / NS_PER_S
        self._step += 1
        end_ns = began_ns + some * each_ns
        self._timeline.at(end_ns, partial(self._decode_over, self._step, some))

    def _decode_over(self, step: int, steps: int) -> None:
        """A run of decoding steps is over, unless it was ended early."""
        if step != self._step:
            return
        self._decode_began = None
        self._decoded(steps)
        self._is_stepping = False
        self._admit()
        self._go()

    def _decoded(self, steps: int) -> None:
        """Everybody who decodes has so many tokens more."""
        over = []
        for call in self._decoding.values():
            call.left_tokens -= steps
            if call.left_tokens <= 0:
                over.append(call)
        for call in over:
            self._finish(call)


_HEADS_MAX = 64
"""Most prompts that one step takes tokens of."""


def _nothing(_call: Call) -> None:
    """Nobody wants to know."""
