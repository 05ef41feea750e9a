"""Owns the text that the demo talks about: long records of invented places, the same on every run.

It draws no random number: what varies is derived from the document's number, so two machines send
the same tokens to the engine. Sentences with blanks to fill are in `sentences.txt`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

WORDS = 1700
"""Words in one document: more than the demo needs, which cuts it to the length it wants."""

_PLACES = (
    ("the lighthouse at Skerry Point", "lamp", "keeper"),
    ("the orchard of Lower Wend", "press", "grower"),
    ("the observatory on Mount Calder", "telescope", "observer"),
    ("the railway depot at Fenwick", "engine", "foreman"),
    ("the municipal library of Ostrava Street", "catalogue", "librarian"),
    ("the weather station on Hollow Ridge", "barometer", "reader"),
    ("the printing house of Marlow and Finch", "rotary press", "compositor"),
    ("the harbour of Saint Orlan", "crane", "pilot"),
    ("the glassworks in Amber Lane", "furnace", "blower"),
    ("the botanical garden of Tarn", "greenhouse", "gardener"),
    ("the clock tower of Vessel Square", "escapement", "winder"),
    ("the salt mine below Kestrel Hill", "hoist", "surveyor"),
)
_NAMES = (
    "Ada Brandt", "Tomas Ilves", "Mirela Costa", "Jonas Pell", "Ruth Okafor", "Henrik Vale",
    "Sofia Lindqvist", "Edwin Marsh", "Nadia Farouk", "Piotr Zielny", "Clara Whitby", "Owen Drake",
)  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_YEARS = ("first", "second", "third", "fourth")
_PER_MONTH = 6
_QUESTIONS = (
    "Who wrote this record, and for whom?",
    "What happened to the most important machine during the year?",
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and the two questions that are asked about it in turn."""

    title: str
    text: str
    questions: tuple[str, str]


class _Draw:
    """An endless row of choices that depends on the document's number and nothing else."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0

    def upto(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        self._count += 1
        text = f"{self._number}:{self._count}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) % limit


def document(number: int) -> Document:
    """The document with this number; every number gives another text."""
    draw = _Draw(number)
    place, machine, worker = _PLACES[number % len(_PLACES)]
    fixed = {"place": place, "machine": machine, "worker": worker}
    opening, *others = _templates()
    paragraphs = [_sentence(opening, draw, fixed)]
    month = 0
    while sum(len(p.split()) for p in paragraphs) < WORDS:
        fixed["month"] = _MONTHS[month % len(_MONTHS)]
        order = sorted(others, key=lambda _: draw.upto(1 << 30))
        chosen = [_sentence(template, draw, fixed) for template in order[:_PER_MONTH]]
        heading = f"{fixed['month']} of the {_YEARS[month // len(_MONTHS)]} year."
        paragraphs.append(" ".join([heading, *chosen]))
        month += 1
    title = place.removeprefix("the ")
    return Document(title, "\n\n".join(paragraphs), _QUESTIONS)


@cache
def _templates() -> tuple[str, ...]:
    """The opening, then every other sentence that a record is made of."""
    text = (resources.files("kvwise.bench") / "sentences.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def _sentence(template: str, draw: _Draw, fixed: dict[str, str]) -> str:
    """One sentence with its blanks filled."""
    return template.format(
        name=_NAMES[draw.upto(len(_NAMES))],
        founded=1780 + draw.upto(140),
        day=4 + draw.upto(17),
        days=3 + draw.upto(16),
        hours=2 + draw.upto(21),
        staff=6 + draw.upto(30),
        count=40 + draw.upto(400),
        cost=100 + 5 * draw.upto(180),
        **fixed,
    )
