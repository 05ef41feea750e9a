"""Codings: what is chosen at which rates, that it does not flap, and what it costs to know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.coding import SAMPLES_MIN, STEADY, TRIAL_EVERY, Codings, Reason, Subject
from kvwise.core.elements import AS_IS, Coding, Elements, Kind
from kvwise.core.keys import chain_keys
from kvwise.core.timing import Equipped, Timed, Work
from kvwise.core.words import Done, Joined, Store, TierSpec
from kvwise.units import MIB
from tests.core import tiny

RUN = 4 * MIB
BF16 = Elements(Kind.BF16, 512, 1, 512)
SUBJECT = Subject(0, BF16)
DISK = 1
SHARES = {Coding.FIXED: 0.75, Coding.DENSE: 0.7}
DECODE = {Coding.FIXED: 8e9, Coding.DENSE: 4e9}
AT_HAND = (Coding.FIXED, Coding.DENSE)


def codings(wish: str = "auto", at_hand: tuple[Coding, ...] = AT_HAND) -> Codings:
    """Codings of an arena and a disk, with nothing measured."""
    disk = TierSpec("disk", 1 << 40, 4096, 4096, 1e9, 1e-4, run_bytes=RUN, lanes=2)
    made = Codings((TierSpec("dram", 1 << 30, 4096, 0, 1e10, 0.0), disk), wish, at_hand)
    made.equipped(at_hand)
    return made


def timed(made: Codings, work: Work, rate: float, coding: Coding = Coding.PLAIN) -> None:
    """Tell of so many bytes a second until nothing else is believed."""
    for _ in range(40):
        made.timed(Timed(0, DISK, work, coding, RUN, int(RUN / rate * 1e9)))


def measured(link: float, *, shares: dict[Coding, float] | None = None) -> Codings:
    """Codings that know everything, over a link of this rate; loads are of one run."""
    made = codings()
    for coding, share in (shares or SHARES).items():
        for _ in range(SAMPLES_MIN):
            made.wrote(SUBJECT.number, coding, share)
        timed(made, Work.DECODE, DECODE[coding], coding)
    timed(made, Work.READ, link)
    return made


def settled(made: Codings, subject: Subject = SUBJECT) -> tuple[Coding, Reason]:
    """What is chosen once it was asked often enough."""
    for _ in range(STEADY + 1):
        made.form(DISK, subject)
    standing = made.standing(DISK, subject.number)
    return standing.coding, standing.why


RULE = [
    (0.2e9, Coding.DENSE, Reason.LINK_SLOW),
    (1.0e9, Coding.FIXED, Reason.LINK_SLOW),
    (3.0e9, Coding.PLAIN, Reason.LINK_FAST),
]


@pytest.mark.parametrize("way", [1, -1])
def test_the_slower_the_link_the_smaller_the_object(way: int) -> None:
    """Dense, fixed and plain each have their rates, whichever of them was in use before."""
    made = measured(RULE[::way][0][0])
    for link, coding, why in RULE[::way]:
        timed(made, Work.READ, link)
        assert settled(made) == (coding, why)


@pytest.mark.parametrize("coding", AT_HAND)
def test_the_break_even_is_the_formula_s(coding: Coding) -> None:
    """With nothing to hide behind it is (1 - r) times the rate of decoding; there both tie."""
    made = measured(1e9)
    even = made.break_even(DISK, SUBJECT.number, coding)
    assert even == pytest.approx((1 - SHARES[coding]) * DECODE[coding], rel=0.02)
    timed(made, Work.READ, even)
    assert made.gain(DISK, SUBJECT.number, coding) == pytest.approx(0.0, abs=0.01)


def test_long_loads_hide_decoding() -> None:
    """With ten runs all but the last is decoded while others come: a codec pays on faster links."""
    made = measured(3e9)
    assert settled(made)[0] is Coding.PLAIN
    for _ in range(200):
        made.links[DISK].loaded(10 * RUN)
    assert settled(made)[0] is not Coding.PLAIN
    even = made.break_even(DISK, SUBJECT.number, Coding.FIXED)
    assert even == pytest.approx(2 * DECODE[Coding.FIXED], rel=0.02)  # then lanes are the bound


@pytest.mark.parametrize(
    ("made", "subject", "expected"),
    [
        (codings("off"), SUBJECT, (Coding.PLAIN, Reason.OFF)),
        (codings(), replace(SUBJECT, elements=None), (Coding.PLAIN, Reason.NO_ELEMENTS)),
        (codings(at_hand=()), SUBJECT, (Coding.PLAIN, Reason.NO_NUMBA)),
        (codings(), SUBJECT, (Coding.PLAIN, Reason.UNMEASURED)),
        (codings("dense"), SUBJECT, (Coding.DENSE, Reason.FORCED)),
        (
            codings(at_hand=(*AT_HAND, Coding.FP8)),
            replace(SUBJECT, lossy=Coding.FP8),
            (Coding.FP8, Reason.OPT_IN),
        ),
        (codings(at_hand=(*AT_HAND, Coding.FP8)), SUBJECT, (Coding.PLAIN, Reason.UNMEASURED)),
        (
            measured(0.1e9, shares={Coding.FIXED: 0.99, Coding.DENSE: 1.0}),
            SUBJECT,
            (Coding.PLAIN, Reason.NO_GAIN),
        ),
    ],
)
def test_every_choice_has_a_reason(
    made: Codings, subject: Subject, expected: tuple[Coding, Reason]
) -> None:
    """What is forced, missing, unknown or useless is told apart; lossy is only what was asked."""
    assert settled(made, subject) == expected


@given(st.lists(st.floats(0.97, 1.03), min_size=50, max_size=200))
def test_noise_around_the_break_even_changes_nothing(noise: list[float]) -> None:
    """A link that wavers by 3 % around the break-even leads to one change at most."""
    made = measured(3e9)
    settled(made)
    even = made.break_even(DISK, SUBJECT.number, Coding.FIXED)
    for factor in noise:
        made.timed(Timed(0, DISK, Work.READ, Coding.PLAIN, RUN, int(RUN / (even * factor) * 1e9)))
        made.form(DISK, SUBJECT)
    assert sum(made.switches.values()) <= 1


def test_knowing_costs_one_object_in_many() -> None:
    """When all is known, one object in sixty-four is tried in a coding, each coding in its turn."""
    made = measured(3e9)
    forms = [made.form(DISK, SUBJECT) for _ in range(10 * TRIAL_EVERY)]
    tried = [form.coding for form in forms if form.trial]
    assert tried == [Coding.FIXED, Coding.DENSE] * 5
    assert {form for form in forms if not form.trial} == {AS_IS}


@pytest.mark.parametrize("wish", ["auto", "fixed"])
def test_nothing_is_encoded_before_codecs_are_there(wish: str) -> None:
    """Until they are compiled objects stay as they are; then what was wished for is done."""
    disk = TierSpec("disk", 1 << 40, 4096, 4096, 1e9, 1e-4)
    made = Codings((TierSpec("dram", 1 << 30, 4096, 0, 1e10, 0.0), disk), wish, AT_HAND)
    assert {made.form(DISK, SUBJECT) for _ in range(100)} == {AS_IS}
    assert made.standing(DISK, SUBJECT.number).why is Reason.NOT_READY
    made.equipped(AT_HAND)
    assert made.form(DISK, SUBJECT).coding is Coding.FIXED


def joined(**more: object) -> Brain:
    """A tiny brain whose namespace says what its objects hold, and may use codecs."""
    made = Brain(tiny.config(codec="fixed", codings=AT_HAND, **more))  # type: ignore[arg-type]
    made.handle(Joined(0, 1, replace(tiny.SPACE, elements=BF16)))
    made.handle(Equipped(0, AT_HAND))
    return made


def written(made: Brain, keys: bytes, stored_bytes: int) -> list[Store]:
    """Store a chain and let all writes take so many bytes; the commands."""
    jobs = [c for c in tiny.store(made, keys) if isinstance(c, Store)]
    done: list[Store] = []
    while jobs:
        job = jobs.pop(0)
        done.append(job)
        for item in range(len(job.items)):
            more = made.handle(Done(2, job.job, item, 1000 * job.job + item, stored_bytes))
            jobs += [c for c in more if isinstance(c, Store)]
    made.check()
    return done


def test_a_store_says_how_it_is_written() -> None:
    """Commands carry the coding and what the objects hold."""
    made = joined()
    assert {job.form.coding for job in written(made, tiny.KEYS, 8192)} == {Coding.FIXED}
    assert {job.form.elements for job in written(made, tiny.KEYS, 8192)} <= {BF16}
    told = made.snapshot()["coding"]["choices"]["disk"]["tiny"]
    assert (told["coding"], told["why"]) == ("fixed", "forced")
    assert told["shares"]["fixed"] == pytest.approx(8192 / 12288)


def test_more_objects_fit_when_they_are_smaller() -> None:
    """A disk for eight whole objects holds more of those that take two thirds."""
    made = joined(disk_objects=8)
    for seed in range(5):
        keys = chain_keys(tiny.SPACE.digest, [seed] * (4 * tiny.CHUNK), tiny.CHUNK)
        written(made, keys, 8192)
    assert made.snapshot()["levels"]["tiers"]["disk"]["objects"] > 8


def test_the_budget_is_charged_what_was_written() -> None:
    """What was set aside for whole objects and not needed may be spent again."""
    made = joined(write_bytes_per_day=240 * 12288)
    before = made.snapshot()["endurance"]["disk"]["budget_left_bytes"]
    jobs = written(made, tiny.KEYS, 8192)
    after = made.snapshot()["endurance"]["disk"]["budget_left_bytes"]
    assert before - after == pytest.approx(8192 * sum(len(job.items) for job in jobs), abs=1)
