"""Owns the bar charts of the report: inline SVG with every value printed above its bar.

It knows nothing of what the values mean. Lengths are percentages, so a chart fills a phone as well
as a desk, and its text keeps its size. Kinds of bars differ in pattern as well as in colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_ROW = 58
_BAR_TOP = 22
_BAR = 18
_TICK = 6
_BAR_MIN_PERCENT = 0.4

_SVG = (
    '<svg class="chart" width="100%" height="{height}" role="img" aria-label="{title}">'
    '<title>{title}</title>{desc}<defs><pattern id="hatch" width="7" height="7" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="7" height="7" '
    'class="hatch-back"/><line x1="0" y1="0" x2="0" y2="7" class="hatch-line"/></pattern></defs>'
    "{rows}</svg>"
)
_ROW_SVG = (
    '<svg y="{top}" width="100%" height="{row}" overflow="visible">'
    '<text class="label" x="0" y="14">{label}</text>'
    '<text class="value" x="100%" y="14">{text}</text>'
    '<rect class="track" y="{bar_top}" width="100%" height="{bar}"/>'
    '<rect class="bar {kind}" y="{bar_top}" width="{length:.2f}%" height="{bar}"/>{ticks}</svg>'
)
_TICK_SVG = '<line class="tick" x1="{at:.2f}%" x2="{at:.2f}%" y1="{start}" y2="{end}"/>'


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: what it is, in few words.
        value: its length.
        text: the value as it is printed.
        samples: single values, drawn as ticks.
        kind: style class: `plain`, `strong` or `hatched`.
    """

    label: str
    value: float
    text: str
    samples: Sequence[float]
    kind: str


def bar_chart(title: str, bars: Sequence[Bar], about: str = "") -> str:
    """A chart of horizontal bars from zero, on a linear scale; `about` describes it in words."""
    most = max([1e-9, *(max([bar.value, *bar.samples]) for bar in bars)])
    rows = "".join(_row(bar, index * _ROW, 100 / most) for index, bar in enumerate(bars))
    desc = f"<desc>{escape(about)}</desc>" if about else ""
    return _SVG.format(height=_ROW * len(bars), title=escape(title), desc=desc, rows=rows)


def _row(bar: Bar, top: int, percent: float) -> str:
    """One bar with its label, its value and its samples."""
    start = _BAR_TOP + _BAR + 2
    ticks = "".join(
        _TICK_SVG.format(at=sample * percent, start=start, end=start + _TICK)
        for sample in bar.samples
    )
    return _ROW_SVG.format(
        top=top,
        row=_ROW,
        label=escape(bar.label),
        text=escape(bar.text),
        bar_top=_BAR_TOP,
        bar=_BAR,
        kind=escape(bar.kind),
        length=max(_BAR_MIN_PERCENT, bar.value * percent),
        ticks=ticks,
    )
