"""What long work shows on a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from kvwise.bench.progress import Steps, Terminal
from tests.bench.fakes import Notes


def test_a_finished_step_is_one_line() -> None:
    """A path longer than a log's assumed width stays whole, brackets and all."""
    path = f"/home/somebody/[cache]/{'long' * 30}/engine"
    out = io.StringIO()
    with Terminal(Console(file=out, width=80)) as progress:
        progress.done(f"installed the engine in {path}")

    assert out.getvalue() == f"ok installed the engine in {path}\n"


def test_steps_are_counted() -> None:
    """Whoever waits sees which step it is, of how many, and what is done in it."""
    notes = Notes()
    steps = Steps(notes, 2)
    steps.next("the first")
    steps.now("working")
    steps.next("the second")
    steps.now("working [on]")
    steps.done("all of it")

    assert notes.noted == ["step 1 of 2: the first", "step 2 of 2: the second"]
    assert notes.shown == ["1 of 2: working", "2 of 2: working [on]"]
    assert notes.finished == ["all of it"]
