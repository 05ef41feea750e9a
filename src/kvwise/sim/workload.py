"""Workload: what users ask of the engines of one node. It draws requests and serves none.

Three kinds, as they are met in practice: conversations of several turns that begin with a shared
system prompt, questions about shared documents, and prompts that are never seen again. Content is
abstract: one number stands for the tokens of a small chunk, and equal numbers for equal tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from kvwise.core.hints import Hints
from kvwise.sim.dice import Dice
from kvwise.units import NS_PER_MS

CHUNK_TOKENS = 64
"""Tokens that one number of content stands for: the smallest chunk of a simulated namespace."""

TURNS_MAX = 5
"""A conversation ends when it is as long as this many of the longest turns."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Parameters of a workload.

    Attributes:
        requests: how many there are.
        engines: how many engines share the node; a conversation may move between them.
        gap_ms: mean time between two arrivals, exponential.
        conversations, documents: how many are going on, or being asked about.
        turn_share, document_share: of all requests; the others are one-shot prompts.
        chunks_max: most chunks in a document, a one-shot prompt or what one turn adds.
        output_max: most generated tokens.
    """

    requests: int
    engines: int = 2
    gap_ms: float = 40.0
    conversations: int = 4
    documents: int = 3
    turn_share: float = 0.5
    document_share: float = 0.3
    chunks_max: int = 5
    output_max: int = 160


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        at_ns: when it arrives.
        content: one number for every `CHUNK_TOKENS` of prompt and output.
        prompt_tokens, output_tokens: lengths; the prompt need not end with a chunk.
    """

    name: str
    at_ns: int
    engine: int
    content: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    hints: Hints


def draw_requests(traffic: Traffic, dice: Dice) -> tuple[Request, ...]:
    """Draw the requests of a workload, in order of arrival."""
    fresh = count(1)
    system = [next(fresh) for _ in range(dice.below(3))]
    documents = [
        [next(fresh) for _ in range(dice.between(1, traffic.chunks_max))]
        for _ in range(traffic.documents)
    ]
    talks = [list(system) for _ in range(traffic.conversations)]
    requests, at_ns = [], 0
    for number in range(traffic.requests):
        at_ns += int(dice.wait(traffic.gap_ms) * NS_PER_MS)
        kind = dice.unit()
        if kind < traffic.turn_share:
            content, added = _turn(talks, system, traffic, dice), dice.below(traffic.chunks_max)
        elif kind < traffic.turn_share + traffic.document_share:
            content, added = list(dice.pick(documents)), dice.below(2)
        else:
            content, added = [], dice.below(traffic.chunks_max + 1)
        content += [next(fresh) for _ in range(added)]
        prompt_tokens = max(0, len(content) - 1) * CHUNK_TOKENS + dice.between(1, CHUNK_TOKENS)
        output_tokens = dice.below(traffic.output_max)
        chunks = (prompt_tokens + output_tokens) // CHUNK_TOKENS
        content += [next(fresh) for _ in range(chunks - len(content))]
        request = Request(
            name=f"r{number}",
            at_ns=at_ns,
            engine=dice.below(traffic.engines),
            content=tuple(content[:chunks]),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            hints=_wishes(
                Hints(no_store=dice.chance(0.03), no_load=dice.chance(0.03)),
                dice.named("wishes", number),
            ),
        )
        requests.append(request)
    return tuple(requests)


def _wishes(hints: Hints, dice: Dice) -> Hints:
    """What callers wish for now and then beside that."""
    if dice.chance(0.7):
        return hints
    return replace(
        hints,
        no_reuse=dice.chance(0.1),
        pin_s=dice.pick((0.0, 0.3, 4.0, 20.0)),
        ttl_s=dice.pick((0.0, 0.0, 0.2, 5.0)),
        priority=dice.pick((-1.0, 0.0, 1.0)),
    )


def _turn(talks: list[list[int]], system: list[int], traffic: Traffic, dice: Dice) -> list[int]:
    """What was said so far in one of the conversations; the caller adds to it. Long ones end."""
    place = dice.below(len(talks))
    if len(talks[place]) >= traffic.chunks_max * TURNS_MAX:
        talks[place] = list(system)
    return talks[place]
