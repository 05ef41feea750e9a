"""Puts requests from files together into one trace. It parses nothing itself.

Readers hand in what they found, in the order of the file; this keeps the tree, the names of
sessions, the block size and the bounds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NoReturn

from kvwise.errors import TraceError
from kvwise.sim.trace.prefix import PrefixTree
from kvwise.sim.trace.records import NO_SESSION, Request, Trace
from kvwise.sim.trace.source import TIME_S_MAX, TOKENS_MAX, Source
from kvwise.units import NS_PER_S

REQUESTS_MAX = 20_000_000
REPORT_EVERY = 1_000
NOTHING = array("i")
"""The path of a prompt without blocks; shared, so never changed."""

Report = Callable[[str], None]
"""Takes a text that says what is being done."""


class Pace(Enum):
    """When the requests of a recorded session arrive."""

    RECORDED = "recorded"
    """As recorded."""

    THINK = "think"
    """After the client's pauses alone, as if every answer came at once."""

    SCALED = "scaled"
    """After the client's pauses and the recorded server's times, which a factor makes shorter."""


@dataclass(frozen=True, slots=True)
class Options:
    """How files are to be read, beyond what they say themselves.

    Attributes:
        format: the name of a format; empty to tell it from the content.
        block_tokens: of formats that do not say it themselves; 0 for what is usual there.
        models_apart: whether models of one session share no blocks, as their KV is not the same.
        absolute_subagents: whether times in a subagent count from the start of the session.
        pace, api_factor: when the requests of a recorded session arrive.
        start_every_s: from the start of one recorded session to the start of the next.
        in_turn: a recorded session starts when the one before has ended; `start_every_s` is unused.
    """

    format: str = ""
    block_tokens: int = 0
    models_apart: bool = True
    absolute_subagents: bool = False
    pace: Pace = Pace.RECORDED
    api_factor: float = 1.0
    start_every_s: float = 0.0
    in_turn: bool = False


class Place(NamedTuple):
    """Where in a file something was read."""

    source: Source
    line: int = 0


class Assembly:
    """A trace that is being put together.

    Attributes:
        options: how files are to be read.
        tree: the blocks so far.
    """

    def __init__(self, options: Options, report: Report) -> None:
        """Begins empty."""
        self.options = options
        self.tree = PrefixTree()
        self._report = report
        self._requests: list[Request] = []
        self._sessions: dict[Hashable, int] = {}
        self._names: list[str] = []
        self._turns: Counter[tuple[int, int]] = Counter()
        self._block_tokens = 0
        self._end_ns = 0

    def session(self, key: Hashable, name: str) -> int:
        """The number of a session, a new one where the key is new."""
        number = self._sessions.setdefault(key, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def start_ns(self, number: int) -> int:
        """When a recorded session starts that knows its own times only."""
        if self.options.in_turn:
            return self._end_ns
        return number * round(self.options.start_every_s * NS_PER_S)

    def next_turn(self, session: int, agent: int = 0) -> int:
        """Which turn of a session comes now."""
        if session == NO_SESSION:
            return 1
        self._turns[session, agent] += 1
        return self._turns[session, agent]

    def size_blocks(self, block_tokens: int, source: Source) -> None:
        """Take note of the block size of a file; all files of a trace have the same."""
        if self._block_tokens not in {0, block_tokens}:
            source.refuse(
                f"its blocks have {block_tokens} tokens, those of the files before "
                f"{self._block_tokens}",
                hint="read them as two traces",
            )
        self._block_tokens = block_tokens

    def path(self, scope: Hashable, ids: Sequence[Hashable], tokens: int, at: Place) -> array[int]:
        """The blocks of a prompt by its ids, which must be as many as its length asks for."""
        size = self._block_tokens
        if len(ids) not in {tokens // size, -(-tokens // size)}:
            refuse_count(len(ids), tokens, size, at)
        return self.tree.path(scope, ids)

    def check_length(self, tokens: int, at: Place) -> None:
        """Refuse a prompt or an answer that is too long to be one."""
        if tokens > TOKENS_MAX:
            at.source.refuse(f"{tokens} tokens are more than {TOKENS_MAX}", at.line)

    def add(self, request: Request, at: Place) -> None:
        """One more request."""
        self.check_length(max(request.input_tokens, request.output_tokens), at)
        if request.arrival_ns > TIME_S_MAX * NS_PER_S:
            at.source.refuse(f"a request after more than {TIME_S_MAX} s", at.line)
        self._requests.append(request)
        self._end_ns = max(self._end_ns, request.arrival_ns + (request.api_ns or 0))
        count = len(self._requests)
        if count > REQUESTS_MAX:
            at.source.refuse(f"more than {REQUESTS_MAX} requests", at.line, hint="take a part")
        if count % REPORT_EVERY == 0:
            self._report(f"reading {at.source.path.name}: {count} requests")

    def finish(self, name: str) -> Trace:
        """The trace, in order of arrival."""
        if not self._requests:
            raise TraceError("the trace has no requests; hint: are the files complete?")
        requests = tuple(sorted(self._requests, key=lambda request: request.arrival_ns))
        sessions = tuple(self._names)
        return Trace(name, self._block_tokens, requests, self.tree.parents, sessions)


def refuse_count(blocks: int, tokens: int, block_tokens: int, at: Place) -> NoReturn:
    """Refuse a number of blocks that cannot be right."""
    at.source.refuse(
        f"field hash_ids: {blocks} blocks do not make {tokens} tokens at {block_tokens} a block",
        at.line,
        hint="--block-tokens says another block size, --format another format",
    )
