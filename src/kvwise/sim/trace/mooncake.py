"""Reads JSON lines whose blocks have ids: mooncake, mooncake-delta and bailian. It decides nothing.

In mooncake and bailian a row is a whole prompt; in mooncake-delta it is what one turn adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kvwise.sim.trace.assembly import Assembly, Place, refuse_count
from kvwise.sim.trace.prefix import Cutter
from kvwise.sim.trace.records import NO_SESSION, Request
from kvwise.sim.trace.source import BlockId, Milliseconds, Name, Seconds, Source, Tokens, shown
from kvwise.units import NS_PER_MS, NS_PER_S

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
ROOT_CHAT = -1

Label = Name | BlockId
"""What a file calls a session or a chat."""


class _Prompt(Struct):
    """A row of mooncake: a whole prompt."""

    timestamp: Milliseconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[BlockId]
    session_id: Label | None = None


class _Delta(Struct):
    """A row of mooncake-delta: what a turn adds. The first of a session has a time."""

    session_id: Label
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[BlockId]
    timestamp: Milliseconds | None = None
    delay: Milliseconds = 0.0


class _Chat(Struct):
    """A row of bailian: a whole prompt, and the chat that it goes on with."""

    chat_id: Label
    parent_chat_id: Label
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    turn: Annotated[int, Meta(ge=0, le=1 << 31)]
    hash_ids: list[BlockId]


def read_mooncake(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of whole prompts. Ids and sessions of one file mean nothing in another."""
    decoder = msgspec.json.Decoder(_Prompt)
    for number, source in enumerate(sources):
        into.size_blocks(into.options.block_tokens or MOONCAKE_BLOCK_TOKENS, source)
        for line, text in source.lines():
            row = source.decode(decoder, text, line)
            at = Place(source, line)
            session = NO_SESSION
            if row.session_id is not None:
                session = into.session((number, row.session_id), str(row.session_id))
            request = Request(
                arrival_ns=round(row.timestamp * NS_PER_MS),
                input_tokens=row.input_length,
                output_tokens=row.output_length,
                blocks=into.path(number, row.hash_ids, row.input_length, at),
                session=session,
                turn=into.next_turn(session),
            )
            into.add(request, at)


class _Talk:
    """A session of mooncake-delta while it grows: its prompt so far and the time of its turn."""

    def __init__(self, block_tokens: int, at_ns: int) -> None:
        """A session that begins now."""
        self.prompt = Cutter(block_tokens)
        self.at_ns = at_ns


class _Talks:
    """The sessions of one file, and the numbers of the pieces that their prompts are made of."""

    def __init__(self, block_tokens: int) -> None:
        """None has begun."""
        self._size = block_tokens
        self._talks: dict[Label, _Talk] = {}
        self._ids: dict[int, int] = {}
        self._answers = 0

    def grow(self, row: _Delta, at: Place) -> _Talk:
        """Add what a turn brings to the prompt of its session."""
        size = self._size
        if len(row.hash_ids) != -(-row.input_length // size):
            refuse_count(len(row.hash_ids), row.input_length, size, at)
        if row.timestamp is not None:
            self._talks[row.session_id] = _Talk(size, round(row.timestamp * NS_PER_MS))
        talk = self._talks.get(row.session_id)
        if talk is None:
            message = f"field timestamp: session {shown(row.session_id)} begins without one"
            at.source.refuse(message, at.line)
        if row.timestamp is None:
            talk.at_ns += round(row.delay * NS_PER_MS)
        left = row.input_length
        for name in row.hash_ids:
            talk.prompt.add(2 * self._ids.setdefault(name, len(self._ids)), min(left, size))
            left -= size
        return talk

    def answer(self, talk: _Talk, tokens: int) -> None:
        """Add an answer, a piece that nobody shares; its number is odd, those of ids are even."""
        talk.prompt.add(2 * self._answers + 1, tokens)
        self._answers += 1


def read_delta(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of turns. The prompt of a turn is all before it, answers included, and its own.

    Answers have no ids, so each is a piece that nobody shares, and blocks begin where they fall.
    A block that is not full is left out, because the next turn fills it. A turn comes its delay
    after the turn before: what serving that took is not in the file.
    """
    decoder = msgspec.json.Decoder(_Delta)
    for number, source in enumerate(sources):
        size = into.options.block_tokens or MOONCAKE_BLOCK_TOKENS
        into.size_blocks(size, source)
        talks = _Talks(size)
        for line, text in source.lines():
            row = source.decode(decoder, text, line)
            at = Place(source, line)
            talk = talks.grow(row, at)
            session = into.session((number, row.session_id), str(row.session_id))
            request = Request(
                arrival_ns=talk.at_ns,
                input_tokens=talk.prompt.tokens,
                output_tokens=row.output_length,
                blocks=into.path(number, talk.prompt.blocks, talk.prompt.tokens, at),
                session=session,
                turn=into.next_turn(session),
                think_ns=round(row.delay * NS_PER_MS) if row.timestamp is None else None,
            )
            into.add(request, at)
            talks.answer(talk, row.output_length)


def read_bailian(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of chats; a session is a chat with all that go on with it."""
    decoder = msgspec.json.Decoder(_Chat)
    for number, source in enumerate(sources):
        into.size_blocks(into.options.block_tokens or BAILIAN_BLOCK_TOKENS, source)
        first: dict[Label, Label] = {}
        for line, text in source.lines():
            row = source.decode(decoder, text, line)
            parent = row.parent_chat_id
            root = row.chat_id if parent == ROOT_CHAT else first.get(parent, parent)
            first[row.chat_id] = root
            request = Request(
                arrival_ns=round(row.timestamp * NS_PER_S),
                input_tokens=row.input_length,
                output_tokens=row.output_length,
                blocks=into.tree.path(number, row.hash_ids),
                session=into.session((number, root), str(root)),
                turn=max(1, row.turn),
            )
            into.add(request, Place(source, line))
