"""Tallies: the simulator's own count of what the brain counts too. Both must agree at the end.

They are kept from events and answers, by other code than the brain's. They decide nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvwise.core.records import RECORDS_MAX
from kvwise.core.words import Asked, Decision, Released


@dataclass(slots=True)
class Tallies:
    """Counters by the labels that the brain uses.

    Attributes:
        requests: (client, request) of every plan so far; the brain remembers only the last ones,
            so asked tokens and decisions agree as long as there were no more.
    """

    asked_tokens: int = 0
    explored: int = 0
    leases_expired: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    hit_tokens: Counter[str] = field(default_factory=Counter)
    read_bytes: Counter[str] = field(default_factory=Counter)
    written_bytes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    requests: set[tuple[int, str]] = field(default_factory=set)

    @property
    def remembers_all(self) -> bool:
        """Whether the brain still knows every request it was asked about."""
        return len(self.requests) <= RECORDS_MAX

    def asked(self, event: Asked, decision: Decision) -> None:
        """A plan was made; asking again about a request counts once."""
        who = event.client, event.request
        if who not in self.requests:
            self.requests.add(who)
            self.asked_tokens += event.total_tokens
            self.decisions[f"{decision.choice.value}|{decision.why.value}"] += 1

    def released(self, event: Released, tokens: Counter[str], *, wanted: bool) -> None:
        """A client gave a load lease back; `tokens` is what it covered, by tier."""
        if not wanted:
            return
        if not event.failed:
            self.hit_tokens.update(tokens)
        if event.copied_bytes:
            self.read_bytes["dram"] += event.copied_bytes
