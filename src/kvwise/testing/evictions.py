"""The conformance suite of eviction policies. It says nothing of which block should leave.

Use: a test class inherits `EvictionSuite` and gives `policy()`, how to make the policy for a tier.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

from kvwise.core import columns
from kvwise.core.evict import Eviction
from kvwise.core.index import NONE, Index
from kvwise.core.keys import ROOT
from kvwise.core.reuse import LENGTHS, SPACES_MAX, About, Reuse, Stay
from kvwise.units import NS_PER_S

Policy = Callable[[Index, Reuse, Stay], Eviction]

ROUNDS = 16
CANDIDATES = 24
CLIENT = 1
LONGEST_WAIT_S = 900


class Candidates:
    """Blocks that may leave, each a prompt of its own, and the policy that is asked which does.

    Attributes:
        rows: of all candidates the policy knows.
    """

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        """No blocks; `seed` gives all that is drawn."""
        self.index, self.stay = Index(), Stay()
        self.reuse = Reuse(self.index)
        self.policy = policy(self.index, self.reuse, self.stay)
        self.dice = random.Random(seed)
        self.rows: set[int] = set()
        self._requests = 0
        self._now_s = 0.0

    def new(self, tokens: int = 1, space: int = 0) -> int:
        """A block comes in with a prompt of so many tokens, and is a candidate."""
        key = self._requests.to_bytes(16)
        ((_, stamp),) = self.reuse.parts(self._who(), key, ROOT, About(space, tokens))
        (row,) = self.index.add_chain(key, NONE, space)
        self.index.stamp[row] = stamp
        self.policy.add(row)
        self.rows.add(row)
        return row

    def use(self, row: int, tokens: int = 1, space: int = 0) -> None:
        """Somebody asks for a block; the policy is not told."""
        key = self.index.key(row)
        about = About(space, tokens)
        self.index.stamp[row] = self.reuse.meet(self._who(), key, array("I", [row]), about)

    def wait(self, seconds: float) -> None:
        """Time goes on."""
        self._now_s += seconds
        self.reuse.pass_time(int(self._now_s * NS_PER_S))

    def halve(self) -> None:
        """The clock of uses is set back."""
        columns.halve(self.index.stamp)
        self.reuse.halve()
        self.policy.restamped()

    def leave(self) -> int:
        """The next candidate leaves; its row may be taken by another block. NONE if none is."""
        row = self.policy.propose()
        if row == NONE:
            return NONE
        assert row in self.rows, "proposed, but no candidate"
        self.policy.accept()
        self.rows.remove(row)
        self.reuse.gone((row,))
        self.index.remove(row)
        return row

    def drain(self) -> list[int]:
        """Every candidate leaves, in order."""
        order = []
        while (row := self.leave()) != NONE:
            order.append(row)
        return order

    def live(self, steps: int) -> None:
        """Blocks of all classes come, are used, wait and leave, as it is drawn."""
        for _ in range(steps):
            tokens = self.dice.choice((1, *(limit + 1 for limit in LENGTHS)))
            space = self.dice.randrange(SPACES_MAX + 2)
            match self.dice.randrange(5):
                case 0 | 1:
                    self.new(tokens, space)
                case 2 if self.rows:
                    self.use(self.dice.choice(sorted(self.rows)), tokens, space)
                case 3:
                    self.leave()
                case _:
                    self.wait(self.dice.uniform(0, LONGEST_WAIT_S))

    def _who(self) -> tuple[int, str]:
        self._requests += 1
        return CLIENT, str(self._requests)


class EvictionSuite:
    """What the blocks rely on, whatever the order is. Subclasses give `policy`."""

    def policy(self) -> Policy:
        """How the policy is made for one tier."""
        raise NotImplementedError

    def lives(self, steps: int = 4 * CANDIDATES) -> list[Candidates]:
        """Candidates with many different pasts."""
        made = [Candidates(self.policy(), seed) for seed in range(ROUNDS)]
        for one in made:
            one.live(steps)
        return made

    def test_nothing_is_proposed_of_nothing(self) -> None:
        """Without candidates there is no proposal, however often one is asked for."""
        empty = Candidates(self.policy())
        assert empty.policy.propose() == empty.policy.propose() == NONE
        empty.new()
        assert len(empty.drain()) == 1
        assert empty.policy.propose() == NONE

    def test_a_proposal_stands_until_it_is_answered(self) -> None:
        """Asking again changes nothing."""
        for one in self.lives():
            assert one.policy.propose() == one.policy.propose()

    def test_every_candidate_is_proposed_once(self) -> None:
        """However blocks were used, all candidates leave, and none leaves twice."""
        for one in self.lives():
            known = sorted(one.rows)
            assert known
            assert sorted(one.drain()) == known

    def test_added_again_is_there_once(self) -> None:
        """Whoever is added twice, one by one or together, also while set aside, leaves once."""
        for one in self.lives():
            known = sorted(one.rows)
            one.policy.propose()
            one.policy.set_aside()
            for row in known:
                one.policy.add(row)
            one.policy.add_all(array("I", known + known))
            one.policy.restore()
            assert sorted(one.drain()) == known

    def test_set_aside_is_passed_over_until_restored(self) -> None:
        """Whoever is set aside is not proposed again before `restore`, and is not lost by it."""
        for one in self.lives():
            known, aside = set(one.rows), set[int]()
            for _ in range(len(known) // 2):
                row = one.policy.propose()
                assert row not in aside
                one.policy.set_aside()
                aside.add(row)
                one.wait(one.dice.uniform(0, 1))
            for row in sorted(aside)[::2]:
                one.use(row)  # what is in use may be used again
            rest = one.drain()
            one.policy.restore()
            again = one.drain()
            assert len(rest) + len(again) == len(known)
            assert set(rest) == known - aside
            assert set(again) == aside

    def test_all_set_aside_come_back(self) -> None:
        """When all are in use nothing is proposed, and afterwards everything is."""
        for one in self.lives():
            known = sorted(one.rows)
            while one.policy.propose() != NONE:
                one.policy.set_aside()
            one.policy.restore()
            assert sorted(one.drain()) == known

    def test_many_at_once_are_as_one_after_the_other(self) -> None:
        """`add_all` is `add` for each of the rows."""
        for one in self.lives():
            rows = array("I", sorted(one.rows))
            singly, together = (self.policy()(one.index, one.reuse, one.stay) for _ in range(2))
            for row in rows:
                singly.add(row)
            together.add_all(rows)
            for _ in rows:
                assert singly.propose() == together.propose()
                singly.accept()
                together.accept()
            assert together.propose() == NONE

    def test_new_stamps_lose_nobody(self) -> None:
        """When the clock of uses is set back all candidates stay known."""
        for one in self.lives():
            one.halve()
            one.live(CANDIDATES)
            known = sorted(one.rows)
            one.halve()
            assert sorted(one.drain()) == known

    def test_new_stamps_keep_the_order(self) -> None:
        """Blocks of one class leave in the same order before and after the clock is set back."""
        orders = []
        for halved in (False, True):
            one = Candidates(self.policy())
            for _ in range(CANDIDATES):
                one.new()
                one.wait(1)
                one.reuse.uses.skip(1)  # every second stamp, or two would become one
            if halved:
                one.halve()
            orders.append(one.drain())
        assert orders[0] == orders[1]

    def test_what_was_just_used_is_not_the_first_to_leave(self) -> None:
        """A candidate that is used after it was queued lets the others go before it."""
        one = Candidates(self.policy())
        for _ in range(CANDIDATES):
            one.new()
            one.wait(60)
        first = one.policy.propose()
        one.use(first)
        one.wait(60)
        assert one.policy.propose() not in (first, NONE)
        assert first in one.drain()

    def test_a_row_with_another_block_is_that_block(self) -> None:
        """A block that left by another way leaves nothing behind but its row."""
        for one in self.lives():
            gone = one.dice.choice(sorted(one.rows))
            one.index.remove(gone)
            one.rows.remove(gone)
            assert one.new() == gone
            known = sorted(one.rows)
            assert sorted(one.drain()) == known
