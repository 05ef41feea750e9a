"""Owns `report.html`: one file without outside requests that says what a demo run showed.

It computes nothing that `result` has not concluded, and it hides nothing: problems come first.
A missed goal of speed is said in a calm voice: it is not a wrong token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from kvwise.bench.chart import Bar, bar_chart
from kvwise.bench.measure import Phase
from kvwise.bench.result import Report, Row
from kvwise.core.words import Choice, Decision
from kvwise.units import format_seconds

LABELS = {
    Phase.FIRST_VISIT: "Computed and stored",
    Phase.RECOMPUTE: "Computed",
    Phase.DEVICE: "Engine's own cache",
    Phase.DRAM: "kvwise, memory",
    Phase.DRAM_RESTARTED: "kvwise, memory, after an engine restart",
    Phase.DISK: "kvwise, disk, after a daemon restart",
}
"""What a person reads for a phase."""

TIMES = "\N{MULTIPLICATION SIGN}"

_BARS = (
    (Phase.RECOMPUTE, "strong"),
    (Phase.DEVICE, "plain"),
    (Phase.DRAM, "hatched"),
    (Phase.DRAM_RESTARTED, "hatched"),
    (Phase.DISK, "hatched"),
)
_MEANING = {
    Phase.FIRST_VISIT: "The prompt is new to everybody. The engine computes it and kvwise stores "
    "it: what storing costs is the difference to the next line.",
    Phase.RECOMPUTE: "Nothing may be loaded or stored. What every request costs without a cache.",
    Phase.DEVICE: "The engine's prefix cache still holds the prompt. As fast as it gets, until "
    "other requests take its place.",
    Phase.DRAM: "The engine's cache was emptied. kvwise copies the prompt's KV from its memory "
    "into the engine.",
    Phase.DRAM_RESTARTED: "The engine was stopped and started again. The daemon kept the memory.",
    Phase.DISK: "The daemon was stopped and started again, so that only its disk directory has "
    "the KV. It is read, verified and copied into the engine.",
}
_DECISION_HEADS = (
    "request",
    "tokens found",
    "decision",
    "load, estimated",
    "computing, estimated",
    "load, measured",
    "first token",
)


def render(report: Report) -> str:
    """The whole page."""
    sections = (
        _problems(report),
        _cautions(report),
        _tiles(report),
        _charts(report),
        _meanings(report),
        _goals(report),
        _trust(report),
        _decisions(report),
        _setting(report),
    )
    return document(f"kvwise {report.setting.version} demo", _headline(report), sections)


def document(kind: str, headline: str, sections: Iterable[str]) -> str:
    """A page of sections that are HTML already; it asks nobody for anything."""
    style = (resources.files("kvwise.bench") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(kind)}: {escape(headline)}</title><style>{style}</style></head>"
        f"<body><main><header><p>{escape(kind)}</p>"
        f"<h1>{escape(headline)}</h1></header>{''.join(sections)}</main></body></html>\n"
    )


def milliseconds(value: float) -> str:
    """A time as the report prints it: 4,812 ms, 95 ms, 7.3 ms."""
    return f"{value:,.0f} ms" if value >= 20 else f"{value:.1f} ms"


def _headline(report: Report) -> str:
    """The result in one sentence."""
    computed, loaded = report.ttft_ms.get(Phase.RECOMPUTE), report.ttft_ms.get(Phase.DRAM)
    if not computed or not loaded:
        return "The run did not get as far as a comparison"
    return (
        f"First token after {milliseconds(loaded)} instead of {milliseconds(computed)}, "
        f"with {report.prefix_tokens:,} tokens loaded from memory"
    )


def _problems(report: Report) -> str:
    """What went wrong, if anything did, before anything else."""
    if not report.problems:
        return ""
    return (
        '<section class="problems"><h2>What did not hold</h2><ul>'
        + "".join(f"<li>{escape(text)}</li>" for text in report.problems)
        + "</ul></section>"
    )


def _cautions(report: Report) -> str:
    """What makes the times less than they could be: worth knowing, and nothing that is wrong."""
    found = list(report.warnings)
    if report.rows:
        found += [
            f"slower than aimed at: {goal.text}: {goal.measured:g}, aimed at {goal.target:g}"
            for goal in report.goals
            if not goal.met
        ]
    if not found:
        return ""
    return (
        '<section class="cautions"><p>About the times:</p><ul>'
        + "".join(f"<li>{escape(text)}</li>" for text in found)
        + "</ul></section>"
    )


def _tiles(report: Report) -> str:
    """The three numbers to remember."""
    equal = "the same" if report.tokens_equal else "NOT the same"
    tiles = (
        (f"{report.speedup['dram']:.0f}{TIMES}", "faster from memory than computed"),
        (f"{report.speedup['disk']:.0f}{TIMES}", "faster from disk than computed"),
        (equal, "tokens from every source, token by token"),
    )
    return (
        '<section class="tiles">'
        + "".join(f"<div><b>{escape(big)}</b><span>{small}</span></div>" for big, small in tiles)
        + "</section>"
    )


def _charts(report: Report) -> str:
    """All sources on one scale, then the quick ones enlarged."""
    every = [_bar(report, *bar) for bar in _BARS if bar[0] in report.ttft_ms]
    quick = [_bar(report, *bar) for bar in _BARS[1:] if bar[0] in report.ttft_ms]
    return (
        "<section><h2>Time to first token</h2>"
        "<p>Median of all requests; each tick under a bar is one of them. Scales start at zero.</p>"
        + bar_chart("Time to first token by source, milliseconds", every)
        + "<h3>Enlarged: without computing</h3>"
        + bar_chart("Time to first token by source without computing, milliseconds", quick)
        + "</section>"
    )


def _bar(report: Report, phase: Phase, kind: str) -> Bar:
    """The bar of one phase."""
    samples = [row.sample.ttft_ms for row in report.rows if row.sample.phase is phase]
    value = report.ttft_ms[phase]
    return Bar(LABELS[phase], value, milliseconds(value), samples, kind)


def _meanings(report: Report) -> str:
    """What each source is, with what else was measured about it."""
    cards = []
    for phase, meaning in _MEANING.items():
        if phase in report.ttft_ms:
            least, most = map(milliseconds, report.spread_ms[phase])
            count = sum(1 for row in report.rows if row.sample.phase is phase)
            cards.append(
                f"<article><h3>{escape(LABELS[phase])}"
                f"<b>{milliseconds(report.ttft_ms[phase])}</b></h3><p>{escape(meaning)}</p>"
                f"<small>{count} requests, {least} to {most}</small></article>"
            )
    return f'<section class="sources"><h2>What was compared</h2>{"".join(cards)}</section>'


def _goals(report: Report) -> str:
    """Targets and what was measured."""
    body = (
        (
            goal.text,
            f"{goal.target:g}{TIMES}",
            f"{goal.measured:.2f}{TIMES}",
            "met" if goal.met else "missed",
        )
        for goal in report.goals
    )
    return f"<section><h2>Goals</h2>{table(('goal', 'target', 'measured', ''), body)}</section>"


def _trust(report: Report) -> str:
    """Why to believe it."""
    answers = (
        f"Each of {report.documents} prompts was answered with "
        f"{report.setting.engine.get('answer_tokens', 0)} tokens from every source; "
        + ("all token ids are equal. " if report.tokens_equal else "token ids differ. ")
        + f"The {report.documents} prompts have {report.distinct_answers} different answers, so "
        "the answer does depend on the prompt's KV."
    )
    sources = (
        "For each request the engine reported how many tokens it did not compute, and kvwise "
        "from which tier it loaded them; a request from another source than its bar says is "
        "listed as a problem."
    )
    shapes = (
        "Prompts are cut so that the engine computes in its first step exactly the tokens that a "
        "cache gives back. Both ways then run the same kernels on the same shapes."
    )
    events = sum(r.events for r in report.replays)
    same = bool(report.replays) and all(r.equal for r in report.replays)
    logs = (
        f"Every one of the {events:,} events that the daemon's brain heard was fed to a fresh one: "
        + ("it gave the same commands again." if same else "IT GAVE OTHER COMMANDS.")
    )
    items = "".join(f"<li>{escape(text)}</li>" for text in (answers, sources, shapes, logs))
    return f'<section><h2>Why to believe it</h2><ul class="prose">{items}</ul></section>'


def _decisions(report: Report) -> str:
    """The life of the first prompt, and every decision for whoever wants to see them."""
    first = report.rows[0].sample.document if report.rows else 0
    life = [row for row in report.rows if row.sample.document == first and _is_first(row)]
    return (
        "<section><h2>What kvwise decided</h2><p>One prompt on its way through the run. A prompt "
        "is loaded only if that is expected to be faster than computing it.</p>"
        + table(_DECISION_HEADS, (_decision(row, LABELS[row.sample.phase]) for row in life))
        + f"<details><summary>All {len(report.rows)} requests</summary>"
        + table(_DECISION_HEADS, (_decision(row, row.sample.name) for row in report.rows))
        + "</details></section>"
    )


def _is_first(row: Row) -> bool:
    """Whether a request is the first of its phase and document."""
    return row.sample.name.endswith("-1")


def _decision(row: Row, name: str) -> tuple[str, ...]:
    """One request in words."""
    ttft, decision = milliseconds(row.sample.ttft_ms), row.decision
    if decision is None:
        return (name, "", "kvwise was not asked", "", "", "", ttft)
    return (
        name,
        f"{decision.match_tokens:,} of {decision.total_tokens:,}",
        _words(decision),
        format_seconds(decision.load_s) if decision.load_s else "",
        format_seconds(decision.recompute_s) if decision.recompute_s else "",
        format_seconds(decision.actual_s) if decision.actual_s else "",
        ttft,
    )


def _words(decision: Decision) -> str:
    """A decision and its reason."""
    why = decision.why.value.replace("_", " ")
    if decision.choice is Choice.RECOMPUTE:
        return f"compute: {why}"
    tiers = " and ".join(f"{tokens:,} from {tier}" for tier, tokens in decision.tiers.items())
    return f"load {tiers}: {why}"


def _setting(report: Report) -> str:
    """Where and on what it was measured."""
    setting = report.setting
    facts = {
        "engine": ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in setting.engine.items()),
        "model": setting.model,
        **{name.replace("_", " "): str(value) for name, value in setting.machine.items()},
        "started": setting.started,
        "took": f"{setting.took_s:.0f} s",
    }
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return (
        f"<section><h2>Setting</h2><dl>{items}</dl><p>A small model on a processor: the ratios "
        "are those of this machine. On a GPU computing is faster, and so is copying. Run it "
        "again with <code>kvwise demo</code>; every number is in <code>report.json</code>.</p>"
        "</section>"
    )


def table(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table that scrolls by itself on a narrow screen."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in body
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</div>"
    )
