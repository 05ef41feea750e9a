"""Reuse: which requests are told apart, and what comes back is learned from, here or not."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core import reuse as module
from kvwise.core import uses
from kvwise.core.ghost import Ghost
from kvwise.core.hazards import Hazards, bucket_of
from kvwise.core.index import NONE, Index
from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.reuse import FOREVER_S, LENGTHS, SPACES_MAX, TURNS_MAX, About, Reuse
from kvwise.core.uses import Way
from kvwise.core.world import BrainConfig
from kvwise.units import NS_PER_S

CLIENT = 1
SEED = b"s" * 16


def prompt(*parts: int, chunks: int = 4) -> bytes:
    """Keys of a prompt that is made of parts, each of so many chunks."""
    return chain_keys(SEED, [part * 1000 + at for part in parts for at in range(chunks)], 1)


class Cache:
    """Rows in an index and what is learned of them, without a tier that would be full.

    Attributes:
        stamp: what `meet` said for the blocks that were here, at the last question.
    """

    def __init__(self) -> None:
        """Empty."""
        self.index = Index()
        self.reuse = Reuse(self.index)
        self.now_s = 0.0
        self.stamp = 0

    def wait(self, seconds: float) -> None:
        """Time goes on."""
        self.now_s += seconds
        self.reuse.pass_time(int(self.now_s * NS_PER_S))

    def ask(self, name: str, keys: bytes, tokens: int = 1, space: int = 0, pause: str = "") -> int:
        """Ask for a prompt as the brain does; the number of chunks that are here."""
        length = self.index.length(keys, len(keys) // KEY_BYTES)
        rows = self.index.chain(keys[: length * KEY_BYTES]) if length else array("I")
        self.stamp = self.reuse.meet((CLIENT, name), keys, rows, About(space, tokens, pause))
        if self.stamp:
            for row in rows:
                self.index.stamp[row] = self.stamp
        return length

    def offer(
        self,
        name: str,
        keys: bytes,
        first: int = 0,
        *,
        tokens: int = 1,
        space: int = 0,
        take: int = -1,
    ) -> list[tuple[int, int]]:
        """Offer chunks from a place on, of which `take` are taken in; the parts they have."""
        parent = keys[(first - 1) * KEY_BYTES : first * KEY_BYTES] if first else ROOT
        rest, place = keys[first * KEY_BYTES :], 0
        parts = list(self.reuse.parts((CLIENT, name), rest, parent, About(space, tokens)))
        for count, stamp in parts:
            for at in range(place, place + count):
                key = rest[at * KEY_BYTES : (at + 1) * KEY_BYTES]
                if take < 0 or at < take:
                    above = NONE if parent == ROOT else self.index.find(parent)
                    if self.index.find(key) == NONE:
                        (row,) = self.index.add_chain(key, above, space)
                        self.index.stamp[row] = stamp
                else:
                    self.reuse.refused(key, stamp)
                parent = key
            place += count
        return parts

    def request(
        self, name: str, keys: bytes, *, tokens: int = 1, space: int = 0, take: int = -1
    ) -> list[tuple[int, int]]:
        """Ask, and offer what is not here."""
        here = self.ask(name, keys, tokens, space)
        if here * KEY_BYTES == len(keys):
            return []
        return self.offer(name, keys, here, tokens=tokens, space=space, take=take)

    def evict(self, keys: bytes) -> None:
        """All blocks of a prompt leave, the last one first."""
        for place in range(len(keys) // KEY_BYTES - 1, -1, -1):
            row = self.index.find(keys[place * KEY_BYTES : (place + 1) * KEY_BYTES])
            if row != NONE:
                self.reuse.gone((row,))
                self.index.remove(row)

    def kind(self, stamp: int) -> Hazards:
        """The class of a use."""
        return self.reuse.hazards(stamp)


@pytest.fixture
def cache() -> Cache:
    """An empty one."""
    return Cache()


# --- who is told apart ---------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "evicted"])
def test_turns_of_a_session_are_recognised(cache: Cache, *, kept: bool) -> None:
    """What is new with a second turn is another class than with a first, whoever's turns."""
    kinds = []
    for session in (1, 2):
        first = prompt(session)
        one, _ = cache.request(f"{session}a", first)
        if not kept:
            cache.evict(first)
        parts = cache.request(f"{session}b", prompt(session, 10 + session))
        kinds.append((cache.kind(one[1]), cache.kind(parts[-2][1])))
        assert sum(count for count, _ in parts) == (4 if kept else 8)
    assert kinds[0] == kinds[1]
    assert kinds[0][0] is not kinds[0][1]


