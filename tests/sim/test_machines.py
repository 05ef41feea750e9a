"""Machines: their laws, and the account that an arena and a medium keep. They hold no policy."""

from __future__ import annotations

from kvwise.sim.dice import Dice
from kvwise.sim.machines import FREED_MAX, Arena, DriveLaw, GpuLaw, Link, Medium, Record
from kvwise.sim.timeline import Timeline


def record(number: int) -> Record:
    """One record of 100 bytes."""
    return Record(bytes([number]) * 16, bytes(16), bytes(16), 90, 100)


def test_things_happen_in_order_of_time_then_of_making() -> None:
    """The heap is stable, and what is asked for in the past happens now."""
    timeline, said = Timeline(), ""
    heard: list[str] = []
    for at_ns, what in ((20, "c"), (10, "a"), (10, "b"), (-5, "x")):
        timeline.at(at_ns, lambda what=what: heard.append(what))  # type: ignore[misc]
    while timeline.step():
        said += f"{timeline.now_ns} "

    assert heard == ["x", "a", "b", "c"]
    assert said == "0 10 10 20 "


def test_a_step_costs_what_the_law_says() -> None:
    """Fixed part, tokens, pairs, and the crowd around them."""
    law = GpuLaw(step_s=1.0, token_s=0.1, pair_s=0.001, crowd=0.5)

    assert law.seconds([(10, 100)]) == 1.0 + 1.0 + 0.001 * 10 * 105
    assert law.seconds([(10, 0), (0, 50)]) == (1.0 + 1.0 + 0.001 * 50) * 1.5


def test_copies_on_a_link_go_one_after_another() -> None:
    """The second copy begins when the first has ended, each with its latency."""
    link = Link(Timeline(), rate_bytes_per_s=1e9, latency_ns=7)

    assert [link.finish_ns(100), link.finish_ns(50)] == [107, 164]


def test_a_drive_shares_its_rate_and_suffers_from_mixing() -> None:
    """Operations under way share the rate; reads and writes at once cost some of it."""
    law = DriveLaw(10, read_bytes_per_s=1e9, write_bytes_per_s=5e8, mixed=0.5, depth=4)

    assert law.took_ns(1000, write=False, reads=1, writes=0) == 1010
    assert law.took_ns(1000, write=False, reads=2, writes=0) == 2010
    assert law.took_ns(1000, write=True, reads=0, writes=1) == 2010
    assert law.took_ns(1000, write=False, reads=1, writes=1) == 4010


def test_a_page_holds_nothing_while_it_is_written() -> None:
    """Between begin and complete an object cannot be read, and every write is noticed."""
    arena, key = Arena(4), b"k" * 16
    arena.complete((2, 0), key)
    before = arena.changes((2, 0))

    assert arena.holds((2, 0), key)
    assert not arena.holds((0, 2), key)
    arena.begin((0,))
    assert not arena.holds((2, 0), key)
    assert arena.changes((2, 0)) > before
    assert arena.changes((1, 3)) == 0


def test_a_medium_accounts_for_every_record() -> None:
    """Used bytes are those of the records that are there; what is gone can be freed again."""
    medium = Medium(1000)
    first, second = medium.add(record(1)), medium.add(record(2))
    medium.free(first)
    medium.free(first)

    assert medium.used_bytes == 100
    assert medium.lose(second) == record(2)
    assert (medium.used_bytes, medium.records) == (0, {})


def test_power_brings_back_some_of_what_was_freed_last() -> None:
    """What was lost for other reasons stays lost, and so does what was freed long ago."""
    medium, dice = Medium(10_000), Dice(5)
    places = [medium.add(record(n)) for n in range(2 * FREED_MAX)]
    medium.lose(places.pop())
    for place in places:
        medium.free(place)
    medium.power_off(dice)

    assert 0 < len(medium.records) < FREED_MAX
    assert medium.used_bytes == 100 * len(medium.records)
    assert set(medium.records) <= set(places[-FREED_MAX:])
