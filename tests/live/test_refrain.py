"""Warnings that would be repeated: said at once, counted, said again, never lost."""

from __future__ import annotations

import logging

import pytest

from kvwise.live import refrain
from kvwise.live.refrain import KINDS_MAX, Refrain


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Refrain:
    """A refrain whose time to be said again has always come."""
    monkeypatch.setattr(refrain, "EVERY_S", 0.0)
    return Refrain(logging.getLogger("refrain"))


def test_the_first_is_said_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Within the time between two repetitions only the first of each kind is heard."""
    quiet = Refrain(logging.getLogger("refrain"))
    for number in range(5):
        quiet.warn("a", f"a {number}")
        quiet.warn("b", f"b {number}")
    quiet.look()
    assert caplog.messages == ["a 0", "b 0"]

    quiet.close()
    quiet.close()

    assert caplog.messages[2:] == ["a 4 (the last of 4 like it)", "b 4 (the last of 4 like it)"]


def test_what_goes_on_is_said_again(said: Refrain, caplog: pytest.LogCaptureFixture) -> None:
    """Once its time has come a count is said; once nothing more comes it is over, and new again."""
    said.warn("a", "one")
    said.warn("a", "two")
    said.look()
    said.warn("a", "three")
    said.look()
    said.look()
    said.warn("a", "four")

    assert caplog.messages == [
        "one",
        "two (the last of 1 like it)",
        "three (the last of 1 like it)",
        "four",
    ]


def test_too_many_kinds_are_all_said(caplog: pytest.LogCaptureFixture) -> None:
    """The table is bounded: what finds no place in it is never swallowed."""
    quiet = Refrain(logging.getLogger("refrain"))
    for _ in range(2):
        for number in range(KINDS_MAX + 3):
            quiet.warn(number, "text")

    assert len(caplog.messages) == KINDS_MAX + 6