def test_a_common_beginning_is_no_session(cache: Cache) -> None:
    """Prompts that share less than half of what was new with one of them are first turns."""
    ((_, first), _) = cache.request("a", prompt(1, 2, 3))
    *_, (_, other), _ = cache.request("b", prompt(1, 5, 6))
    assert cache.kind(first) is cache.kind(other)


def test_later_turns_are_one_class(cache: Cache) -> None:
    """Turns are told apart up to the sixth."""
    kinds = []
    for turn in range(1, TURNS_MAX + 4):
        ((_, stamp), _) = cache.request(str(turn), prompt(*range(turn)))
        kinds.append(cache.kind(stamp).number)
    assert len(set(kinds[:TURNS_MAX])) == TURNS_MAX
    assert len(set(kinds[TURNS_MAX - 1 :])) == 1


def test_lengths_and_namespaces_are_told_apart(cache: Cache) -> None:
    """Each length and each of the first namespaces is a class; later namespaces share one."""
    numbers = {}
    for space in range(SPACES_MAX + 3):
        for tokens in (1, *(limit + 1 for limit in LENGTHS)):
            keys = chain_keys(SEED, [space, tokens], 1)
            *_, (_, stamp) = cache.request(f"{space} {tokens}", keys, tokens=tokens, space=space)
            numbers[space, tokens] = cache.kind(stamp).number
    apart = {pair: number for pair, number in numbers.items() if pair[0] < SPACES_MAX}
    later = {number for pair, number in numbers.items() if pair[0] >= SPACES_MAX}
    assert len(set(apart.values())) == len(apart)
    assert len(later) == 1 + len(LENGTHS)
    assert later.isdisjoint(apart.values())


def test_what_is_new_is_told_apart_by_its_own_length(cache: Cache) -> None:
    """Of equally long second turns, one adds a little and one nearly all there is."""
    kinds = []
    for session, begin in ((100, 9), (200, 1)):
        cache.request(f"{session}a", prompt(*range(session, session + begin)), tokens=1)
        whole = prompt(*range(session, session + 10))
        (count, stamp), _ = cache.request(f"{session}b", whole, tokens=2 * LENGTHS[-1])
        assert count == 4 * (10 - begin) - 1
        kinds.append(cache.kind(stamp).number)
    assert kinds[0] != kinds[1]


def test_pauses_are_told_apart_where_they_are_told(cache: Cache) -> None:
    """Who waits for a tool comes back sooner than who waits for a user; the untold know neither."""
    first, stamps = {"tool": 3, "user": 300, "": 40}, dict[str, int]()
    for number in range(200):
        for place, (pause, after_s) in enumerate(first.items()):
            name, keys = f"{number}{pause}", prompt(3 * number + place)
            cache.ask(name, keys, pause=pause)
            ((_, stamps[pause]), _) = cache.offer(name, keys)
            cache.wait(after_s)
            cache.ask(name + "again", keys, pause=pause)
            cache.wait(1)
    kinds = {pause: cache.kind(stamp) for pause, stamp in stamps.items()}
    assert kinds["tool"].chance(0, 5) > 0.9
    assert kinds["user"].chance(0, 5) < 0.1
    assert kinds["user"].chance(0, 500) > 0.9
    assert kinds["user"].chance(200, 200) > 0.9
    assert kinds["tool"].chance(0, 5) > kinds[""].chance(0, 5) > kinds["user"].chance(0, 5)


# --- what is counted -----------------------------------------------------------------------------


def test_a_question_that_is_repeated_counts_once(cache: Cache) -> None:
    """An engine that asks again, since it had no room, is the same request."""
    cache.request("a", prompt(1))
    last = cache.reuse.uses.last
    assert cache.ask("b", prompt(1)) == 4
    assert cache.stamp == last + 1
    for _ in range(5):
        cache.wait(1)
        cache.ask("b", prompt(1))
        assert cache.stamp == 0
    assert cache.reuse.uses.last == last + 1


