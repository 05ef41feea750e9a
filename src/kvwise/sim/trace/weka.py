"""Reads recorded sessions of coding agents, one JSON object a file. It runs no agent.

A session knows its own times only, so when it starts is for the reader's options to say. Subagents
have times of their own, and the session may go on while they run.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field

from kvwise.sim.trace.assembly import Assembly, Options, Pace, Place
from kvwise.sim.trace.records import Request
from kvwise.sim.trace.source import BlockId, BlockTokens, Name, Seconds, Source, Tokens
from kvwise.units import NS_PER_S


class _Call(Struct, tag_field="type", tag="n"):
    """A request whose answer came at once."""

    t: Seconds
    input_tokens: Tokens = field(name="in")
    output_tokens: Tokens = field(name="out")
    hash_ids: list[BlockId]
    model: Name = ""
    input_types: list[Name] = []
    api_time: Seconds | None = None
    think_time: Seconds | None = None


class _Stream(_Call, tag="s"):
    """A request whose answer came as a stream."""


class _Subagent(Struct, tag_field="type", tag="subagent"):
    """A subagent, at the place where the session started it."""

    t: Seconds
    requests: list[_Call | _Stream]
    status: Name = ""


class _Session(Struct):
    """A file."""

    id: Name
    block_size: BlockTokens
    hash_id_scope: Literal["local", "global"]
    requests: list[_Call | _Stream | _Subagent]


class _Clock:
    """When the next request of a session or subagent arrives, at the pace that was asked for."""

    def __init__(self, options: Options) -> None:
        """Nothing was answered yet."""
        self._recorded = options.pace is Pace.RECORDED
        self._factor = options.api_factor if options.pace is Pace.SCALED else 0.0
        self._answered_s: float | None = None
        """When the last answer whose time is known came in the recording."""
        self._now_s = 0.0
        """The same at this pace."""

    def arrival_s(self, recorded_s: float, think_s: float | None) -> float:
        """When something comes that was recorded at a time, after a pause where one is known."""
        if self._recorded or self._answered_s is None:
            return recorded_s
        pause_s = max(0.0, recorded_s - self._answered_s) if think_s is None else think_s
        return self._now_s + pause_s

    def answered(self, recorded_s: float, arrival_s: float, api_s: float | None) -> float:
        """A request was answered; when that was at this pace."""
        if api_s is None:
            return arrival_s
        self._answered_s = recorded_s + api_s
        self._now_s = arrival_s + self._factor * api_s
        return self._now_s


class _Recording:
    """One session on its way into a trace."""

    def __init__(self, session: _Session, at: Place, into: Assembly, number: int) -> None:
        """The session with this number, counted from 0."""
        self._into, self._at = into, at
        self._scope: Hashable = number if session.hash_id_scope == "local" else -1
        self._start_ns = into.start_ns(number)
        self._number = into.session(number, session.id)
        self._agents = 0
        self._waits_s = 0.0

    def add(self, entries: Sequence[_Call | _Stream | _Subagent]) -> None:
        """Every request, subagents included."""
        clock, recorded = _Clock(self._into.options), self._into.options.pace is Pace.RECORDED
        for entry in entries:
            if isinstance(entry, _Subagent):
                end_s = self._subagent(entry, clock.arrival_s(entry.t, None))
                if entry.status == "completed":
                    self._waits_s = max(self._waits_s, end_s)
                continue
            arrival_s = clock.arrival_s(entry.t, entry.think_time)
            if not recorded:
                arrival_s = max(arrival_s, self._waits_s)
            self._request(entry, arrival_s, 0)
            clock.answered(entry.t, arrival_s, entry.api_time)

    def _subagent(self, entry: _Subagent, start_s: float) -> float:
        """The requests of a subagent; when the last of them was answered."""
        self._agents += 1
        clock, end_s = _Clock(self._into.options), start_s
        base_s = entry.t if self._into.options.absolute_subagents else 0.0
        for call in entry.requests:
            since_s = max(0.0, call.t - base_s)
            arrival_s = clock.arrival_s(since_s, call.think_time)
            self._request(call, start_s + arrival_s, self._agents)
            end_s = max(end_s, start_s + clock.answered(since_s, arrival_s, call.api_time))
        return end_s

    def _request(self, call: _Call, arrival_s: float, agent: int) -> None:
        """One request."""
        request = Request(
            arrival_ns=self._start_ns + round(arrival_s * NS_PER_S),
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            blocks=self._path(call),
            session=self._number,
            turn=self._into.next_turn(self._number, agent),
            agent=agent,
            model=call.model,
            think_ns=_ns(call.think_time),
            api_ns=_ns(call.api_time),
            after_tool="tool_result" in call.input_types,
        )
        self._into.add(request, self._at)

    def _path(self, call: _Call) -> array[int]:
        """The blocks of a prompt, in the scope of its session and, if asked for, its model."""
        model = call.model if self._into.options.models_apart else ""
        return self._into.path((self._scope, model), call.hash_ids, call.input_tokens, self._at)


def read_weka(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of one session each, in their order."""
    decoder = msgspec.json.Decoder(_Session)
    for number, source in enumerate(sources):
        session = source.decode(decoder, source.document())
        into.size_blocks(session.block_size, source)
        _Recording(session, Place(source), into, number).add(session.requests)


def _ns(seconds: float | None) -> int | None:
    """Whole nanoseconds, where a time is known."""
    return None if seconds is None else round(seconds * NS_PER_S)
