"""Owns the charts of a page that are no bars: lines over an axis, and ranges around a middle.

It knows nothing of what the values mean. As in `bench.chart` places are percentages, so that a
chart fills a phone as well as a desk, and lines differ in dashes as well as in colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log

_TOP, _PLOT, _BOTTOM = 14, 250, 30
_ROW, _BAR_TOP, _BAR = 58, 22, 18
_EDGE = 0.2
"""Nearer than this part to an end, a text is turned inwards."""

_SVG = (
    '<svg class="chart" width="100%" height="{height}" role="img" aria-label="{title}">'
    "<title>{title}</title><desc>{about}</desc>{body}</svg>"
)
_PLOT_SVG = (
    '<svg y="{top}" width="100%" height="{height}" viewBox="0 0 1000 1000" '
    'preserveAspectRatio="none" overflow="visible">{lines}</svg>'
)
_LINE_SVG = (
    '<polyline class="curve {kind}" points="{points}" vector-effect="non-scaling-stroke"{dash}/>'
)
_RANGE_SVG = (
    '<svg y="{top}" width="100%" height="{row}" overflow="visible">'
    '<text class="label" x="0" y="14">{label}</text>'
    '<text class="value" x="100%" y="14">{text}</text>'
    '<rect class="track" y="{bar_top}" width="100%" height="{bar}"/>'
    '<rect class="bar hatched" x="{low:.2f}%" y="{bar_top}" width="{under:.2f}%" height="{bar}"/>'
    '<rect class="bar strong" x="{middle:.2f}%" y="{bar_top}" width="{over:.2f}%" height="{bar}"/>'
    "</svg>"
)
_HATCH = (
    '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="7" height="7" class="hatch-back"/>'
    '<line x1="0" y1="0" x2="0" y2="7" class="hatch-line"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a chart.

    Attributes:
        low, high: its ends.
        ticks: values with their texts.
        is_log: whether equal factors are equal lengths.
    """

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def part(self, value: float) -> float:
        """Where a value is, from 0 to 1; beyond the ends it is at the end."""
        if self.is_log:
            low, high, value = log(self.low), log(self.high), log(max(value, self.low))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Line:
    """One line, named beside it.

    Attributes:
        label: its name.
        points: where it goes.
        dash: lengths of dashes and gaps; empty for a line without gaps.
        at: the point that the name stands at; the last where it is -1.
        is_below: whether the name stands below the line.
        kind: style class: `strong` or `brand`.
    """

    label: str
    points: Sequence[tuple[float, float]]
    dash: str = ""
    at: int = -1
    is_below: bool = False
    kind: str = "strong"


@dataclass(frozen=True, slots=True)
class Mark:
    """One point with a text."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """How far something goes to both sides of a middle.

    Attributes:
        label: what it is.
        low, high: its ends, in any order.
        text: both as they are printed.
    """

    label: str
    low: float
    high: float
    text: str


def line_chart(
    title: str,
    about: str,
    axes: tuple[Axis, Axis],
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
) -> str:
    """Lines over two axes, the level one first; the texts of the other stand on its grid."""
    x, y = axes
    body = [_grid(x, y)]
    drawn = "".join(
        _LINE_SVG.format(
            kind=escape(line.kind),
            points=" ".join(
                f"{1000 * x.part(at):.1f},{1000 - 1000 * y.part(value):.1f}"
                for at, value in line.points
            ),
            dash=f' stroke-dasharray="{escape(line.dash)}"' if line.dash else "",
        )
        for line in lines
    )
    body.append(_PLOT_SVG.format(top=_TOP, height=_PLOT, lines=drawn))
    for line in lines:
        at, value = line.points[line.at]
        top = _top(y, value) + (16 if line.is_below else -7)
        body.append(_text("label", x.part(at), top, line.label))
    for mark in marks:
        part, top = x.part(mark.x), _top(y, mark.y)
        body.append(f'<circle class="mark" cx="{100 * part:.2f}%" cy="{top:.1f}" r="5"/>')
        body.append(_text("marked", part, top - 12, mark.text, "end" if part > _EDGE else ""))
    return _SVG.format(
        height=_TOP + _PLOT + _BOTTOM, title=escape(title), about=escape(about), body="".join(body)
    )


def range_chart(title: str, about: str, middle: float, ranges: Sequence[Range]) -> str:
    """Ranges under each other: hatched below the middle that all share, solid above it."""
    ends = [middle, *(end for one in ranges for end in (one.low, one.high))]
    least, most = min(ends), max(ends)
    percent = 100 / max(most - least, 1e-9)
    rows = []
    for number, one in enumerate(ranges):
        low, high = min(one.low, one.high, middle), max(one.low, one.high, middle)
        rows.append(
            _RANGE_SVG.format(
                top=number * _ROW,
                row=_ROW,
                bar_top=_BAR_TOP,
                bar=_BAR,
                label=escape(one.label),
                text=escape(one.text),
                low=(low - least) * percent,
                under=(middle - low) * percent,
                middle=(middle - least) * percent,
                over=(high - middle) * percent,
            )
        )
    height, at = _ROW * len(ranges), (middle - least) * percent
    rule = f'<line class="base" x1="{at:.2f}%" x2="{at:.2f}%" y1="18" y2="{height - 10}"/>'
    return _SVG.format(
        height=height,
        title=escape(title),
        about=escape(about),
        body=_HATCH + "".join(rows) + rule,
    )


def _grid(x: Axis, y: Axis) -> str:
    """Lines and texts of both axes."""
    parts = []
    for value, text in y.ticks:
        top = _top(y, value)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{top:.1f}" y2="{top:.1f}"/>')
        parts.append(f'<text class="axis" x="0" y="{top - 4:.1f}">{escape(text)}</text>')
    for value, text in x.ticks:
        part = x.part(value)
        parts.append(
            f'<line class="grid" x1="{100 * part:.2f}%" x2="{100 * part:.2f}%" '
            f'y1="{_TOP + _PLOT}" y2="{_TOP + _PLOT + 6}"/>'
        )
        parts.append(_text("axis", part, _TOP + _PLOT + 22, text))
    return "".join(parts)


def _top(y: Axis, value: float) -> float:
    """Pixels from the top of a value."""
    return _TOP + _PLOT * (1 - y.part(value))


def _text(kind: str, part: float, top: float, text: str, anchor: str = "") -> str:
    """A text at a place, turned inwards at the edges where no anchor is given."""
    anchor = anchor or ("start" if part < _EDGE else "end" if part > 1 - _EDGE else "middle")
    return (
        f'<text class="{kind}" x="{100 * part:.2f}%" y="{top:.1f}" '
        f'style="text-anchor:{anchor}">{escape(text)}</text>'
    )
