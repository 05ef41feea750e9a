"""Every setting does what its name says: one proof for each key, and none is left out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvwise.config import KEYS
from kvwise.core.keys import ROOT as START
from kvwise.core.words import Why
from kvwise.errors import CacheUnavailable, ConfigError
from kvwise.host import Host
from kvwise.live import embedded
from kvwise.live import node as node_module
from kvwise.live.blocks import get, put
from kvwise.live.drives import RATED_YEARS, capacity_bytes
from kvwise.live.messages import Offer, Step, Timing
from kvwise.live.node import Node
from kvwise.live.store import Store
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskTier
from kvwise.tiers.dram import Backing
from tests.live.support import PAGE, SPACE, payloads, prompt, question, settings, thread_daemon

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "serve.socket": ("tests/live/test_place.py", "def test_a_stale_socket_is_reclaimed"),
    "serve.metrics": ("tests/live/test_serve.py", "def test_metrics_are_served"),
    "serve.linger_s": ("tests/live/test_daemon.py", "def test_an_idle_daemon_leaves"),
    "serve.decision_log": (
        "tests/live/test_decisions.py",
        "def test_every_request_of_a_store_gets_its_line",
    ),
    "serve.event_log": ("tests/live/test_events.py", "def test_a_real_run_replays_equal"),
    "client.url": ("tests/live/test_embedded.py", "def test_a_url_is_used"),
    "client.chunk_tokens": ("src/kvwise/engines/vllm", "client.chunk_tokens"),
    "client.load": ("src/kvwise/engines/vllm", "client.load"),
    "client.lossy": ("src/kvwise/engines/vllm", "client.lossy"),
    "disk.codec": ("tests/live/test_codecs.py", "def test_what_was_encoded_comes_back"),
}
"""Settings whose effect is proved or heeded elsewhere."""

Proof = Callable[[Path], None]
PROOFS: dict[str, Proof] = {}


def proof(name: str) -> Callable[[Proof], Proof]:
    """Declare what shows that a setting has its effect."""

    def keep(check: Proof) -> Proof:
        PROOFS[name] = check
        return check

    return keep


@contextmanager
def opened(folder: Path, **more: object) -> Iterator[Store]:
    """A store that has joined."""
    disk = any(name.startswith(("disk", "write")) for name in more)
    store = Store.open(settings(folder, disk=disk, **more))
    store.join(SPACE)
    try:
        yield store
    finally:
        store.close()


def fill(store: Store, chunks: int, seed: int = 1) -> int:
    """Store a prompt and write it down; how many objects are on disk then."""
    keys = prompt(seed, chunks)
    put(store, SPACE, keys, payloads(keys))
    store.flush(5)
    return int(store.status()["levels"]["tiers"]["disk"]["objects"])


@proof("dram.size")
def _dram_size(folder: Path) -> None:
    with opened(folder, dram_size="2MiB") as store:
        assert len(store.pages) == 2 << 20


@proof("dram.page")
def _dram_page(folder: Path) -> None:
    with opened(folder, dram_page=8192) as store:
        assert store.page_bytes == 8192
        put(store, SPACE, prompt(1, 1), payloads(prompt(1, 1)))
        assert store.status()["levels"]["tiers"]["dram"]["used_bytes"] == 2 * 8192


@proof("dram.hugepages")
def _dram_hugepages(folder: Path) -> None:
    off = Node(settings(folder, dram_hugepages="off"))
    assert off.arena.backing is Backing.SMALL
    off.close(0)
    reserved = int(Path("/proc/sys/vm/nr_hugepages").read_text())
    if not reserved:
        with pytest.raises(ConfigError, match="nr_hugepages"):
            Node(settings(folder, dram_hugepages="on"))


@proof("disk.paths")
def _disk_paths(folder: Path) -> None:
    paths = [folder / "a", folder / "b"]
    with opened(folder, disk_paths=[str(path) for path in paths], dram_size="8MiB") as store:
        assert fill(store, 400) == 400
        for path in paths:
            assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) > 0


@proof("disk.size")
def _disk_size(folder: Path) -> None:
    with opened(folder, disk_size="4MiB", dram_size="8MiB") as store:
        for seed in range(10):
            fill(store, 40, seed)
        tier = store.status()["levels"]["tiers"]["disk"]
        assert tier["used_bytes"] <= 4 << 20
        assert tier["objects"] > 200


@proof("disk.min_free")
def _disk_min_free(folder: Path) -> None:
    stat = os.statvfs(folder)
    free_bytes = stat.f_bavail * stat.f_frsize
    total_bytes = stat.f_blocks * stat.f_frsize
    barely = min(free_bytes + (1 << 30), total_bytes - (1 << 28))
    with opened(folder, disk_min_free=barely) as store:
        assert fill(store, 10) == 0


@proof("disk.io")
def _disk_io(folder: Path) -> None:
    tier = node_module._open_disk(settings(folder, disk=True, disk_io="buffered"))
    assert isinstance(tier, DiskTier)
    assert tier.io == (Io.BUFFERED,)
    tier.close()


@proof("disk.threads")
def _disk_threads(folder: Path) -> None:
    node = Node(settings(folder, disk=True, disk_threads=5))
    assert len(node.pump._workers._threads) == 5
    node.close(0)


@proof("disk.segment")
def _disk_segment(folder: Path) -> None:
    with opened(folder, disk_segment="4MiB", dram_size="8MiB") as store:
        fill(store, 400)
    sizes = [f.stat().st_size for f in (folder / "disk").rglob("*") if f.stat().st_size > PAGE]
    assert len(sizes) > 1
    assert max(sizes) <= 5 << 20


@proof("write.min_tokens")
def _write_min_tokens(folder: Path) -> None:
    with opened(folder, write_min_tokens=100) as store:
        keys = prompt(1, 4)
        short, long = store.step(
            Step(
                offers=[
                    Offer("a", SPACE.digest, START, keys, total_tokens=70),
                    Offer("b", SPACE.digest, START, keys, total_tokens=170),
                ]
            )
        )
        assert short.chunks == []
        assert long.chunks == [0, 1, 2, 3]


@proof("write.queue")
def _write_queue(folder: Path) -> None:
    with opened(folder, write_queue="45000") as store:
        keys = prompt(1, 40)
        put(store, SPACE, keys, payloads(keys))
        store.flush(5)
        status = store.status()
        assert status["levels"]["tiers"]["disk"]["objects"] <= 5
        assert status["counters"]["refused"]["disk|full"] >= 35


@proof("write.per_day")
def _write_per_day(folder: Path) -> None:
    with opened(folder, write_per_day="4MiB") as store:
        written = fill(store, 40)
        assert 0 < written * 16384 <= (4 << 20) / 24 + 16384


@proof("write.min_chance")
def _write_min_chance(folder: Path) -> None:
    for chance, expected in ((0.1, 20), (0.9, 0)):
        with opened(folder / str(chance), write_min_chance=chance) as store:
            assert fill(store, 20) == expected
            refused = store.status()["counters"]["refused"].get("dram|worth", 0)
            assert refused == (not expected)  # the first of the prompt; the others go with it


@proof("disk.dwpd")
def _disk_dwpd(folder: Path) -> None:
    with opened(folder, disk_dwpd=0.5) as store:
        status = store.status()
        drives = capacity_bytes([str(folder)], Host())
        assert status["endurance"]["disk"]["budget_per_day_bytes"] == int(drives * 0.5)
        assert status["drive_life_years"]["disk"] > RATED_YEARS


@proof("disk.write_amplification")
def _disk_write_amplification(folder: Path) -> None:
    budgets = []
    for amplification in (1.0, 4.0):
        with opened(folder, disk_dwpd=1.0, disk_write_amplification=amplification) as store:
            budgets.append(store.status()["endurance"]["disk"]["budget_per_day_bytes"])
    assert budgets[1] == int(budgets[0] / 4)


@proof("plan.policy")
def _plan_policy(folder: Path) -> None:
    keys = prompt(1, 4)
    with opened(folder, plan_policy="recompute") as store:
        put(store, SPACE, keys, payloads(keys))
        assert store.ask(question(keys)).decision.why is Why.FORCED
        assert get(store, SPACE, keys) == []
    with opened(folder, plan_policy="auto") as store:
        put(store, SPACE, keys, payloads(keys))
        for _ in range(50):
            store.step(Step(timings=[Timing(SPACE.digest, 64, 2048.0, 1e-7)]))
        assert store.ask(question(keys)).decision.why is Why.SLOWER


@proof("plan.margin")
def _plan_margin(folder: Path) -> None:
    keys = prompt(1, 4)
    for margin, loads in ((0.1, True), (1e6, False)):
        with opened(folder, plan_policy="auto", plan_margin=margin) as store:
            put(store, SPACE, keys, payloads(keys))
            assert bool(store.ask(question(keys)).lease) is loads


@proof("plan.timeout_s")
def _plan_timeout(folder: Path) -> None:
    keys = prompt(1, 60)
    for timeout_s in (0.3, 0.6):
        with opened(folder, plan_timeout_s=timeout_s) as store:
            put(store, SPACE, keys, payloads(keys))
            assert store.ask(question(keys)).wait_s == timeout_s


@proof("evict.policy")
def _evict_policy(folder: Path) -> None:
    with opened(folder, evict_policy="lru") as store:
        for seed in range(4):
            keys = prompt(seed, 20)
            put(store, SPACE, keys, payloads(keys))
        get(store, SPACE, prompt(0, 20))
        put(store, SPACE, prompt(9, 20), payloads(prompt(9, 20)))
        assert len(get(store, SPACE, prompt(0, 20))) == 20
        assert len(get(store, SPACE, prompt(1, 20))) < 20


@proof("client.timeout_s")
def _client_timeout(folder: Path) -> None:
    served = settings(folder)
    told = settings(folder, client_url=served.socket_path, client_timeout_s=0.2)
    with thread_daemon(served) as daemon:
        client = embedded.connect(told, "engine")
        with daemon._node.pump._lock:
            begin = time.monotonic()
            with pytest.raises(CacheUnavailable):
                client.status()
            assert 0.15 < time.monotonic() - begin < 4.0  # where the daemon's own says 5
        client.close()


@pytest.mark.pain("G3")
@pytest.mark.parametrize("name", sorted(key.name for key in KEYS))
def test_every_setting_has_its_effect(name: str, tmp_path: Path) -> None:
    """Each key is proved here or names the tests that do; a new key without proof fails."""
    if name in PROOFS:
        PROOFS[name](tmp_path)
    else:
        path, words = ELSEWHERE[name]
        place = ROOT / path
        files = [place] if place.is_file() else list(place.rglob("*.py"))
        assert any(words in file.read_text() for file in files)
