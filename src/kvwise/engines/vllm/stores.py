"""Stores, on the scheduler's side: offering what was computed, and committing only what is true.

A chunk is offered when the step that completes it is ordered, copied when that step has run, and
committed when every rank has said so and no load of that step turned out to have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from kvwise.engines.copying import SKIP, Chunks
from kvwise.engines.vllm.blocks import Tables, chunk_blocks, grant_pages
from kvwise.engines.vllm.counts import Counts
from kvwise.engines.vllm.link import Link
from kvwise.engines.vllm.orders import StoreOrder, StoreReport
from kvwise.engines.vllm.prompts import Grid, Prompt
from kvwise.live.messages import Grant, Offer

Committed = Callable[[Prompt, list[int]], None]
"""Told which chunks of a prompt were committed."""


@dataclass(slots=True)
class _Offered:
    """Chunks of one request that this step completes, and where they lie."""

    prompt: Prompt
    first: int
    blocks: np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(slots=True)
class _Storing:
    """A store whose reports are not all in.

    Attributes:
        chunks: numbers of the chunks, in the order of the lease.
        step: the step that computes the last of them.
        doubt: why its bytes must not be believed; empty if nothing speaks against them.
    """

    prompt: Prompt
    chunks: list[int]
    step: int
    doubt: str = ""
    report: StoreReport | None = None


class Stores:
    """All stores of one engine."""

    def __init__(self, link: Link, counts: Counts, grid: Grid, *, ranks: int) -> None:
        """`ranks` workers report on every store."""
        self._link = link
        self._counts = counts
        self._grid = grid
        self._ranks = ranks
        self._offered: list[_Offered] = []
        self._storing: dict[int, _Storing] = {}

    @property
    def in_flight(self) -> bool:
        """Whether some store's reports are still to come."""
        return bool(self._storing)

    def collect(self, prompt: Prompt, tables: Tables, tokens: int) -> None:
        """After the step that is being ordered, the first `tokens` of a request are computed.

        Chunks that a sliding window has lost a block of cannot be stored, nor what comes before
        them; they are not asked about again.
        """
        end = min(tokens // self._grid.chunk_tokens, prompt.grow(self._grid))
        if end <= prompt.stored:
            return
        blocks = chunk_blocks(tables, self._grid, range(prompt.stored, end))
        holes = np.flatnonzero((blocks == SKIP).any(axis=1))
        lost = int(holes[-1]) + 1 if len(holes) else 0
        if lost < len(blocks):
            self._offered.append(_Offered(prompt, prompt.stored + lost, blocks[lost:]))
        prompt.stored = end

    def order(self, step: int) -> list[StoreOrder]:
        """Offer what was collected; what the cache grants pages for is to be copied."""
        offered, self._offered = self._offered, []
        if not offered:
            return []
        grants = self._link.offer([self._offer(one) for one in offered])
        return [
            self._order(one, grant, step)
            for one, grant in zip(offered, grants, strict=False)
            if grant.lease and grant.chunks
        ]

    def barrier(self, scheduled: Collection[str], preempted: Collection[str]) -> list[int]:
        """Stores whose request may have given blocks away: all but those of `scheduled` ones."""
        return [
            lease
            for lease, storing in self._storing.items()
            if storing.prompt.name not in scheduled or storing.prompt.name in preempted
        ]

    def doubt(self, step: int, why: str) -> None:
        """Believe nothing that `step` or a later one computes: it was built on what was not there.

        What was offered meanwhile is offered anew once it has been computed again.
        """
        for storing in self._storing.values():
            if storing.step >= step:
                storing.doubt = why
                storing.prompt.stored = min(storing.prompt.stored, storing.chunks[0])

    def report(self, lease: int, report: StoreReport, committed: Committed) -> None:
        """Hear from ranks; commit once all have reported. A store of before a reset is void."""
        storing = self._storing.get(lease)
        if storing is None:
            self._link.fill(lease, 0)
            return
        if storing.report is None:
            storing.report = report
        else:
            storing.report.merge(report)
        if storing.report.ranks < self._ranks:
            return
        del self._storing[lease]
        good = 0 if storing.doubt else storing.report.good
        self._link.fill(lease, good)
        self._counts.add("stored_tokens", good * self._grid.chunk_tokens)
        if good:
            self._counts.add("stored_bytes", storing.report.copied_bytes)
            committed(storing.prompt, storing.chunks[:good])
        else:
            self._counts.add("discarded_stores", 1, storing.doubt or "copy")

    # --- inside ---

    def _offer(self, one: _Offered) -> Offer:
        """The question about some chunks."""
        prompt = one.prompt
        return Offer(
            request=prompt.name,
            space=self._grid.space,
            parent=prompt.key(one.first - 1),
            keys=prompt.some_keys(one.first, one.first + len(one.blocks)),
            total_tokens=prompt.request.num_prompt_tokens,
            hints=prompt.hints,
        )

    def _order(self, one: _Offered, grant: Grant, step: int) -> StoreOrder:
        """The order for the chunks that were granted."""
        chunks = [one.first + chunk for chunk in grant.chunks]
        self._storing[grant.lease] = _Storing(one.prompt, chunks, step)
        pages = grant_pages(grant.pages, len(chunks))
        return StoreOrder(grant.lease, Chunks(pages, one.blocks[grant.chunks]))
