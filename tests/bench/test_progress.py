"""What long work shows on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from kvwise.bench.progress import Terminal


def test_a_finished_step_is_one_line() -> None:
    """A path longer than a log's assumed width stays whole, brackets and all."""
    path = f"/home/somebody/[cache]/{'long' * 30}/engine"
    out = io.StringIO()
    with Terminal(Console(file=out, width=80)) as progress:
        progress.done(f"installed the engine in {path}")

    assert out.getvalue() == f"ok installed the engine in {path}\n"
