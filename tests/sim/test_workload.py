"""Workload and faults: what is drawn, and that it is what was asked for. Nothing is served."""

from __future__ import annotations

from collections import Counter

import pytest

from kvwise.sim.dice import Dice
from kvwise.sim.faults import UPSETS, Fault, Injector, Plan, draw_plan
from kvwise.sim.workload import CHUNK_TOKENS, TURNS_MAX, Request, Traffic, draw_requests


def drawn(traffic: Traffic, seed: int = 1) -> tuple[Request, ...]:
    """The requests of a seed."""
    return draw_requests(traffic, Dice(seed))


@pytest.mark.parametrize("seed", range(10))
def test_requests_are_whole(seed: int) -> None:
    """Arrivals are in order, prompts are not empty, and content covers every whole chunk."""
    requests = drawn(Traffic(80), seed)

    assert [r.at_ns for r in requests] == sorted(r.at_ns for r in requests)
    for request in requests:
        tokens = request.prompt_tokens + request.output_tokens
        assert request.prompt_tokens > 0
        assert len(request.content) == tokens // CHUNK_TOKENS


def test_turns_repeat_what_was_said() -> None:
    """In a workload of conversations alone, nearly every prompt begins as an earlier one did."""
    requests = drawn(Traffic(60, conversations=2, turn_share=1.0, document_share=0.0))
    seen: set[tuple[int, ...]] = set()
    again = 0
    for request in requests:
        again += request.content[:3] in seen
        seen.update(request.content[:n] for n in range(1, 4))

    assert again > 40
    assert max(len(r.content) for r in requests) < 4 * TURNS_MAX * Traffic(1).chunks_max


def test_one_shot_prompts_share_nothing() -> None:
    """Without conversations and documents no chunk occurs twice."""
    requests = drawn(Traffic(60, turn_share=0.0, document_share=0.0))
    counts = Counter(chunk for r in requests for chunk in r.content)

    assert max(counts.values()) == 1


def test_documents_are_asked_about_again() -> None:
    """In a workload of documents alone, every prompt begins with one of them."""
    requests = drawn(Traffic(60, documents=3, turn_share=0.0, document_share=1.0))

    assert len({r.content[0] for r in requests if r.content}) == 3


def test_plans_differ_in_which_faults_exist() -> None:
    """Some seeds have no fault at all, some many, and every kind occurs in some seed."""
    plans = [draw_plan(Dice(seed), 1000) for seed in range(100)]
    kinds = [len(plan.rates) + len({u.kind for u in plan.upsets}) for plan in plans]

    assert min(kinds) == 0
    assert max(kinds) > len(Fault) / 2
    assert {f for plan in plans for f in plan.rates} == set(Fault) - set(UPSETS)
    assert {u.kind for plan in plans for u in plan.upsets} == set(UPSETS)


def test_a_fault_strikes_at_its_rate_and_is_counted() -> None:
    """Draws follow the rate; a fault that does not exist never strikes."""
    injector = Injector(Dice(1), Plan({Fault.READ_IO: 0.25}).rates)
    struck = sum(injector.strikes(Fault.READ_IO, f"block {n}") for n in range(2000))

    assert struck == injector.seen[Fault.READ_IO] == pytest.approx(500, abs=80)
    assert not any(injector.strikes(Fault.WRITE_IO, str(n)) for n in range(100))


def test_a_fault_does_not_depend_on_its_neighbours() -> None:
    """The second read of a block fails or not, whatever else was read before it."""
    busy, calm = (Injector(Dice(1), {Fault.READ_IO: 0.5}) for _ in range(2))
    for n in range(50):
        busy.strikes(Fault.READ_IO, f"other {n}")

    for _ in range(20):
        assert busy.strikes(Fault.READ_IO, "k") == calm.strikes(Fault.READ_IO, "k")
