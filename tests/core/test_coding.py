"""Codings: what is chosen at which rates, that it does not flap, and what it costs to know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.coding import (
    SAMPLES_MIN,
    STEADY,
    TRIAL_EVERY,
    Codings,
    Reason,
    Subject,
    Took,
)
from kvwise.core.elements import AS_IS, Coding, Elements, Kind
from kvwise.core.keys import chain_keys
from kvwise.core.timing import Equipped, Timed, Work
from kvwise.core.words import Done, Joined, Load, Released, Store, TierSpec, Wanted
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


def test_namespaces_of_one_label_are_told_apart() -> None:
    """Each has a line of its own, with the beginning of its digest; others stay as they are."""
    made = joined()
    made.handle(Joined(0, 1, replace(tiny.SPACE, digest=b"\xab" * 16, elements=BF16)))
    made.handle(Joined(0, 1, replace(tiny.SPACE, digest=b"\xcd" * 16, label="alone")))
    written(made, tiny.KEYS, 8192)
    told = made.snapshot()
    assert [*told["coding"]["choices"]["disk"]] == [f"tiny {b's'.hex() * 4}"]
    names = {f"tiny {b's'.hex() * 4}", "tiny abababab", "alone"}
    assert set(told["costs"]["namespaces"]) == names


def test_a_load_is_priced_by_what_is_read() -> None:
    """Objects that take two thirds of the disk are expected to come sooner than whole ones."""
    estimates = []
    for stored_bytes in (12288, 8192):
        made = joined(policy="load")
        written(made, tiny.KEYS, stored_bytes)
        tiny.evict_dram(made)
        estimates.append(tiny.ask(made).decision.load_s)
    whole_s, coded_s = estimates
    assert coded_s < whole_s


def test_a_read_teaches_the_rate_of_what_was_read() -> None:
    """What a tier took so long for is bytes of the medium, whatever payload they hold."""
    rates = []
    for stored_bytes in (12288, 8192):
        made = joined(policy="load", disk_objects=2000)
        written(made, tiny.KEYS, stored_bytes)
        for number in range(20):
            tiny.evict_dram(made, seed=10 * number + 5)
            now_ns = (number + 1) * 10**9
            plan = tiny.ask(made, name=str(number), now_ns=now_ns)
            job = tiny.pick(made.handle(Wanted(now_ns, 1, plan.lease, plan.chunks)), Load)
            later_ns = now_ns + len(job.items) * stored_bytes * 10  # 100 MB/s
            for item in range(len(job.items)):
                made.handle(Done(later_ns, job.job, item, elapsed_ns=1))
            made.handle(Released(later_ns, 1, plan.lease))
        pipe = made._world.costs.tiers[DISK]
        assert pipe is not None
        rates.append(8 * stored_bytes / pipe.seconds(8 * stored_bytes))
    assert rates == [pytest.approx(1e8, rel=0.1)] * 2


def loaded(made: Codings, coding: Coding, seconds: float, *, times: int = 31) -> None:
    """Loads of one run whose objects are all of one coding."""
    share = SHARES.get(coding, 1.01)
    for _ in range(times):
        made.took(DISK, SUBJECT.number, Took(RUN, int(share * RUN), seconds))


def test_what_loads_take_beyond_the_rates_is_reckoned_with() -> None:
    """A codec that looks better by its rates and is not, by its loads, is left; and stays so."""
    made = measured(0.8e9)
    loaded(made, Coding.PLAIN, RUN / 0.8e9 + 1e-3)
    assert settled(made)[0] is Coding.FIXED
    even = made.break_even(DISK, SUBJECT.number, Coding.FIXED)
    loaded(made, Coding.FIXED, 0.75 * RUN / 0.8e9 + RUN / 8e9 + 3e-3)
    assert settled(made)[0] is not Coding.FIXED
    assert made.break_even(DISK, SUBJECT.number, Coding.FIXED) < 0.8e9 < even
    assert made.told([(0, "tiny")])["excess_s"]["disk"]["fixed"] == pytest.approx(3e-3, abs=1e-4)


def test_one_slow_load_is_not_the_rule() -> None:
    """A host that stalls in ten of many loads changes nothing."""
    made = measured(0.2e9)
    loaded(made, Coding.PLAIN, RUN / 0.2e9)
    settled(made)
    loaded(made, Coding.DENSE, 0.7 * RUN / 0.2e9 + RUN / 4e9, times=21)
    loaded(made, Coding.DENSE, 1.0, times=10)
    assert settled(made)[0] is Coding.DENSE


def test_what_is_not_used_is_tried_again_some_day() -> None:
    """What loads once took is forgotten while nothing is loaded that way, object by object."""
    made = measured(0.2e9)
    loaded(made, Coding.PLAIN, RUN / 0.2e9)
    settled(made)
    loaded(made, Coding.DENSE, 1.0)
    loaded(made, Coding.PLAIN, RUN / 0.2e9)
    made.links[DISK].excess[Coding.FIXED] = made.links[DISK].excess[Coding.DENSE]
    assert settled(made)[0] is Coding.PLAIN
    for _ in range(40 * TRIAL_EVERY):
        made.form(DISK, SUBJECT)
        loaded(made, Coding.PLAIN, RUN / 0.2e9, times=1)
    assert settled(made)[0] is Coding.DENSE


def test_a_load_of_several_codings_says_nothing_of_one() -> None:
    """Objects of before and after a change in one load are nobody's excess."""
    made = measured(0.2e9)
    settled(made)
    for share in (0.72, 0.85, 0.99):
        for _ in range(31):
            made.took(DISK, SUBJECT.number, Took(RUN, int((share + 0.005) * RUN), 1.0))
    assert made.told([(0, "tiny")])["excess_s"]["disk"] == {}
