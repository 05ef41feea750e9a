"""The pump's word on whether the brain still works, while it is at work and after it broke."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvwise.core.brain import Brain
from kvwise.core.words import Command, Event, Tick
from kvwise.errors import BugError, CacheUnavailable, TierError
from kvwise.live import pump
from kvwise.live.blocks import put
from kvwise.live.clock import now_ns
from kvwise.live.node import Node
from kvwise.live.store import Store
from kvwise.tiers.base import Buffers, Placed, Record
from kvwise.tiers.disk import DiskTier
from tests.live.support import SPACE, payloads, prompt, settings

WAIT_S = 10.0
STALL_S = 0.02


def test_a_brain_that_is_thinking_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks in the middle of an event, without the lock, must not take it for a broken one."""
    node = Node(settings(tmp_path))
    thinking, go_on = threading.Event(), threading.Event()
    handle = Brain.handle

    def slowly(brain: Brain, event: Event) -> Sequence[Command]:
        thinking.set()
        assert go_on.wait(WAIT_S)
        return handle(brain, event)

    monkeypatch.setattr(Brain, "handle", slowly)
    thinker = threading.Thread(target=node.pump.handle, args=([Tick(now_ns())],))
    thinker.start()
    assert thinking.wait(WAIT_S)
    sound = node.pump.is_sound
    go_on.set()
    thinker.join(WAIT_S)
    node.close(WAIT_S)

    assert sound


def test_a_brain_that_broke_stays_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of a brain whose state nobody knows."""
    node = Node(settings(tmp_path))

    def broken(brain: Brain, event: Event) -> Sequence[Command]:
        raise BugError("planted")

    monkeypatch.setattr(Brain, "handle", broken)
    with pytest.raises(BugError, match="planted"):
        node.pump.handle([Tick(now_ns())])
    monkeypatch.undo()
    with pytest.raises(CacheUnavailable):
        node.pump.handle([Tick(now_ns())])
    sound = node.pump.is_sound
    node.close(WAIT_S)

    assert not sound


def test_a_slow_write_is_no_standstill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits for a write that is under way, however long nothing else is written."""
    put_one = DiskTier.put

    def slowly(
        tier: DiskTier, objects: Sequence[tuple[Record, Buffers]]
    ) -> list[Placed | TierError]:
        time.sleep(20 * STALL_S)
        return put_one(tier, objects)

    monkeypatch.setattr(pump, "FLUSH_STALL_S", STALL_S)
    monkeypatch.setattr(DiskTier, "put", slowly)
    store = Store.open(settings(tmp_path, disk=True))
    store.join(SPACE)
    keys = prompt(1, 4)
    assert put(store, SPACE, keys, payloads(keys)) == 4
    assert store.flush(WAIT_S)
    store.close()
