"""Hints: what a caller knows about a request, and what can be meant. Nobody has to heed them."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_MAX = 7 * 86_400.0
"""No hint looks further ahead than a week."""

PAUSES = ("", "tool", "user")
"""What a session may wait for between an answer and its next request; nothing is known first."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller knows about a request. Absent knowledge is the default.

    Attributes:
        no_store: keep nothing of it.
        no_load: compute all of it.
        no_reuse: nobody will ask for this again; what is there may be used.
        pin_s: keep its blocks in the arena for so long; 0 is no wish.
        ttl_s: its new blocks are worthless after so long; 0 is never.
        priority: from -1 to 1, how much more than others it matters.
        pause: what its session will wait for after the answer, one of `PAUSES`.
    """

    no_store: bool = False
    no_load: bool = False
    no_reuse: bool = False
    pin_s: float = 0.0
    ttl_s: float = 0.0
    priority: float = 0.0
    pause: str = ""

    @property
    def is_sane(self) -> bool:
        """Whether its values can be meant; nothing compares with a number that is none."""
        timely = all(0 <= seconds <= SECONDS_MAX for seconds in (self.pin_s, self.ttl_s))
        return timely and -1 <= self.priority <= 1 and self.pause in PAUSES


NO_HINTS = Hints()
"""Nothing is known."""
