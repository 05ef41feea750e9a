"""Lines and ranges of a page: where things are drawn, and that they can be read without colour."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from kvwise.bench.curves import Axis, Line, Mark, Range, line_chart, range_chart

LEVEL = Axis(1.0, 100.0, [(10.0, "ten")], is_log=True)
UPRIGHT = Axis(0.0, 2.0, [(1.0, "one")])


def test_values_are_where_the_axes_say() -> None:
    """Equal factors are equal lengths on a logarithmic axis; what is beyond an end is at it."""
    assert [LEVEL.part(value) for value in (1.0, 10.0, 100.0, 1000.0, 0.0)] == [0, 0.5, 1, 1, 0]
    assert [UPRIGHT.part(value) for value in (-1.0, 0.5, 3.0)] == [0, 0.25, 1]


def test_lines_and_marks() -> None:
    """A line goes through its points, and dashes tell it from others; every text is escaped."""
    lines = [Line("a < b", [(1.0, 0.0), (10.0, 2.0)], "5 5"), Line("c", [(1.0, 1.0), (100.0, 1.0)])]
    svg = line_chart("t & u", "about", (LEVEL, UPRIGHT), lines, [Mark(10.0, 1.0, "here")])
    root = ET.fromstring(svg)

    drawn = [one.attrib for one in root.iter() if one.tag.endswith("polyline")]
    assert [one["points"] for one in drawn] == ["0.0,1000.0 500.0,0.0", "0.0,500.0 1000.0,500.0"]
    assert [one.get("stroke-dasharray") for one in drawn] == ["5 5", None]
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert {"a < b", "c", "here", "ten", "one"} <= set(texts)
    assert [one.text for one in root][:2] == ["t & u", "about"]
    (circle,) = (one for one in root.iter() if one.tag.endswith("circle"))
    assert circle.attrib["cx"] == "50.00%"


def test_ranges_share_a_middle() -> None:
    """What is below the middle is hatched and what is above is solid, whichever end comes first."""
    ranges = [Range("a", 20.0, 0.0, "0 to 20"), Range("b", 10, 15, "")]
    svg = range_chart("t", "about", 10.0, ranges)
    parts = re.findall(r'class="bar (\w+)" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', svg)

    assert parts == [
        ("hatched", "0.00", "50.00"),
        ("strong", "50.00", "50.00"),
        ("hatched", "50.00", "0.00"),
        ("strong", "50.00", "25.00"),
    ]
    assert 'class="base" x1="50.00%"' in svg
