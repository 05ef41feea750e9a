"""Reads traces of a retrieval service, whose prompts are lists of components. It finds nothing.

The ids name content, not prefixes: a prompt is its components in the order in which the service
joins them, cut into blocks. The lengths of components are in files of their own beside the trace.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from kvwise.sim.trace.assembly import Assembly, Place
from kvwise.sim.trace.prefix import Cutter
from kvwise.sim.trace.records import Request
from kvwise.sim.trace.source import BlockId, Name, Seconds, Source, Tokens, shown
from kvwise.units import NS_PER_S

BLOCK_TOKENS = 16
COMPONENT_KEYS = {
    "sys_prompt": "sys_prompt_id",
    "passages_ids": "passage_id",
    "history": "history_id",
    "web_search": "web_search_id",
    "user_input": "user_input_id",
}
"""Kinds of components in the order in which they are joined; what a file of one calls its id."""

ComponentId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class _Component(Struct):
    """A row of a file of lengths."""

    token_length: Annotated[int, Meta(ge=1, le=1 << 20)]
    sys_prompt_id: ComponentId | None = None
    passage_id: ComponentId | None = None
    history_id: ComponentId | None = None
    web_search_id: ComponentId | None = None
    user_input_id: ComponentId | None = None


class _Parts(Struct):
    """The components of a prompt."""

    sys_prompt: list[BlockId]
    passages: list[BlockId] = field(name="passages_ids")
    history: list[BlockId]
    web_search: list[BlockId]
    user_input: list[BlockId]


class _Prompt(Struct):
    """A row of the trace."""

    timestamp: Annotated[str, Meta(pattern=r"^[0-9]{1,10}(\.[0-9]{1,9})?$")] | Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: _Parts
    session_id: Name


Piece = tuple[int, int]
"""A component: its number in this trace, and its length in tokens."""

Pieces = dict[tuple[str, int], Piece]
"""Components by kind and id."""


def read_ragpulse(sources: Sequence[Source], into: Assembly) -> None:
    """Read the files of lengths, then those with requests, wherever they stand among each other."""
    pieces: Pieces = {}
    prompts = [source for source in sources if not _is_lengths(source)]
    for source in sources:
        if source not in prompts:
            _read_lengths(source, pieces)
    decoder = msgspec.json.Decoder(_Prompt)
    for number, source in enumerate(prompts):
        into.size_blocks(into.options.block_tokens or BLOCK_TOKENS, source)
        for line, text in source.lines():
            row = source.decode(decoder, text, line)
            at = Place(source, line)
            session = into.session((number, row.session_id), row.session_id)
            request = Request(
                arrival_ns=round(float(row.timestamp) * NS_PER_S),
                input_tokens=row.input_length,
                output_tokens=row.output_length,
                blocks=into.tree.path(0, _cut(row.hash_ids, pieces, at, into)),
                session=session,
                turn=into.next_turn(session),
            )
            into.add(request, at)


def _is_lengths(source: Source) -> bool:
    """Whether a file holds lengths of components."""
    line = next(source.lines(), (0, b""))[1]
    return b'"token_length"' in line


def _read_lengths(source: Source, pieces: Pieces) -> None:
    """Read one file of lengths."""
    decoder = msgspec.json.Decoder(_Component)
    for line, text in source.lines():
        row = source.decode(decoder, text, line)
        found = [
            (kind, name)
            for kind, key in COMPONENT_KEYS.items()
            if (name := getattr(row, key)) is not None
        ]
        if len(found) != 1:
            source.refuse("not the id of one component", line)
        if found[0] in pieces:
            source.refuse(f"{found[0][0]} {found[0][1]} has a length already", line)
        pieces[found[0]] = (len(pieces), row.token_length)


def _cut(parts: _Parts, pieces: Pieces, at: Place, into: Assembly) -> list[Hashable]:
    """The full blocks of a prompt."""
    cutter = Cutter(into.options.block_tokens or BLOCK_TOKENS)
    lists = (parts.sys_prompt, parts.passages, parts.history, parts.web_search, parts.user_input)
    for kind, names in zip(COMPONENT_KEYS, lists, strict=True):
        for name in names:
            piece = pieces.get((kind, name))
            if piece is None:
                at.source.refuse(
                    f"field hash_ids.{kind}: no file gives the length of {shown(name)}",
                    at.line,
                    hint="name the folder, with the files of lengths beside the trace",
                )
            cutter.add(*piece)
            into.check_length(cutter.tokens, at)
    return cutter.blocks
