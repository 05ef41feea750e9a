"""Reads conversations as text, and requests whose tokens are known. It has no tokenizer.

Without a tokenizer a token is four characters, which is near the truth for English prose and wrong
for other things. Text itself is not kept, only a digest of each block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from kvwise.sim.trace.assembly import Assembly, Place
from kvwise.sim.trace.records import Request
from kvwise.sim.trace.source import TIME_S_MAX, BlockId, Name, Source, Tokens
from kvwise.units import NS_PER_S

BLOCK_TOKENS = 16
TOKEN_CHARS = 4
ANSWERER = "gpt"


class _Message(Struct):
    """What one side says."""

    who: Name = field(name="from")
    value: str


class _Conversation(Struct):
    """One conversation."""

    conversations: list[_Message]
    id: Name | BlockId = ""


class _Served(Struct):
    """A request whose tokens are known."""

    input_toks: Tokens
    output_toks: Tokens
    arrival_time_ns: Annotated[int, Meta(ge=0, le=TIME_S_MAX * NS_PER_S)]
    input_tok_ids: list[BlockId]


def read_sharegpt(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of conversations. An answer is a request, and all text before it is its prompt."""
    decoder = msgspec.json.Decoder(list[_Conversation])
    number = 0
    for source in sources:
        into.size_blocks(into.options.block_tokens or BLOCK_TOKENS, source)
        for talk in source.decode(decoder, source.document()):
            _converse(talk, number, Place(source), into)
            number += 1


def read_served(sources: Sequence[Source], into: Assembly) -> None:
    """Read files of requests with the tokens of their prompts; only full blocks are kept."""
    decoder = msgspec.json.Decoder(_Served)
    size = into.options.block_tokens or BLOCK_TOKENS
    for source in sources:
        into.size_blocks(size, source)
        for line, text in source.lines():
            row = source.decode(decoder, text, line)
            ids, at = row.input_tok_ids, Place(source, line)
            if len(ids) != row.input_toks:
                source.refuse(f"field input_tok_ids: {len(ids)} ids, not {row.input_toks}", line)
            blocks = [tuple(ids[at : at + size]) for at in range(0, len(ids) // size * size, size)]
            path = into.path(0, blocks, row.input_toks, at)
            into.add(Request(row.arrival_time_ns, row.input_toks, row.output_toks, path), at)


def _converse(talk: _Conversation, number: int, at: Place, into: Assembly) -> None:
    """The requests of one conversation, all at its start: when its turns came is not recorded."""
    session, start_ns = into.session(number, str(talk.id)), into.start_ns(number)
    block_chars = (into.options.block_tokens or BLOCK_TOKENS) * TOKEN_CHARS
    blocks: list[Hashable] = []
    tail, chars = "", 0
    for message in talk.conversations:
        if message.who == ANSWERER and chars:
            tokens = -(-chars // TOKEN_CHARS)
            request = Request(
                arrival_ns=start_ns,
                input_tokens=tokens,
                output_tokens=-(-len(message.value) // TOKEN_CHARS),
                blocks=into.tree.path(0, blocks),
                session=session,
                turn=into.next_turn(session),
            )
            into.add(request, at)
        chars += len(message.value)
        tail += message.value
        whole = len(tail) // block_chars * block_chars
        blocks += [_digest(tail[i : i + block_chars]) for i in range(0, whole, block_chars)]
        tail = tail[whole:]


def _digest(text: str) -> bytes:
    """What stands for a block of text."""
    return hashlib.blake2b(text.encode(), digest_size=12).digest()
