"""How objects are written to the tiers, in words for `kvwise explain`. It asks nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvwise.core.coding import Reason
from kvwise.units import format_size

REASONS = {
    Reason.LINK_SLOW: "the link is slow enough for it",
    Reason.LINK_FAST: "the link is too fast for a codec",
    Reason.NO_GAIN: "no codec makes them smaller",
    Reason.UNMEASURED: "too little was measured so far",
    Reason.NO_ELEMENTS: "what they hold is not known",
    Reason.NO_NUMBA: "there are no codecs: pip install 'kvwise[codecs]'",
    Reason.NOT_READY: "codecs are still being compiled",
    Reason.OPT_IN: "the engine asked for it",
    Reason.FORCED: "disk.codec says so",
    Reason.OFF: "disk.codec says so",
}
"""What the reasons of codecs mean."""


def codec_lines(coding: Mapping[str, Any]) -> Iterator[str]:
    """One line for each namespace on each tier: what is used, why, and what it rests on."""
    for tier, spaces in coding.get("choices", {}).items():
        for label, one in spaces.items():
            why = _reason(Reason(one["why"]), coding.get("failure", ""))
            yield f"{tier}, {label}: written {one['coding']}, {why}{_figures(tier, one, coding)}"


def _reason(why: Reason, failure: str) -> str:
    """A reason in words; codecs that are installed and failed say how."""
    if why is Reason.NO_NUMBA and failure:
        return f"there are no codecs: {failure}"
    return REASONS[why]


def _figures(tier: str, one: Mapping[str, Any], coding: Mapping[str, Any]) -> str:
    """What was measured, if it was."""
    link = coding["read_bytes_per_s"].get(tier)
    known = [
        f"{codec} leaves {share:.0%} and pays below {format_size(int(rate))}/s"
        for codec, share in one["shares"].items()
        if (rate := one["break_even_bytes_per_s"].get(codec, 0.0))
    ]
    if link is None or not known:
        return ""
    gain = f"; loads take {one['gain']:.0%} less" if one["gain"] > 0 else ""
    return f"{gain}; reads come at {format_size(int(link))}/s; {', '.join(known)}"