def test_a_name_with_another_prompt_is_another_request(cache: Cache) -> None:
    """Names may be used again; what was known of the earlier request is not mixed up with it."""
    cache.request("a", prompt(1))
    cache.request("a", prompt(2))
    assert cache.ask("a", prompt(1)) == 4
    assert cache.stamp == cache.reuse.uses.last > 0


def test_offers_are_split_into_seen_new_and_generated(cache: Cache) -> None:
    """Of one offer: what was here before, what is new, the last chunk of it, and the answer."""
    first = prompt(1)
    cache.request("a", first)
    cache.evict(first)
    whole = prompt(1, 2, 3)
    assert cache.ask("b", prompt(1, 2)) == 0
    parts = cache.offer("b", whole)
    assert [count for count, _ in parts] == [4, 3, 1, 4]
    assert len({cache.kind(stamp).number for _, stamp in parts}) == 4
    assert len({stamp for _, stamp in parts}) == 4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_offers_in_pieces_have_the_same_parts(pieces: list[int]) -> None:
    """However an engine cuts its offers, each chunk has the stamp it has in one offer of all."""
    whole, cache = prompt(1, 2, 3), Cache()
    cache.request("a", prompt(1))
    cache.evict(prompt(1))
    cache.ask("b", prompt(1, 2))
    stamps, place = list[int](), 0
    for piece in (*pieces, 12):
        end = min(12, place + piece)
        if place < end:
            for count, stamp in cache.offer("b", whole[: end * KEY_BYTES], place):
                stamps += [stamp] * count
        place = end
    assert len(stamps) == 12
    assert [stamps.index(stamp) for stamp in dict.fromkeys(stamps)] == [0, 4, 7, 8]
    assert stamps == sorted(stamps)


def test_generated_chunks_share_a_stamp(cache: Cache) -> None:
    """An answer that is offered chunk by chunk is one use; the next turn has all of it."""
    whole = prompt(1, 2)
    cache.request("a", prompt(1))
    stamps = {
        stamp
        for end in range(5, 9)
        for _, stamp in cache.offer("a", whole[: end * KEY_BYTES], end - 1)
    }
    assert len(stamps) == 1
    ((count, next_one), _) = cache.request("b", prompt(1, 2, 3))
    ((_, second), _) = (cache.request("c", prompt(7)), cache.request("d", prompt(7, 8)))[1]
    assert count == 3
    assert cache.kind(next_one) is cache.kind(second)


def test_an_offer_without_a_question_is_a_request(cache: Cache) -> None:
    """Who offers without asking has a new prompt of that length, once."""
    ((count, stamp), (last, _)) = cache.offer("a", prompt(1))
    ((_, asked), _) = cache.request("b", prompt(2))
    assert count + last == 4
    assert cache.kind(stamp) is cache.kind(asked)
    assert stamp != asked


def test_an_offer_below_a_prompt_nobody_asked_for(cache: Cache) -> None:
    """An engine that goes on with a request that is forgotten is heard like a new one."""
    cache.request("a", prompt(1))
    ((count, stamp), (last, _)) = cache.offer("unknown", prompt(1, 2), 4)
    assert count + last == 4
    assert cache.reuse.uses.is_known(stamp)


# --- offers that begin elsewhere -----------------------------------------------------------------


def ways(cache: Cache, parts: list[tuple[int, int]], asked: str) -> list[tuple[int, Way]]:
    """Parts, with the way of each in place of its stamp, for a request that was just met."""
    stamps = cache.reuse._visits[CLIENT, asked].stamps
    return [(count, Way(stamps.index(stamp))) for count, stamp in parts]


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (2, 12, [(2, Way.SEEN), (3, Way.NEW), (1, Way.LAST), (4, Way.GENERATED)]),
        (4, 12, [(3, Way.NEW), (1, Way.LAST), (4, Way.GENERATED)]),
        (6, 12, [(1, Way.NEW), (1, Way.LAST), (4, Way.GENERATED)]),
        (6, 8, [(1, Way.NEW), (1, Way.LAST)]),
        (8, 12, [(4, Way.GENERATED)]),
    ],
)
def test_an_offer_may_begin_anywhere(
    cache: Cache, first: int, end: int, expected: list[tuple[int, Way]]
) -> None:
    """A first offer beyond what was seen, or beyond the prompt, is told by where it begins."""
    cache.request("a", prompt(1))
    cache.evict(prompt(1))
    cache.ask("b", prompt(1, 2))
    parts = cache.offer("b", prompt(1, 2, 3)[: end * KEY_BYTES], first)
    assert ways(cache, parts, "b") == expected


