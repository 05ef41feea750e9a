"""Traces for tests of replay: written by hand, and made up from a seed. It tests nothing."""

from __future__ import annotations

from itertools import islice

from kvwise.sim.trace.make import PARAMETERS, make_rows
from kvwise.sim.trace.prefix import PrefixTree
from kvwise.sim.trace.records import Request, Trace
from kvwise.units import NS_PER_MS, NS_PER_S


def trace_of(prompts: list[list[int]], block_tokens: int = 1) -> Trace:
    """A trace of prompts of whole blocks, one a second."""
    tree = PrefixTree()
    paths = [tree.path(0, ids) for ids in prompts]
    requests = tuple(
        Request(n * NS_PER_S, len(path) * block_tokens, 1, path) for n, path in enumerate(paths)
    )
    return Trace("made", block_tokens, requests, tree.parents, ())


def made(requests: int, kinds: tuple[str, ...] = ("chat", "oneshot")) -> Trace:
    """A trace of chats and one-shot prompts, or of other kinds, that is made up."""
    settings = {
        kind: {name: one.default for name, one in PARAMETERS[kind].items()} for kind in kinds
    }
    rows = list(islice(make_rows(dict.fromkeys(kinds, 1.0), settings, 7), requests))
    tree = PrefixTree()
    told = tuple(
        Request(
            row.timestamp * NS_PER_MS,
            row.input_length,
            row.output_length,
            tree.path(0, row.hash_ids),
        )
        for row in rows
    )
    return Trace("made", 512, told, tree.parents, ())
