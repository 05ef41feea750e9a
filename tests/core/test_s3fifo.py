"""S3-FIFO: newcomers leave by the small queue, and what came back does not."""

from __future__ import annotations

from kvwise.core.policies import POLICIES
from kvwise.testing.evictions import Candidates


def make() -> Candidates:
    """No candidates."""
    return Candidates(POLICIES["s3fifo"])


def test_what_was_used_again_outlives_newcomers() -> None:
    """A scan of blocks that are used once passes through and leaves the used ones alone."""
    made = make()
    used = [made.new() for _ in range(8)]
    for row in used:
        made.use(row)
    scan = [made.new() for _ in range(40)]
    left = [made.leave() for _ in range(38)]
    assert left == scan[:38]
    assert set(used) <= made.rows


def test_the_small_queue_keeps_a_tenth() -> None:
    """Once newcomers are no more than a tenth, the oldest of the others leaves."""
    made = make()
    used = [made.new() for _ in range(20)]
    for row in used:
        made.use(row)
    assert made.policy.propose() == used[0]
    newcomers = [made.new() for _ in range(3)]
    assert made.leave() == newcomers[0]
    assert made.leave() == used[0]


def test_used_in_the_main_queue_gets_another_round() -> None:
    """The oldest of the others stays when it was used since."""
    made = make()
    used = [made.new() for _ in range(4)]
    for row in used:
        made.use(row)
    assert made.policy.propose() == used[0]
    made.use(used[0])
    assert made.drain() == [*used[1:], used[0]]


def test_what_comes_back_soon_is_no_newcomer() -> None:
    """A block that left lately goes past the small queue when it is here again."""
    made = make()
    first = made.new()
    key = made.index.key(first)
    assert made.leave() == first
    scan = [made.new() for _ in range(5)]
    (again,) = made.index.add_chain(key, 0xFFFFFFFF, 0)
    made.use(again)
    made.policy.add(again)
    made.rows.add(again)
    scan += [made.new() for _ in range(5)]
    assert made.drain()[:10] == scan
