"""The store against a model: whatever happens, a get gives the right bytes or a miss."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvwise.codecs.forms import Codecs
from kvwise.config import Config
from kvwise.core.keys import ROOT
from kvwise.errors import FailureKind
from kvwise.live import node
from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from kvwise.live.clock import now_ns
from kvwise.live.messages import Fill, Offer, Step
from kvwise.live.store import Store
from kvwise.tiers.base import Tier
from kvwise.tiers.wrap import Faulty, Metered
from tests.live.support import CHUNK, SPACE, payloads, prompt, settings, thread_daemon

FEW = hypothesis_settings(max_examples=25, stateful_step_count=30, deadline=None)
SEEDS = st.integers(0, 5)
COUNTS = st.integers(1, 12)
OPEN_DISK = node._open_disk


class StoreMachine(RuleBasedStateMachine):
    """A store with an arena of 28 objects and a disk of about 80, used in every order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvwise-machine-"))
        self.config = settings(
            self.folder,
            disk=True,
            dram_size="336KiB",
            disk_size="4MiB",
            dram_page=4096,
            plan_policy="load",  # a disk that measures slow would be left alone
        )
        self.store = self.open()
        self.store.join(SPACE)
        self.known: set[bytes] = set()
        self.open_leases: list[tuple[int, int]] = []

    def open(self) -> Store:
        """A store in the folder."""
        return Store.open(self.config)

    def teardown(self) -> None:
        """Close, and leave nothing behind."""
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(seed=SEEDS, count=COUNTS)
    def put(self, seed: int, count: int) -> None:
        """Store the first chunks of a prompt."""
        keys = prompt(seed, count)
        put(self.store, SPACE, keys, payloads(keys))
        self.known.update(keys[at : at + 16] for at in range(0, len(keys), 16))

    @rule(seed=SEEDS, count=COUNTS)
    def get(self, seed: int, count: int) -> None:
        """Whatever comes back are the leading payloads of the prompt."""
        keys = prompt(seed, count)
        found = get(self.store, SPACE, keys)
        assert found == payloads(keys)[: len(found)]
        for place in range(len(found)):
            assert keys[place * 16 : place * 16 + 16] in self.known

    @rule(seed=SEEDS, count=COUNTS, good=COUNTS)
    def offer(self, seed: int, count: int, good: int) -> None:
        """Take pages, and leave the lease open for a while."""
        keys = prompt(seed + 100, count)
        (grant,) = self.store.step(Step(offers=[Offer("o", SPACE.digest, ROOT, keys)]))
        if grant.lease:
            self.open_leases.append((grant.lease, good))

    @precondition(lambda self: self.open_leases)
    @rule()
    def fail(self) -> None:
        """Give the pages of an open lease back unwritten."""
        lease, _ = self.open_leases.pop()
        self.store.step(Step(fills=[Fill(lease, 0)]))

    @rule(seed=SEEDS)
    def never_filled_never_found(self, seed: int) -> None:
        """What was offered but never written is a miss."""
        assert get(self.store, SPACE, prompt(seed + 100, 12)) == []

    @rule()
    def flush(self) -> None:
        """Let deferred writes happen."""
        self.store.flush(5)

    @rule()
    def clear(self) -> None:
        """Afterwards nothing is known."""
        self.store.clear()
        self.known.clear()

    @rule()
    def reopen(self) -> None:
        """Close in order and open again; the open leases are gone with their store."""
        self.store.close()
        self.store = self.open()
        self.store.join(SPACE)
        self.open_leases.clear()

    @invariant()
    def holds(self) -> None:
        """The brain keeps its own rules, and no tier exceeds its cap."""
        self.store.check()
        for tier in self.store.status()["levels"]["tiers"].values():
            assert tier["used_bytes"] <= tier["capacity_bytes"]


class FaultyMachine(StoreMachine):
    """The same over a disk that fails in every way now and then.

    Faults follow from keys alone, and each life begins with prompts that meet some both ways.
    """

    disks: ClassVar[list[Metered]] = []

    @initialize()
    def meet_faults(self) -> None:
        """Write more than memory holds, and read it back."""
        for seed in range(4):
            self.put(seed, 12)
            self.flush()
        for seed in range(4):
            self.get(seed, 12)

    def open(self) -> Store:
        """A store whose disk is faulty."""
        with mock.patch.object(node, "_open_disk", _open_faulty):
            return super().open()


def _open_faulty(config: Config, codecs: Codecs | None = None) -> Tier:
    """A disk on which one object in five has a fault, and which counts them.

    By this seed the disk is full for the last prompt alone: from then on it holds next to nothing.
    """
    gets = dict.fromkeys((FailureKind.IO, FailureKind.CORRUPT, FailureKind.MISSING), 0.04)
    puts = dict.fromkeys(gets, 0.06) | {FailureKind.FULL: 0.02}
    faulty = Faulty(OPEN_DISK(config, codecs), seed=10, puts=puts, gets=gets)
    FaultyMachine.disks.append(Metered(faulty, clock_ns=now_ns))
    return FaultyMachine.disks[-1]


def test_a_sound_disk() -> None:
    """Every get over a sound disk gives the right bytes or a miss."""
    run_state_machine_as_test(StoreMachine, settings=FEW)


@pytest.mark.pain("W2")
def test_a_faulty_disk() -> None:
    """So it does over a faulty one, and faults did occur on both ways."""
    FaultyMachine.disks.clear()

    run_state_machine_as_test(FaultyMachine, settings=FEW)

    assert any(disk.puts.failures for disk in FaultyMachine.disks)
    assert any(disk.gets.failures for disk in FaultyMachine.disks)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Config]:
    """A daemon with little memory."""
    config = settings(tmp_path, disk=True, dram_size="400KiB", disk_size="4MiB")
    with thread_daemon(config):
        yield config


@pytest.mark.pain("W2", "D10")
def test_many_threads_many_clients(small: Config) -> None:
    """Eight threads of four clients evict each other's objects; none ever reads a wrong byte."""
    failures: list[str] = []
    hits = [0] * 8

    def work(number: int) -> None:
        client = Client(small.socket_path, f"engine-{number // 2}", timeout_s=10.0)
        client.join(SPACE)
        for turn in range(40):
            keys = prompt((number + turn) % 11, 3 + turn % 6 + number % 2)
            if turn % 2:
                put(client, SPACE, keys, payloads(keys))
            found = get(client, SPACE, keys)
            hits[number] += len(found)
            if found != payloads(keys)[: len(found)]:
                failures.append(f"thread {number}, turn {turn}")
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert all(hits)
    watcher = Client(small.socket_path, "watcher", timeout_s=10.0)
    assert watcher.status()["levels"]["leases"] == {"load": 0, "store": 0}
    assert watcher.status()["counters"]["asked_tokens"] >= CHUNK
    watcher.close()
