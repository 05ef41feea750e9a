"""What a trace is once it is read: requests in order, over one tree of blocks. It reads no file.

Whatever the file called its blocks, here a block is a node of a prefix tree: a small number that
stands for its tokens and for all tokens before them. Two requests share a block only if they share
the whole prompt up to its end, which is when an engine could use its KV again.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from msgspec import Struct

NO_SESSION = -1
"""The session of a request in a trace that does not tell sessions apart."""


class Request(Struct, frozen=True, gc=False):
    """One request.

    Attributes:
        arrival_ns: when it arrives, from the start of the trace.
        input_tokens, output_tokens: lengths of the whole prompt and of the answer.
        blocks: the path of the prompt in the tree, root first; empty where the trace has no blocks.
        session: position in `Trace.sessions`, or `NO_SESSION`.
        turn: counts the requests of a session and agent from 1.
        agent: 0 for the session itself, 1 and up for its subagents.
        model: empty where the trace names none.
        think_ns: how long the client waited before it, after an answer; None where unknown.
        api_ns: how long the recorded server took; None where unknown.
        after_tool: whether what is new in it is the result of a tool.
    """

    arrival_ns: int
    input_tokens: int
    output_tokens: int
    blocks: array[int]
    session: int = NO_SESSION
    turn: int = 1
    agent: int = 0
    model: str = ""
    think_ns: int | None = None
    api_ns: int | None = None
    after_tool: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace.

    Attributes:
        format: the name of the format it was read from.
        block_tokens: tokens of one block; the last block of a prompt may hold fewer.
        requests: ordered by arrival; those of one instant in the order of the file.
        parents: the block before each block, negative for the first of a prompt.
        sessions: their names.
    """

    format: str
    block_tokens: int
    requests: tuple[Request, ...]
    parents: array[int]
    sessions: tuple[str, ...]
