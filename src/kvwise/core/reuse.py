"""Reuse: learns which blocks come back, and says what others like them are worth keeping for.

A request uses blocks in up to four ways, each a use of its own with a stamp (`uses`): blocks that
were seen before, blocks that are new with it, the last one of its prompt where that is new, and
blocks that it generates. Blocks of one use come and go together, for the next turn of a session has
all of them or none; so one entry stands for all, and what happens to it teaches the class it is of:
way, turn of the session, length of the prompt, namespace, and what its session waits for next where
the caller says so. The last block is apart because it may be one that no next turn has: the prompt
ends in the middle of it, or with words that stand before an answer only.

Sessions are not told, they are recognised: a request that has most of what was new with an earlier
one is its next turn. Blocks that left are known by their keys for a while (`ghost`), so a class
that is not kept is learned about like any other, and nothing has to be kept to find out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvwise.core.ghost import Ghost
from kvwise.core.hazards import Hazards
from kvwise.core.hints import PAUSES
from kvwise.core.index import NONE, Index
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.outlook import Kind, Sessions
from kvwise.core.uses import Use, Uses, Way

TURNS_MAX = 6
"""Turns from here on are one class."""

LENGTHS = (2_048, 8_192, 32_768)
"""Where prompts count as longer, in tokens, and what is new in them."""

SPACES_MAX = 8
"""Namespaces that are told apart; those that came later are learned about together."""

FEWER = {5: 4, 4: 2, 2: 1, 1: 0}
"""How many of so many names the class around a class has: way, turn, length, namespace, pause."""

PRIORS = {Way.SEEN: 3.0, Way.LAST: 0.2}
"""How often blocks used in a way are taken to be used again, beside all others, before that is
known. What came back once is likely to come back again, and the last block of a prompt is often not
whole; yet a few uses outweigh what is taken here, and a last block begins far above the least
chance that is kept, or first prompts would miss their ends."""

_LEARN_EACH = 2
"""Classes that are brought up to date with each request."""

VISITS_MAX = 4096
FOREVER_S = 1e9
_STAY_STEP = 1 / 256


@dataclass(frozen=True, slots=True)
class About:
    """What is told of a request.

    Attributes:
        space: number of its namespace.
        tokens: length of its prompt.
        pause: what its session waits for after the answer, see `Hints`.
    """

    space: int
    tokens: int
    pause: str = ""


@dataclass(slots=True)
class Visit:
    """What is known of one request.

    Attributes:
        turn: of its session, from 1.
        known: chunks of its prompt that were seen before.
        chunks: of its prompt, seen before or not.
        head, prompt: keys of the first and of the last chunk of the prompt.
        tail, place: key of the chunk below which the next offer is expected, and which chunk of
            the request that offer begins with.
        reach: chunks of the request that were offered, or are of its prompt.
        request: its number among `Sessions`.
        stamps: of its uses, by way; 0 for none as yet.
    """

    turn: int
    about: About
    known: int
    chunks: int
    head: bytes
    prompt: bytes
    tail: bytes
    place: int
    reach: int
    request: int = 0
    stamps: list[int] = field(default_factory=lambda: [0] * len(Way))

    def goes_on(self, keys: bytes) -> bool:
        """Whether these are keys of the same request, asked for again.

        What it generated since may be among them, and of a load that failed only the beginning is
        asked for.
        """
        chunks = len(keys) // KEY_BYTES
        if chunks < self.chunks:
            return keys[:KEY_BYTES] == self.head
        return chunks <= self.reach + 1 and self.ends(keys)

    def ends(self, keys: bytes) -> bool:
        """Whether the prompt, or the part of it that these keys from its beginning are, is this."""
        end = keys[: self.chunks * KEY_BYTES]
        if len(end) < self.chunks * KEY_BYTES:
            return keys[:KEY_BYTES] == self.head
        return end[-KEY_BYTES:] == self.prompt


class Stay:
    """How long blocks of one tier stay unused before they leave, at present."""

    def __init__(self) -> None:
        """None has left."""
        self._usual_s = FOREVER_S
        self._last_s = 0.0

    def note(self, age_s: float, now_s: float, blocks: int = 1) -> None:
        """So many blocks leave now, so long after their last use."""
        keep = 0.0 if self._usual_s >= FOREVER_S else (1 - _STAY_STEP) ** blocks
        self._usual_s = age_s + keep * (self._usual_s - age_s)
        self._last_s = now_s

    def seconds(self, now_s: float) -> float:
        """What a block that comes now may expect; without end if none has left yet.

        While none leaves those that are here stay longer than those that left, however short that
        was, or a tier that takes nothing in for want of time would never find out that it has some.
        """
        return max(self._usual_s, now_s - self._last_s)


class Reuse:
    """Everything that is known of who comes back.

    Attributes:
        uses: the last uses, by stamp.
        ghost: keys that are not here.
        sessions: how requests follow each other.
        known: hazards of all classes met, the largest first; each is learned in its turn.
    """

    def __init__(self, index: Index) -> None:
        """Nothing has been asked for."""
        self.uses = Uses()
        self.ghost = Ghost()
        self.sessions = Sessions()
        self.known = [Hazards()]
        self._index = index
        self._classes: dict[tuple[int, ...], Hazards] = {}
        self._visits: dict[tuple[int, str], Visit] = {}
        self._next = 0

    def pass_time(self, now_ns: int) -> None:
        """Time goes on."""
        self.uses.pass_time(now_ns / 1e9)
        self.sessions.requests.pass_time(now_ns / 1e9)

    # --- requests ---

    def meet(self, who: tuple[int, str], keys: bytes, rows: array[int], about: About) -> int:
        """A request asks for a prompt, of whose chunks the first ones are here, in `rows`.

        Returns the stamp for these rows; 0 for a request that was met before.
        """
        before = self._visits.pop(who, None)
        if before is not None and before.goes_on(keys):
            self._visits[who] = before
            return 0
        chunks, here = len(keys) // KEY_BYTES, len(rows)
        known = here + self.ghost.length(keys, here)
        last = self._stamp(keys, rows, known - 1) if known else 0
        self._count(keys, rows, known)
        visit = Visit(
            turn=self.uses.next_turn(last, known),
            about=about,
            known=known,
            chunks=chunks,
            head=keys[:KEY_BYTES],
            prompt=keys[-KEY_BYTES:],
            tail=keys[(here - 1) * KEY_BYTES : here * KEY_BYTES] if here else ROOT,
            place=here,
            reach=chunks,
        )
        visit.request = self._follow(visit, last)
        self._visits[who] = visit
        if len(self._visits) > VISITS_MAX:
            del self._visits[next(iter(self._visits))]
        self._learn()
        if known:
            visit.stamps[Way.SEEN] = self._begin(visit, Way.SEEN, known, 0)
        if chunks - 1 > known:
            visit.stamps[Way.NEW] = self._begin(visit, Way.NEW, chunks - 1 - known, known)
        if chunks > known:
            visit.stamps[Way.LAST] = self._begin(visit, Way.LAST, 1, chunks - 1)
        return visit.stamps[Way.SEEN]

    def _follow(self, visit: Visit, last: int) -> int:
        """The number of a request whose known blocks end in blocks of use `last`, if any are."""
        tokens, space = visit.about.tokens, min(visit.about.space, SPACES_MAX)
        kind = self.sessions.kind(visit.turn, tokens, space)
        if self.uses.is_gone_on_with(last, visit.known):
            self.sessions.go_on(self.uses.request(last), kind)
        return self.sessions.begin(kind, visit.turn)

    def parts(
        self, who: tuple[int, str], keys: bytes, parent: bytes, about: About
    ) -> Iterator[tuple[int, int]]:
        """Offered chunks below `parent`, in order, as (how many, stamp of their use)."""
        visit = self._visits.get(who)
        if visit is None or (parent == ROOT and not visit.ends(keys)):
            self._visits.pop(who, None)  # it never asked, or is another one
            self.meet(who, keys, array("I"), about)
            visit = self._visits[who]
            visit.tail = parent
        place = self._place(visit, keys, parent)
        end = place + len(keys) // KEY_BYTES
        visit.tail, visit.place = keys[-KEY_BYTES:], end
        ends = (Way.SEEN, visit.known), (Way.NEW, visit.chunks - 1), (Way.LAST, visit.chunks)
        for way, last in ends:
            if place < min(end, last):
                yield min(end, last) - place, visit.stamps[way]
                place = min(end, last)
        if place < end:
            yield end - place, self._generated(visit, place, end)

    def _place(self, visit: Visit, keys: bytes, parent: bytes) -> int:
        """Which chunk of a request an offer below `parent` begins with.

        An engine may begin anywhere: beyond what its device lost, or again from an earlier chunk
        when what it had computed turned out to be wrong.
        """
        if parent == visit.tail:
            return visit.place
        if parent == ROOT:
            return 0
        if parent == visit.prompt:
            return visit.chunks
        found = _find(keys, visit.prompt)
        if found >= 0:
            return max(0, visit.chunks - 1 - found)
        above = self._above(parent, visit.head)
        return above or visit.place

    def _above(self, key: bytes, head: bytes) -> int:
        """How many blocks a chain has from one down to another; 0 where they are not here."""
        index, count = self._index, 1
        row, first = index.find(key), index.find(head)
        while row not in (first, NONE):
            row = index.parent[row]
            count += 1
        return count if row == first != NONE else 0

    def _generated(self, visit: Visit, place: int, end: int) -> int:
        """The stamp of what a request generates, or of what it goes on with."""
        stamp, more = visit.stamps[Way.GENERATED], end - max(place, visit.reach)
        visit.reach = max(end, visit.reach)
        if self.uses.is_known(stamp):
            self.uses.grow(stamp, max(0, more))
            return stamp
        stamp = self._begin(visit, Way.GENERATED, end - place, visit.chunks)
        visit.stamps[Way.GENERATED] = stamp
        return stamp

    def _begin(self, visit: Visit, way: Way, blocks: int, first: int) -> int:
        """A use of this request begins, of so many blocks from place `first` of its prompt on."""
        about = visit.about
        tokens = about.tokens
        if way is Way.NEW:  # much that is new is less likely to be gone on from, in any prompt
            tokens = tokens * blocks // visit.chunks
        length = bisect_left(LENGTHS, tokens)
        coarse = (way, min(visit.turn, TURNS_MAX))
        fine = (length, min(about.space, SPACES_MAX))
        told = (PAUSES.index(about.pause),) if about.pause else ()
        hazards = self._class(*coarse, *fine, *told)
        return self.uses.begin(Use(hazards, way, blocks, first, visit.turn, visit.request))

    def _class(self, *names: int) -> Hazards:
        """The class of these names; the one around it has fewer of them, and at last none."""
        found = self._classes.get(names)
        if found is None:
            fewer = names[: FEWER[len(names)]]
            around = self._class(*fewer) if fewer else self.known[0]
            prior = 1.0 if fewer else PRIORS.get(Way(names[0]), 1.0)
            found = self._classes[names] = Hazards(len(self.known), around, prior)
            self.known.append(found)
        return found

    def _stamp(self, keys: bytes, rows: array[int], place: int) -> int:
        """Stamp of a chunk that is here or was."""
        if place < len(rows):
            return self._index.stamp[rows[place]]
        return self.ghost.stamp(keys, place)

    def _count(self, keys: bytes, rows: array[int], known: int) -> None:
        """The known chunks of a prompt are used again.

        Whoever uses a chunk uses all before it, so on the way down stamps only get older, and those
        of one use lie together.
        """
        place = 0
        while place < known:
            stamp = self._stamp(keys, rows, place)
            low, high = place + 1, known
            if self._stamp(keys, rows, known - 1) == stamp:
                low = known
            while low < high:
                middle = (low + high) // 2
                if self._stamp(keys, rows, middle) == stamp:
                    low = middle + 1
                else:
                    high = middle
            self.uses.hit(stamp, low - place)
            place = low

    def _learn(self) -> None:
        """Bring some classes up to date; all have their turn."""
        for _ in range(_LEARN_EACH):
            self._next = (self._next + 1) % len(self.known)
            self.known[self._next].learn(self.uses.last)

    def halve(self) -> None:
        """All stamps were halved: what is known by them goes, what was learned stays."""
        self.uses.halve()
        self.sessions.requests.halve()
        self.ghost = Ghost()
        self._visits.clear()

    # --- blocks ---

    def gone(self, rows: Sequence[int]) -> None:
        """Blocks of one use leave; their keys are remembered."""
        his, los, stamp = self._index.hi, self._index.lo, self._index.stamp[rows[0]]
        for lost in self.ghost.put([(his[row], los[row]) for row in rows], stamp):
            self.uses.lose_sight(lost)

    def refused(self, keys: bytes, stamp: int) -> None:
        """Offered blocks are not taken in; their keys are remembered."""
        places = range(len(keys) // KEY_BYTES - 1, -1, -1)
        halves = [self.ghost.halves(keys, place) for place in places]
        for lost in self.ghost.put(halves, stamp):
            self.uses.lose_sight(lost)

    # --- answers ---

    def was_here(self, row: int) -> bool:
        """Whether a block left lately, and is here again."""
        return self.ghost.has(self._index.hi[row], self._index.lo[row])

    def hazards(self, stamp: int) -> Hazards:
        """What is known of blocks of a use; of all blocks when the use is not remembered."""
        return self.uses.hazards(stamp) or self.known[0]

    def kind(self, stamp: int) -> Kind:
        """The kind of request that a use was by."""
        return self.sessions.of(self.uses.request(stamp))

    def chance(self, stamp: int, horizon_s: float) -> float:
        """Probability that blocks of a use are used again within so many seconds from now on."""
        return self.hazards(stamp).chance(self.uses.age_s(stamp), horizon_s)


def _find(keys: bytes, key: bytes) -> int:
    """The place of a key among joined keys, or -1."""
    at = keys.find(key)
    while at >= 0 and at % KEY_BYTES:
        at = keys.find(key, at + 1)
    return at // KEY_BYTES if at >= 0 else -1
