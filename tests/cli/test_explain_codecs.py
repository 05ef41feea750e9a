"""How `kvwise explain` speaks of codecs: one line for each namespace on each tier."""

from __future__ import annotations

from dataclasses import replace

from kvwise.cli.explain_codecs import REASONS, codec_lines
from kvwise.core.coding import Reason
from tests.core.test_coding import SUBJECT, codings, measured, settled


def test_every_reason_has_words() -> None:
    """No reason is shown as its name."""
    assert set(REASONS) == set(Reason)


def test_a_codec_in_use_is_told_with_what_it_rests_on() -> None:
    """The line has the codec, the reason, the gain, the link's rate and both break-evens."""
    made = measured(0.2e9)
    settled(made)
    (line,) = codec_lines(made.told([(0, "tiny")]))
    assert line.startswith("disk, tiny: written dense, the link is slow enough for it; loads take ")
    assert "reads come at 190.7 MiB/s" in line
    assert "dense leaves 70% and pays below 1.1 GiB/s" in line


def test_without_measurements_only_the_reason_is_told() -> None:
    """What is not known is not made up, and a daemon that says nothing of codecs is no error."""
    made = codings()
    settled(made, replace(SUBJECT, elements=None))
    (line,) = codec_lines(made.told([(0, "tiny")]))
    assert line == "disk, tiny: written plain, what they hold is not known"
    assert [*codec_lines({})] == []
