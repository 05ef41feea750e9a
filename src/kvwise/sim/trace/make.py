"""Makes traces up: conversations, questions about documents, agents with tools, single prompts.

Every number that shapes a trace has a name, a default and a range, and one seed gives one trace.
What comes out is invented: it has the shape of a kind of work, and says nothing of anybody's.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Final

from kvwise.sim.dice import Dice
from kvwise.sim.trace.mooncake import MOONCAKE_BLOCK_TOKENS
from kvwise.sim.trace.prefix import Cutter, PrefixTree

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that shapes a trace, and what it may be."""

    default: float
    low: float
    high: float
    about: str


_STARTS = "sessions that start in a second, on average"
_OUTPUT = "mean tokens of an answer"
_SYSTEM = "tokens that all prompts of this kind begin with"
_TURNS = "mean requests of a session, where nothing ends it early"
_ADDED = "mean tokens that a turn adds"
_CONTEXT = "tokens of a prompt after which a session ends"
_ENGINE = "milliseconds in which the engine makes a token of the answer"

PARAMETERS: Final[dict[str, dict[str, Parameter]]] = {
    "chat": {
        "starts": Parameter(0.5, 1e-4, 1e4, _STARTS),
        "turns": Parameter(6, 1, 10_000, _TURNS),
        "system_tokens": Parameter(800, 0, 1_000_000, _SYSTEM),
        "turn_tokens": Parameter(200, 1, 200_000, _ADDED),
        "output_tokens": Parameter(300, 1, 100_000, _OUTPUT),
        "think_s": Parameter(30, 0, 1e6, "mean pause of the user before the next turn"),
        "context_tokens": Parameter(128_000, 1, 4_000_000, _CONTEXT),
        "token_ms": Parameter(20, 0, 1e4, _ENGINE),
    },
    "rag": {
        "starts": Parameter(2, 1e-4, 1e4, _STARTS),
        "system_tokens": Parameter(500, 0, 1_000_000, _SYSTEM),
        "documents": Parameter(2_000, 1, 1_000_000, "documents that there are"),
        "zipf": Parameter(1.0, 0, 4, "exponent of their popularity; 0 makes all equal"),
        "passages": Parameter(3, 1, 50, "documents in a prompt, the best first"),
        "document_tokens": Parameter(900, 1, 10_000, "mean tokens of a document"),
        "turn_tokens": Parameter(40, 1, 200_000, "mean tokens of the question after them"),
        "output_tokens": Parameter(200, 1, 100_000, _OUTPUT),
    },
    "agent": {
        "starts": Parameter(0.02, 1e-4, 1e4, _STARTS),
        "turns": Parameter(40, 1, 10_000, _TURNS),
        "system_tokens": Parameter(15_000, 0, 1_000_000, _SYSTEM),
        "turn_tokens": Parameter(1_500, 1, 200_000, _ADDED),
        "output_tokens": Parameter(350, 1, 100_000, _OUTPUT),
        "tool_s": Parameter(5, 0, 1e6, "mean time that a tool takes"),
        "user_share": Parameter(0.1, 0, 1, "share of the turns that wait for the user instead"),
        "think_s": Parameter(90, 0, 1e6, "mean pause of the user before such a turn"),
        "context_tokens": Parameter(160_000, 1, 4_000_000, _CONTEXT),
        "token_ms": Parameter(20, 0, 1e4, _ENGINE),
    },
    "oneshot": {
        "starts": Parameter(5, 1e-4, 1e4, _STARTS),
        "turn_tokens": Parameter(2_000, 1, 200_000, "mean tokens of a prompt"),
        "output_tokens": Parameter(200, 1, 100_000, _OUTPUT),
    },
}
"""Every kind of work with its parameters."""

KINDS: Final = tuple(PARAMETERS)
PIECES_KEPT = 1 << 21
"""Pieces with numbers below this are shared: what prompts begin with, then documents."""

LONGEST = 16
"""No length is drawn that is more than this many times its mean."""

