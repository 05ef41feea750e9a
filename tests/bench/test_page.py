"""The report as a page: complete, self-contained, honest, well formed."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser

import pytest

from kvwise.bench.chart import Bar, bar_chart
from kvwise.bench.page import LABELS, milliseconds, render
from kvwise.bench.result import conclude
from tests.bench import runs

VOID = {"meta"}


class Balance(HTMLParser):
    """Finds tags that are not closed in order, and attributes that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.fetches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an opening tag."""
        self.fetches += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        """Match a closing tag with the last one that is open."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_the_page_is_well_formed_and_fetches_nothing() -> None:
    """It can be mailed, archived and opened without a network."""
    page, checker = render(runs.report()), Balance()
    checker.feed(page)

    assert (checker.open, checker.wrong, checker.fetches) == ([], [], [])
    assert not re.search(r"url\((?!#)|@import|<script|https?://", page)


def test_every_median_is_printed() -> None:
    """No value has to be guessed from the length of a bar."""
    report = runs.report()
    page = render(report)

    assert all(milliseconds(ms) in page for ms in report.ttft_ms.values())
    assert all(escape(label) in page for label in LABELS.values())


def test_a_good_run_has_no_list_of_problems() -> None:
    """The box appears only when there is something in it."""
    page = render(runs.report())

    assert "What did not hold" not in page
    assert "27\N{MULTIPLICATION SIGN}" in page


def test_problems_come_before_numbers() -> None:
    """A run to doubt says so first."""
    page = render(runs.report(changed=runs.with_other_tokens("dram-1-1")))

    assert "NOT the same" in page
    assert page.index("What did not hold") < page.index("Time to first token")
    assert "dram-1-1: its tokens differ" in page


def test_a_missed_goal_is_no_alarm() -> None:
    """Being slower than aimed at is said before the numbers, but not as a wrong token is."""
    page = render(runs.report(slower=3.0, load_average=5.0))

    assert "What did not hold" not in page
    assert "the machine was busy before the run began (load average 5 on 2 cores)" in page
    assert "slower than aimed at: memory is at least this many times faster" in page
    assert page.index("slower than aimed at") < page.index("Time to first token")


def test_names_are_escaped() -> None:
    """A problem's text cannot become markup."""
    hostile = runs.REPLAYS[0].__class__("<b>log", False, 1, "<script>alert(1)</script>")
    page = render(conclude(runs.SETTING, runs.samples(), runs.decisions(), [hostile]))

    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_an_empty_run_still_has_a_page() -> None:
    """A run that broke off can be shown too."""
    page = render(conclude(runs.SETTING, [], [], []))

    assert "did not get as far as a comparison" in page


def test_bars_are_as_long_as_their_values() -> None:
    """The longest value fills the width, half of it half."""
    bars = [
        Bar("a & b", 50.0, "50 ms", [50.0], "plain"),
        Bar("c", 100.0, "100 ms", [80.0, 100.0], "strong"),
        Bar("d", 0.0, "0 ms", [], "hatched"),
    ]
    chart = bar_chart("title", bars)
    widths = re.findall(r'class="bar \w+" y="\d+" width="([\d.]+)%"', chart)

    assert widths == ["50.00", "100.00", "0.40"]
    assert "a &amp; b" in chart


@pytest.mark.parametrize(
    ("value", "text"), [(4812.3, "4,812 ms"), (95.4, "95 ms"), (7.25, "7.2 ms"), (0.0, "0.0 ms")]
)
def test_times_are_printed_with_fitting_precision(value: float, text: str) -> None:
    """Large times without decimals, small ones with one."""
    assert milliseconds(value) == text