def test_an_offer_in_the_middle_is_told_by_what_is_here(cache: Cache) -> None:
    """Neither end of the prompt is in it, but what is before it was taken in by another request."""
    cache.request("a", prompt(1))
    cache.evict(prompt(1))
    cache.ask("b", prompt(1, 2, 3))
    cache.request("c", prompt(1, 2))
    parts = cache.offer("b", prompt(1, 2, 3)[: 10 * KEY_BYTES], 5)
    assert ways(cache, parts, "b") == [(5, Way.NEW)]


@pytest.mark.parametrize("again", [0, 2, 6, 9])
def test_what_is_offered_again_is_the_same_use(cache: Cache, again: int) -> None:
    """After a load that turned out bad an engine offers anew, from the root or from the middle."""
    cache.request("a", prompt(1))
    cache.evict(prompt(1))
    cache.ask("b", prompt(1, 2))
    stamps = [s for count, s in cache.offer("b", prompt(1, 2, 3)) for _ in range(count)]
    last = cache.reuse.uses.last
    parts = cache.offer("b", prompt(1, 2, 3), again)
    assert [s for count, s in parts for _ in range(count)] == stamps[again:]
    assert cache.reuse.uses.last == last
    cache.wait(5)
    cache.ask("c", prompt(1, 2, 3))
    assert cache.kind(stamps[-1])._hits[bucket_of(5)] == pytest.approx(1)


@pytest.mark.parametrize("generated", [0, 1, 4])
def test_a_preempted_request_is_the_same_one(cache: Cache, generated: int) -> None:
    """It asks again, by now with what it has generated, one chunk of which nobody offered yet."""
    cache.request("a", prompt(1))
    if generated:
        cache.offer("a", prompt(1, 2)[: (4 + generated) * KEY_BYTES], 4)
    last = cache.reuse.uses.last
    cache.ask("a", prompt(1, 2)[: (5 + generated) * KEY_BYTES])
    assert cache.stamp == 0
    cache.ask("a", prompt(1)[: 2 * KEY_BYTES])  # of a load that failed the beginning only
    assert cache.stamp == 0
    assert cache.reuse.uses.last == last


def test_the_next_turn_under_the_same_name_is_another_request(cache: Cache) -> None:
    """Somebody who names requests by their session asks for more than was generated."""
    cache.request("a", prompt(1))
    cache.offer("a", prompt(1, 2), 4)
    assert cache.ask("a", prompt(1, 2, 3)) == 8
    assert cache.stamp == cache.reuse.uses.last - 2
    assert cache.reuse.uses.next_turn(cache.reuse.uses.last, 12) == 3


# --- what is learned -----------------------------------------------------------------------------


def learned(*, back: bool, how: str) -> float:
    """The chance that a class has, after many of its prompts came back, or none did."""
    cache = Cache()
    for number in range(300):
        keys = prompt(number)
        cache.request(f"{number}a", keys, take=0 if how == "refused" else -1)
        if how == "evicted":
            cache.evict(keys)
        cache.wait(5)
        if back:
            cache.request(f"{number}b", keys)
            cache.evict(keys)
    ((_, stamp), _) = cache.request("last", prompt(1_000_000))
    return cache.reuse.chance(stamp, 60)


@pytest.mark.parametrize("how", ["kept", "evicted", "refused"])
def test_what_comes_back_is_learned_from_wherever_it_is(how: str) -> None:
    """Blocks that come back teach their class, be they here, evicted or never taken in."""
    assert learned(back=True, how=how) > 0.9
    assert learned(back=False, how=how) < 0.05