Piece = tuple[int, int]
"""A part of a prompt: its number, and its length in tokens."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a turn adds: how long after the answer before it, which pieces, and how long a reply."""

    after_s: float
    pieces: tuple[Piece, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """A request, as the mooncake format writes it."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: str


class _Draws:
    """The draws of one session, and numbers for pieces that nobody else has."""

    def __init__(self, dice: Dice, fresh: Iterator[int], values: Values) -> None:
        """A session that will have these parameters."""
        self.dice = dice
        self.values = values
        self._fresh = fresh

    def tokens(self, name: str) -> int:
        """A length with the mean that the parameter says."""
        return draw_tokens(self.dice, self.values[name])

    def wait_s(self, name: str) -> float:
        """A pause with the mean that the parameter says."""
        return self.dice.wait(self.values[name])

    def own(self, tokens: int) -> Piece:
        """A piece that nobody else has."""
        return next(self._fresh), tokens


def draw_tokens(dice: Dice, mean: float) -> int:
    """An exponential length of at least one token; the few that are very long are cut."""
    return 1 + round(min(dice.wait(mean - 1), LONGEST * mean))


def _talk(draws: _Draws, kind: str, pause: Callable[[], str]) -> Iterator[_Turn]:
    """Turns that go on from one another; `pause` names the parameter of each wait between two."""
    pieces: tuple[Piece, ...] = ((KINDS.index(kind), int(draws.values["system_tokens"])),)
    pause_s = 0.0
    while True:
        pieces += (draws.own(draws.tokens("turn_tokens")),)
        yield _Turn(pause_s, pieces, draws.tokens("output_tokens"))
        if draws.dice.chance(1 / draws.values["turns"]):
            return
        pieces, pause_s = (), draws.wait_s(pause())


def _chat(draws: _Draws) -> Iterator[_Turn]:
    """A conversation."""
    return _talk(draws, "chat", lambda: "think_s")


def _agent(draws: _Draws) -> Iterator[_Turn]:
    """An agent that calls tools, and now and then waits for its user."""
    user_share = draws.values["user_share"]
    return _talk(draws, "agent", lambda: "think_s" if draws.dice.chance(user_share) else "tool_s")


def _oneshot(draws: _Draws) -> Iterator[_Turn]:
    """A prompt that is never seen again."""
    yield _Turn(0.0, (draws.own(draws.tokens("turn_tokens")),), draws.tokens("output_tokens"))


class _Library:
    """Documents, of which some are asked about more often than others by Zipf's law."""

    def __init__(self, dice: Dice, values: Values) -> None:
        """Draws nothing but the lengths."""
        documents, mean = int(values["documents"]), values["document_tokens"]
        self._lengths = [draw_tokens(dice, mean) for _ in range(documents)]
        self._below = list(accumulate((n + 1) ** -values["zipf"] for n in range(documents)))

    def turns(self, draws: _Draws) -> Iterator[_Turn]:
        """One question about some documents, each at most once."""
        pieces: dict[int, int] = {KINDS.index("rag"): int(draws.values["system_tokens"])}
        for _ in range(int(draws.values["passages"])):
            picked = bisect(self._below, draws.dice.unit() * self._below[-1])
            pieces[len(KINDS) + picked] = self._lengths[picked]
        asked = draws.own(draws.tokens("turn_tokens"))
        yield _Turn(0.0, (*pieces.items(), asked), draws.tokens("output_tokens"))


class _Session:
    """A session under way: what was said in it, and what comes next."""

    def __init__(self, name: str, turns: Iterator[_Turn], values: Values) -> None:
        """Nothing was said yet."""
        self._name = name
        self._prompt = Cutter(MOONCAKE_BLOCK_TOKENS)
        self._turns = turns
        self._turn = next(turns)
        self._token_s = values.get("token_ms", 0.0) / 1000
        self._context_tokens = values.get("context_tokens", float("inf"))

    def ask(self, now_s: float, tree: PrefixTree) -> Row:
        """The request that is made now."""
        for piece, tokens in self._turn.pieces:
            self._prompt.add(piece, tokens)
        ids = tree.path(0, self._prompt.with_partial()).tolist()
        tokens = self._prompt.tokens
        return Row(round(now_s * 1000), tokens, self._turn.output_tokens, ids, self._name)

    def answer(self, piece: int) -> float | None:
        """Add the answer; how long after the request the next one comes, None when none does."""
        self._prompt.add(piece, self._turn.output_tokens)
        answered_s = self._turn.output_tokens * self._token_s
        after = next(self._turns, None)
        if after is None or self._prompt.tokens > self._context_tokens:
            return None
        self._turn = after
        return answered_s + after.after_s


def make_rows(
    shares: Mapping[str, float], settings: Mapping[str, Values], seed: int
) -> Iterator[Row]:
    """Requests without end, in order of arrival.

    `shares` says how much of each kind there is: at 1 its sessions start as often as its parameter
    `starts` says. Sessions start at random, independent of each other.
    """
    dice, fresh, order = Dice(seed), count(PIECES_KEPT), count()
    tree, names = PrefixTree(), {kind: count() for kind in shares}
    makers: dict[str, Callable[[_Draws], Iterator[_Turn]]] = {
        "chat": _chat, "agent": _agent, "oneshot": _oneshot,
    }  # fmt: skip
    if "rag" in shares:
        makers["rag"] = _Library(dice.named("documents"), settings["rag"]).turns
    starts = heapq.merge(
        *(
            _starts(kind, share * settings[kind]["starts"], dice.named("starts", kind))
            for kind, share in shares.items()
        )
    )
    start_s, kind = next(starts)
    waiting: list[tuple[float, int, _Session]] = []
    while True:
        if not waiting or start_s <= waiting[0][0]:
            number = next(names[kind])
            draws = _Draws(dice.named("session", kind, number), fresh, settings[kind])
            session = _Session(f"{kind}-{number}", makers[kind](draws), settings[kind])
            heapq.heappush(waiting, (start_s, next(order), session))
            start_s, kind = next(starts)
            continue
        now_s, _, session = heapq.heappop(waiting)
        yield session.ask(now_s, tree)
        after_s = session.answer(next(fresh))
        if after_s is not None:
            heapq.heappush(waiting, (now_s + after_s, next(order), session))


def _starts(kind: str, rate: float, dice: Dice) -> Iterator[tuple[float, str]]:
    """When sessions of a kind start: a Poisson process."""
    now_s = 0.0
    while True:
        now_s += dice.wait(1 / rate)
        yield now_s, kind
