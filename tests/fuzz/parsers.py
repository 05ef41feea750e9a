"""What hostile bytes are thrown at: the places where kvwise reads what it did not just write.

Each parser says what its inputs look like, where the first of them come from, and which error it
documents. It opens what it needs once and tries any number of inputs. It makes no inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kvwise.errors import (
    CacheUnavailable,
    ConfigError,
    FrameError,
    KvwiseError,
    ProtocolError,
    TraceError,
)
from tests.fuzz import (
    budget_target,
    codec_target,
    config_target,
    events_target,
    frame_target,
    reply_target,
    request_target,
    trace_target,
)
from tests.fuzz.mutate import Mutator, Shape

CORPUS = Path(__file__).parent / "corpus"

Try = Callable[[bytes], None]
"""Reads one input. Returns when it was accepted and raises the documented error when it was not."""


@dataclass(frozen=True, slots=True)
class Parser:
    """One reader of foreign bytes.

    Attributes:
        name: of its folder in the corpus too.
        open: what it takes to try inputs; the stack closes it.
        errors: the only ones that any bytes may lead to.
        shape, heads, tails: what the mutator may take for granted.
        seeds: good inputs, made by the code that writes them.
    """

    name: str
    open: Callable[[ExitStack], Try]
    errors: tuple[type[KvwiseError], ...]
    seeds: Callable[[], list[bytes]]
    shape: Shape = Shape.BYTES
    heads: int = 0
    tails: int = 0

    def corpus(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of every input that is kept."""
        for path in sorted((CORPUS / self.name).glob("*.bin")):
            yield path.name, path.read_bytes()

    def mutator(self, seed: int) -> Mutator:
        """Hostile inputs without end."""
        inputs = [*self.seeds(), *(data for _, data in self.corpus())]
        return Mutator(inputs, self.shape, seed, heads=self.heads, tails=self.tails)


PARSERS = {
    parser.name: parser
    for parser in (
        Parser("frame", frame_target.open_frame, (FrameError,), frame_target.frames),
        Parser("segment", frame_target.open_segment, (), frame_target.segments),
        Parser("budget", budget_target.open_budget, (FrameError,), budget_target.budgets),
        Parser("codec", codec_target.open_codec, (FrameError,), codec_target.stored),
        Parser("footer", frame_target.open_footer, (FrameError,), frame_target.footers),
        Parser(
            "request",
            request_target.open_daemon,
            (ProtocolError,),
            request_target.streams,
            Shape.RECORDS,
        ),
        Parser(
            "reply",
            reply_target.open_client,
            (CacheUnavailable, ConfigError),
            reply_target.streams,
            Shape.RECORDS,
        ),
        Parser(
            "config", config_target.open_config, (ConfigError,), config_target.texts, Shape.LINES
        ),
        Parser(
            "events",
            events_target.open_events,
            (FrameError,),
            events_target.logs,
            Shape.RECORDS,
            heads=1,
        ),
        Parser("trace", trace_target.open_trace, (TraceError,), trace_target.traces, Shape.LINES),
    )
}
"""A new reader of foreign bytes is one more entry here."""