def test_without_ghosts_nothing_would_be_learned_of_what_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control: with nobody told of what leaves, evicted blocks that come back teach nothing."""
    monkeypatch.setattr(Reuse, "gone", lambda *_: None)
    assert learned(back=True, how="evicted") < 0.05


def test_a_part_of_a_use_that_comes_back_is_that_part(cache: Cache) -> None:
    """Blocks count by their share of the use they are of."""
    for number in range(400):
        cache.request(f"{number}a", prompt(2 * number, 2 * number + 1))
        cache.wait(5)
        cache.ask(f"{number}b", prompt(2 * number, 500_000 + number))
    ((_, stamp), _) = cache.request("last", prompt(1_000_000))
    assert cache.reuse.chance(stamp, 60) == pytest.approx(4 / 7, abs=0.1)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "evicted"])
def test_a_last_chunk_that_no_next_turn_has_is_told_apart(cache: Cache, *, kept: bool) -> None:
    """Prompts end in the middle of a chunk, so the next turn has another in the place of it."""
    for session in range(100):
        for turn in range(1, 5):
            end = chain_keys(SEED, [1_000_000 + 4 * session + turn], 1)[-KEY_BYTES:]
            asked = prompt(*(4 * session + part for part in range(turn)), chunks=2) + end
            parts = cache.request(f"{session} {turn}", asked)
            if not kept:
                cache.evict(asked)
            cache.wait(5)
    chances = [cache.reuse.chance(stamp, 60) for _, stamp in cache.request("x", prompt(10_000))]
    assert [count for count, _ in parts[-2:]] == [2, 1]
    assert chances[0] > 0.9
    assert chances[1] < 0.05


def test_at_first_a_last_chunk_is_taken_to_come_back_less(cache: Cache) -> None:
    """Before anything is known it is expected to go before what is new, but is not given up."""
    (_, new), (_, last) = cache.request("a", prompt(1, 2))
    chances = [cache.reuse.chance(stamp, FOREVER_S) for stamp in (new, last)]
    assert chances[0] > 3 * chances[1] > 15 * BrainConfig(1, ()).chance_min


def test_a_few_uses_outweigh_what_was_taken_at_first(cache: Cache) -> None:
    """Where last chunks do come back, five of them are enough to expect it."""
    for number in range(5):
        cache.request(f"{number}a", prompt(number))
        cache.wait(5)
        cache.request(f"{number}b", prompt(number))
    (*_, (_, stamp)) = cache.request("last", prompt(1_000_000))
    assert cache.reuse.chance(stamp, 60) > 0.3


def test_what_was_here_is_told_from_what_is_new(cache: Cache) -> None:
    """A block that left and is here again is one that was here."""
    for _ in range(2):
        cache.request(f"a{cache.now_s}", prompt(1))
        (row, *_) = cache.index.chain(prompt(1))
        assert cache.reuse.was_here(row) == (cache.now_s > 0)
        cache.evict(prompt(1))
        cache.wait(1)


# --- bounds --------------------------------------------------------------------------------------


def test_every_table_has_a_bound(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of requests of all kinds: requests, uses, ghosts and classes stay within bounds."""
    monkeypatch.setattr(module, "VISITS_MAX", 16)
    monkeypatch.setattr(uses, "USES_MAX", 64)
    cache.reuse.ghost = Ghost(128)
    for number in range(1500):
        keys = prompt(number % 50, number % 7, chunks=2)
        tokens, space = LENGTHS[number % 3] + number % 2, number % 40
        cache.request(str(number), keys, tokens=tokens, space=space, take=number % 3)
        cache.evict(keys)
        cache.wait(1)
    known = [s for s in range(cache.reuse.uses.last + 1) if cache.reuse.uses.is_known(s)]
    groups = len(Way) * TURNS_MAX
    assert len(known) == 64
    assert len(cache.reuse.ghost) <= 128
    assert len(cache.reuse.known) <= 1 + groups * (1 + (1 + len(LENGTHS)) * (SPACES_MAX + 1))
    cache.ask("1499", prompt(1499 % 50, 1499 % 7, chunks=2))
    assert cache.stamp == 0  # the last requests are still known
    again = cache.reuse.uses.last
    cache.ask("1", prompt(1, 1, chunks=2))
    assert cache.reuse.uses.last > again  # and the first ones are not


def test_setting_the_clock_back_keeps_what_was_learned(cache: Cache) -> None:
    """Classes know what they knew; requests, ghosts and uses are as after a start."""
    for number in range(200):
        cache.request(f"{number}a", prompt(number))
        cache.wait(5)
        cache.ask(f"{number}b", prompt(number))
    ((_, before), _) = cache.request("x", prompt(900_000))
    chance = cache.reuse.chance(before, 60)
    cache.reuse.halve()
    assert not cache.reuse.uses.is_known(before)
    assert len(cache.reuse.ghost) == 0
    ((_, after), _) = cache.request("y", prompt(900_001))
    assert chance > 0.9
    assert cache.reuse.chance(after, 60) == pytest.approx(chance, rel=0.05)
