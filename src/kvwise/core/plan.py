"""Plan: load, load a part, or recompute, whichever is faster now. It changes nothing.

Let T(k) be the time to first token when the first k chunks are loaded and the rest is computed.
Over chunks that come from one tier, T is concave in k: loading grows linearly, while what is left
to compute shrinks ever faster because attention makes late tokens dearer. So the best k is where
the source changes, or nothing, or everything, and only those few are priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvwise.core.words import Choice, Why


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is about.

    Attributes:
        sources: (tier, chunks) runs of the chunks that could be loaded, in order.
        chunk_tokens: tokens in each chunk.
        skip_tokens: tokens of the first chunk that the device already holds.
        local_tokens: leading tokens on the device.
        total_tokens: tokens of the prompt.
        policy: `auto`, `load` (always) or `recompute` (never load).
        margin: a load must win by this fraction of its own time.
    """

    sources: tuple[tuple[int, int], ...]
    chunk_tokens: int
    skip_tokens: int
    local_tokens: int
    total_tokens: int
    policy: str
    margin: float


@dataclass(frozen=True, slots=True)
class Cut:
    """How many chunks to load, and why.

    Attributes:
        chunks: leading chunks of the sources to load; 0 for none.
        load_s: estimated seconds of the load considered best.
        recompute_s: estimated seconds to compute the same tokens instead.
    """

    chunks: int
    load_s: float
    recompute_s: float
    choice: Choice
    why: Why


def runs(tiers: bytes) -> tuple[tuple[int, int], ...]:
    """(tier, count) runs of the tiers of chunks."""
    others = tiers.translate(None, tiers[:1])
    known, found, start = {*tiers[:1], *others}, [], 0
    while start < len(tiers):
        tier = tiers[start]
        ends = [at for other in known - {tier} if (at := tiers.find(other, start)) >= 0]
        end = min(ends, default=len(tiers))
        found.append((tier, end - start))
        start = end
    return tuple(found)


def choose(
    question: Question,
    load_s: Callable[[int], float],
    recompute_s: Callable[[int, int], float],
) -> Cut:
    """The best number of leading chunks to load.

    Args:
        question: what there is.
        load_s: seconds to have the first k chunks on the device.
        recompute_s: seconds to compute n new tokens after c cached ones.
    """
    total, local = question.total_tokens, question.local_tokens
    whole = recompute_s(total - local, local)
    ends, chunks = [], 0
    for _, count in question.sources:
        chunks += count
        ends.append(chunks)
    priced = []
    for end in ends:
        covered = local + end * question.chunk_tokens - question.skip_tokens
        saved = whole - recompute_s(total - covered, covered)
        priced.append((saved - load_s(end), end, saved))
    gain, best, saved = max(priced)
    load = load_s(best)
    if question.policy == "recompute":
        return Cut(0, load, saved, Choice.RECOMPUTE, Why.FORCED)
    if question.policy == "load":
        _, end, saved = priced[-1]
        return Cut(end, load_s(end), saved, Choice.LOAD, Why.FORCED)
    if gain <= question.margin * load:
        return Cut(0, load, saved, Choice.RECOMPUTE, Why.SLOWER)
    if best < ends[-1]:
        return Cut(best, load, saved, Choice.LOAD_PART, Why.TAIL_SLOWER)
    return Cut(best, load, saved, Choice.LOAD, Why.FASTER)
