"""What `kvwise plan` says in a terminal. It computes nothing of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.planner.advise import Decision, Verdict

STYLES = {Verdict.YES: "bold green", Verdict.HAVE: "green", Verdict.NO: "bold", Verdict.MAYBE: ""}


def show(told: dict[str, Any], decisions: Sequence[Decision], console: Console) -> None:
    """The answer as text."""
    gpus = f"{told['gpus_per_host']} x {told['gpu']}"
    console.print(
        escape(
            f"{told['model']}, KV in {told['kv']} ({told['token_bytes']:,.0f} bytes a token), "
            f"{told['hosts']} {'host' if told['hosts'] == 1 else 'hosts'} of {gpus}"
        ),
        soft_wrap=True,
    )
    console.print(
        f"prefill alone keeps {told['engines_busy_with_prefill']:.2f} such hosts busy; the middle "
        f"prompt has {told['typical_prompt_tokens']:,} tokens and takes "
        f"{told['typical_prompt_s']:.2f} s\n",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("level")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for one in decisions:
        style = STYLES[one.verdict]
        verdict = f"[{style}]{one.verdict.value}[/]" if style else one.verdict.value
        table.add_row(one.boundary, verdict, escape(one.why))
    console.print(table)
    if told["serve"]:
        console.print("on each host:", style="bold")
        console.print(f"  {escape(told['serve'])}", soft_wrap=True)
    for note in told["notes"]:
        console.print(escape(note), style="bold", soft_wrap=True)
    console.print(
        f"\nHits are those of an exact LRU; kvwise's policy does better on most traces. "
        f"{escape(told['estimate']['said'])} Nobody waits for anybody here: 'kvwise sim --stack' "
        "plays queues through. --json has the numbers behind each line, and where those of the "
        "hardware are from.",
        soft_wrap=True,
    )
