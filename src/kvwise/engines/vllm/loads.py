"""Loads, on the scheduler's side: asking, ordering, believing, and remembering what failed.

The cache decides what is worth loading, the worker half copies. Here a promise becomes an order,
and the reports of all ranks become one result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvwise.engines.copying import Chunks
from kvwise.engines.vllm.blocks import Tables, chunk_blocks, grant_pages
from kvwise.engines.vllm.counts import Counts
from kvwise.engines.vllm.link import Link
from kvwise.engines.vllm.orders import LoadOrder, LoadReport
from kvwise.engines.vllm.prompts import Grid, Prompt, backlog
from kvwise.live.clock import now_ns
from kvwise.live.messages import Ask, Plan, Release
from kvwise.units import NS_PER_S

PLAN_FRESH_NS = 5 * NS_PER_S
"""How long a plan stands for a request that vLLM has no room for; a lease lives much longer."""


@dataclass(slots=True)
class Loading:
    """A load whose reports are not all in.

    Attributes:
        first_hash: vLLM's hash of its first block.
        local: tokens that the device held.
        tokens: what vLLM was promised beyond them.
        tables: the request's blocks when the load was ordered.
        report: of the ranks that have reported.
    """

    prompt: Prompt
    plan: Plan
    order: LoadOrder
    first_hash: bytes
    local: int
    tokens: int
    tables: Tables
    report: LoadReport | None = None

    @property
    def failed(self) -> bool:
        """Whether it has to be computed after all."""
        return self.report is not None and bool(self.report.problem)

    @property
    def chunks(self) -> list[int]:
        """Numbers of its chunks."""
        first = self.plan.first_chunk
        return list(range(first, first + len(self.order.chunks.blocks)))

    @property
    def sources(self) -> dict[str, int]:
        """Its tokens by the tier they come from."""
        return split_tokens(self.plan, self.tokens)


class Loads:
    """All loads of one engine."""

    def __init__(self, link: Link, counts: Counts, grid: Grid, *, ranks: int, layers: int) -> None:
        """`ranks` workers report on every load; over so many `layers` copying may overlap."""
        self._link = link
        self._counts = counts
        self._grid = grid
        self._ranks = ranks
        self._layers = layers
        self._number = 0
        self._loading: dict[int, Loading] = {}
        self._orders: list[LoadOrder] = []
        self._cancels: list[int] = []

    def plan(self, prompt: Prompt, local: int, ahead: Iterable[Prompt]) -> Plan | None:
        """What to load beyond `local` tokens on the device; None for nothing.

        `ahead` are the prompts that are computed before this one.
        Nothing changes when it is asked again. The last token is never offered: one must be left
        to compute.
        """
        limit = self._limit(prompt)
        if limit * self._grid.chunk_tokens <= local:
            return None
        fresh = now_ns() - prompt.planned_ns < PLAN_FRESH_NS
        if prompt.plan is None or not fresh or (local, limit) != prompt.planned_for:
            before = list(ahead)
            backlog_tokens, backlog_pairs = backlog(before)
            plan = self._link.ask(
                Ask(
                    request=prompt.name,
                    space=self._grid.space,
                    keys=prompt.some_keys(0, limit),
                    local_tokens=local,
                    total_tokens=prompt.request.num_tokens,
                    hints=prompt.hints,
                    backlog_tokens=backlog_tokens,
                    backlog_pairs=backlog_pairs,
                    layers=self._layers,
                    requests=1 + len(before),
                )
            )
            prompt.plan, prompt.planned_for = plan, (local, limit)
            prompt.planned_ns = now_ns()
            if plan is not None:
                self._explain(prompt, plan)
        return prompt.plan if prompt.plan is not None and prompt.plan.lease else None

    def is_awaited(self, prompt: Prompt) -> bool:
        """Whether another request is loading blocks that this one begins with.

        Until that load is believed nobody else may read its blocks, and afterwards vLLM shares
        them: waiting is both safe and cheaper than loading twice.
        """
        hashes = prompt.request.block_hashes
        for loading in self._loading.values():
            first = loading.local // self._grid.block_tokens
            if loading.prompt is not prompt and hashes[first : first + 1] == [loading.first_hash]:
                return True
        return False

    def tokens(self, prompt: Prompt, plan: Plan, local: int) -> int:
        """Tokens that a plan provides beyond `local`, whole blocks."""
        end = (plan.first_chunk + plan.chunks) * self._grid.chunk_tokens
        most = self._limit(prompt) * self._grid.chunk_tokens
        return max(0, min(local + plan.load_tokens, end, most) - local)

    def order(self, prompt: Prompt, tables: Tables, tokens: int, *, layered: bool) -> None:
        """VLLM has blocks for `tokens` of the plan: have them loaded."""
        plan, (local, _) = prompt.plan, prompt.planned_for
        assert plan is not None, "vLLM loads only what was planned"
        prompt.plan = None
        grid, first, stop = self._grid, plan.first_chunk, local + tokens
        chunks = range(first, -(-stop // grid.chunk_tokens))
        grant = self._link.want(plan.lease, len(chunks))
        granted = grant is not None and len(grant.chunks) == len(chunks)
        pages = grant_pages(grant.pages if grant and granted else b"", len(chunks) * granted)
        only = range(local // grid.block_tokens, stop // grid.block_tokens)
        self._number += 1
        order = LoadOrder(
            number=self._number,
            lease=plan.lease,
            request=prompt.name,
            layered=layered,
            chunks=Chunks(pages, chunk_blocks(tables, grid, chunks, only=only)),
            wait_s=plan.wait_s,
        )
        prompt.stored = max(prompt.stored, stop // grid.chunk_tokens)
        self._orders.append(order)
        self._loading[order.number] = Loading(
            prompt,
            plan,
            order,
            first_hash=prompt.request.block_hashes[only.start],
            local=local,
            tokens=tokens,
            tables=tables,
        )

    def take_orders(self) -> tuple[list[LoadOrder], list[int]]:
        """(loads to start, numbers of loads to cancel) since the last call."""
        taken = (self._orders, self._cancels)
        self._orders, self._cancels = [], []
        return taken

    def report(self, number: int, report: LoadReport) -> Loading | None:
        """Hear from ranks; the load, once all have reported."""
        loading = self._loading.get(number)
        if loading is None:
            return None
        if loading.report is None:
            loading.report = report
        else:
            loading.report.merge(report)
        if loading.report.ranks < self._ranks:
            return None
        del self._loading[number]
        self._settle(loading, loading.report)
        return loading

    @property
    def in_flight(self) -> bool:
        """Whether some load's reports are still to come."""
        return bool(self._loading)

    def give_back(self, prompt: Prompt) -> None:
        """The plan that stands, if any, will not be used."""
        if prompt.plan is not None and prompt.plan.lease:
            self._link.release(Release(prompt.plan.lease))
        prompt.plan = None

    def forget(self, prompt: Prompt) -> None:
        """The request is over: give its plan back, and nobody waits for its loads any more."""
        self.give_back(prompt)
        self._cancels += [n for n, load in self._loading.items() if load.prompt is prompt]

    # --- inside ---

    def _limit(self, prompt: Prompt) -> int:
        """Chunks that may be loaded: whole, without the last token, and not failed before."""
        whole = (prompt.request.num_tokens - 1) // self._grid.chunk_tokens
        return min(int(whole), prompt.grow(self._grid), prompt.load_limit)

    def _explain(self, prompt: Prompt, plan: Plan) -> None:
        """Note the decision for the answer, and count the first one of each request."""
        decision = plan.decision
        if "why" not in prompt.outcome:
            self._counts.add("decisions", 1, decision.why.value)
        prompt.outcome |= {
            "choice": decision.choice.value,
            "why": decision.why.value,
            "match_tokens": decision.match_tokens,
            "load_tokens": decision.load_tokens,
            "tiers": dict(decision.tiers),
            "load_s": decision.load_s,
            "recompute_s": decision.recompute_s,
        }
        if decision.pin_refused:
            prompt.outcome["pin"] = "refused"

    def _settle(self, loading: Loading, report: LoadReport) -> None:
        """Everybody has reported: release the lease, count, and remember what failed.

        A chunk that failed is never offered to the same request again: with vLLM's recompute
        policy it would be asked for, and fail, for ever.
        """
        prompt, plan = loading.prompt, loading.plan
        self._link.release(
            Release(
                plan.lease,
                copied_bytes=report.copied_bytes,
                copy_ns=report.copy_ns,
                waited_ns=report.waited_ns,
                failed=loading.failed,
            )
        )
        self._counts.add("loaded_bytes", report.copied_bytes)
        seconds = report.waited_ns / NS_PER_S
        self._counts.add("load_seconds", seconds)
        prompt.outcome["actual_s"] = seconds
        if loading.failed:
            good = plan.first_chunk + report.good
            prompt.load_limit = min(prompt.load_limit, good)
            prompt.stored = min(prompt.stored, good)
            prompt.outcome |= {"load_tokens": 0, "problem": report.problem}
            self._counts.add("failed_loads", 1, report.problem.partition(":")[0])
            self._counts.add("lost_seconds", seconds)
            return
        for tier, tokens in loading.sources.items():
            self._counts.add("loaded_tokens", tokens, tier)
        saved = plan.decision.recompute_s - seconds
        self._counts.add("saved_seconds", saved)
        self._counts.add("lost_seconds", -saved)


def split_tokens(plan: Plan, tokens: int) -> dict[str, int]:
    """`tokens` by the tier they come from; what the plan cannot place counts for its last tier."""
    split: dict[str, int] = {}
    left = tokens
    for tier, share in plan.decision.tiers.items():
        split[tier] = min(share, left)
        left -= split[tier]
    if left:
        last = next(reversed(split), "dram")
        split[last] = split.get(last, 0) + left
    return {tier: count for tier, count in split.items() if count}
