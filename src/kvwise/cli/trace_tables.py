"""A trace's figures as tables of at most 80 columns. It measures nothing."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.sim.trace.summary import KNEE_GAIN, Blocks, Lengths, Point, Summary
from kvwise.units import GIB

MODELS_SHOWN = 4
NAME_CHARS_MAX = 32


def show_summary(summary: Summary, bytes_per_token: int, console: Console) -> None:
    """All that is known of a trace; sizes in memory too where the size of a token is known."""
    for line in _heading(summary):
        console.print(escape(line), soft_wrap=True)
    console.print()
    console.print(_lengths(summary))
    blocks = summary.blocks
    if blocks is None:
        console.print("\nThis trace tells nothing of blocks, and so nothing of reuse.")
        return
    console.print()
    for line in _reuse(blocks):
        console.print(line, soft_wrap=True)
    if blocks.turns:
        console.print()
        console.print(_turns(blocks))
    console.print()
    console.print(_points("exact LRU", blocks.curve, bytes_per_token))
    console.print()
    console.print(_points("what shares of all hits take", blocks.needed, bytes_per_token))
    knee = blocks.knee
    console.print(
        f"\nknee: {_tokens(knee.capacity_tokens)} tokens{_memory(knee, bytes_per_token)}, "
        f"{knee.share:.0%} of all hits; twice as much brings less than {KNEE_GAIN:.0%} more",
        soft_wrap=True,
    )


def _heading(summary: Summary) -> list[str]:
    """Format, arrivals, sessions and models."""
    span_s = summary.span_s
    rate = f", {summary.requests / span_s:.3g}/s" if span_s else ""
    lines = [f"{summary.format}: {summary.requests:,} requests in {_span(span_s)}{rate}"]
    if summary.sessions:
        mean = summary.requests / summary.sessions
        lines.append(
            f"sessions: {summary.sessions:,}, of {mean:.1f} requests on average and "
            f"{summary.session_requests_max:,} at most"
        )
    if summary.subagent_requests:
        lines.append(f"requests by subagents: {summary.subagent_requests:,}")
    if summary.unanswered:
        lines.append(f"requests without an answer: {summary.unanswered:,}")
    if summary.models:
        named = list(summary.models.items())[:MODELS_SHOWN]
        told = ", ".join(f"{_printable(name)} {count:,}" for name, count in named)
        more = len(summary.models) - len(named)
        lines.append(f"models: {told}{f' and {more} more' if more else ''}")
    return lines


def _printable(name: str) -> str:
    """A name that somebody else chose, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:NAME_CHARS_MAX])


def _span(seconds: float) -> str:
    """A long time, in the units a person would use."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _lengths(summary: Summary) -> Table:
    """Lengths of prompts and answers."""
    table = _table("tokens", "total", "mean", "p50", "p95", "max")
    rows: list[tuple[str, Lengths]] = [
        ("input", summary.input_tokens),
        ("output", summary.output_tokens),
    ]
    for name, one in rows:
        figures = (one.total, one.mean, one.p50, one.p95, one.max)
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    return table


def _reuse(blocks: Blocks) -> list[str]:
    """Reuse in a few lines."""
    size = f"blocks of {blocks.block_tokens} tokens: {blocks.input_blocks:,} in prompts"
    once = f"{blocks.distinct_blocks:,} different, {blocks.once:.1%} of them used once"
    where = f"in {blocks.requests_with_hit:.1%} of the requests"
    lines = [f"{size}, {once}", f"reusable: {blocks.reuse:.1%} of the input blocks, {where}"]
    if blocks.gap_s:
        told = ", ".join(f"{name} {_span(seconds)}" for name, seconds in blocks.gap_s.items())
        lines.append(f"reused after: {told}")
    return lines


def _turns(blocks: Blocks) -> Table:
    """Reuse by turn."""
    table = _table("turns", "requests", "input blocks", "reusable")
    for one in blocks.turns:
        name = f"{one.first}" if one.first == one.last else f"{one.first}-{one.last}"
        table.add_row(name, f"{one.requests:,}", f"{one.input_blocks:,}", f"{one.reuse:.1%}")
    return table


def _points(title: str, points: tuple[Point, ...], bytes_per_token: int) -> Table:
    """Capacities and what they bring."""
    memory = ["memory"] if bytes_per_token else []
    table = _table(title, *memory, "hit ratio", "of all hits")
    for point in points:
        sizes = [_gib(point, bytes_per_token)] if bytes_per_token else []
        name = f"{_tokens(point.capacity_tokens)} tokens"
        table.add_row(name, *sizes, f"{point.hit_ratio:.4f}", f"{point.share:.1%}")
    return table


def _table(*columns: str) -> Table:
    """A table whose figures stand below each other."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _tokens(tokens: int) -> str:
    """Tokens, the larger ones in thousands and millions."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size:
            value = tokens / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{tokens}"


def _memory(point: Point, bytes_per_token: int) -> str:
    """The memory of a capacity, where it is known."""
    return f" ({_gib(point, bytes_per_token)})" if bytes_per_token else ""


def _gib(point: Point, bytes_per_token: int) -> str:
    """A capacity in memory."""
    size = point.capacity_tokens * bytes_per_token / GIB
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"
