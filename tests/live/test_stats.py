"""The metrics: exact numbers for a known history, flat when idle, readable by Prometheus."""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvwise.core.govern import LIFE_YEARS_MAX
from kvwise.core.hints import Hints
from kvwise.core.keys import ROOT
from kvwise.errors import BugError, ConfigError
from kvwise.live.blocks import get, put
from kvwise.live.drives import daily_bytes
from kvwise.live.messages import Ask, Fill, Offer, Step
from kvwise.live.node import Node
from kvwise.live.session import Session
from kvwise.live.stats import MetricsServer
from kvwise.live.store import Store
from tests.live.support import PAGE, SPACE, eventually, payloads, prompt, question, settings

Values = dict[tuple[str, ...], float]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a disk tier."""
    node = Node(settings(tmp_path, disk=True))
    yield node
    node.close(5.0)


@pytest.fixture
def server(node: Node) -> Iterator[MetricsServer]:
    """Its metrics on a free port."""
    server = MetricsServer("127.0.0.1:0", node.latencies, node.status)
    yield server
    server.close()


def scrape(server: MetricsServer) -> Values:
    """Every sample by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.pain("O1")
def test_a_known_history_gives_exact_numbers(node: Node, server: MetricsServer) -> None:
    """Four chunks stored, read once, one unknown prompt: every counter says just that."""
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(1, 4)
    put(store, SPACE, keys, payloads(keys))
    assert store.flush(10)
    get(store, SPACE, keys)
    get(store, SPACE, prompt(2, 3))

    values = scrape(server)

    assert values[("kvwise_hit_tokens_total", "tier=dram")] == 64
    assert values[("kvwise_asked_tokens_total",)] == 65 + 49
    assert values[("kvwise_decisions_total", "choice=load", "why=forced")] == 1
    assert values[("kvwise_decisions_total", "choice=recompute", "why=no_match")] == 1
    assert values[("kvwise_written_bytes_total", "tier=dram")] == 4 * 9000
    assert values[("kvwise_written_bytes_total", "tier=disk")] == 4 * 16384
    assert values[("kvwise_tier_objects", "tier=disk")] == 4
    assert values[("kvwise_tier_used_bytes", "tier=disk")] == 4 * 16384
    assert values[("kvwise_pages_free",)] == 256 - 12
    assert values[("kvwise_pins",)] == 0
    assert values[("kvwise_leases", "kind=store")] == 0
    assert values[("kvwise_load_seconds_count",)] == 1
    assert values[("kvwise_clients",)] == 1


def test_wear_is_measured(tmp_path: Path) -> None:
    """What is written a day, what may be, and how long the drives last, for the disk alone."""
    config = settings(tmp_path, disk=True, disk_dwpd=1.0)
    node = Node(config)
    server = MetricsServer("127.0.0.1:0", node.latencies, node.status)
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(1, 4)
    put(store, SPACE, keys, payloads(keys))
    assert store.flush(10)
    values = scrape(server)
    budget = daily_bytes(config)
    assert values["kvwise_lifetime_written_bytes_total", "tier=disk"] == 4 * 16384
    assert values["kvwise_written_per_day_bytes", "tier=disk"] == pytest.approx(
        24 * 4 * 16384, rel=0.01
    )
    assert values["kvwise_budget_per_day_bytes", "tier=disk"] == budget
    assert 0 < values["kvwise_budget_left_bytes", "tier=disk"] < budget / 24
    assert values["kvwise_price_s_per_byte", "tier=disk"] >= 0
    assert values["kvwise_drive_life_years", "tier=disk"] == pytest.approx(
        min(LIFE_YEARS_MAX, 5 * budget / (24 * 4 * 16384)), rel=0.01
    )
    server.close()
    node.close(1)


def test_pins_by_hint_are_measured(node: Node, server: MetricsServer) -> None:
    """What callers asked to keep is a level, what was too much a counter, and a clear ends it."""
    session = Session(node, "engine")
    session.join(SPACE)
    few, many = (
        Offer("r", SPACE.digest, ROOT, keys, hints=Hints(pin_s=60))
        for keys in (prompt(1, 4), prompt(2, 60))
    )
    for offer, count in ((few, 4), (many, 60)):
        (grant,) = session.step(Step(offers=[offer]))
        session.step(Step(fills=[Fill(grant.lease, count)]))
    values = scrape(server)
    assert values[("kvwise_hint_pinned_bytes",)] == 4 * 3 * PAGE
    assert values[("kvwise_hints_refused_total",)] == 1
    session.clear(b"")
    assert eventually(lambda: scrape(server)[("kvwise_hint_pinned_bytes",)] == 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 1e9])
def test_no_peer_gets_past_what_hints_can_mean(node: Node, bad: float) -> None:
    """Numbers that no hint can have are refused, and the session goes on."""
    session = Session(node, "engine")
    session.join(SPACE)
    keys = prompt(1, 4)
    for hints in (Hints(pin_s=bad), Hints(ttl_s=bad), Hints(priority=2 * bad)):
        with pytest.raises(BugError, match="no request can mean"):
            session.step(Step(offers=[Offer("r", SPACE.digest, ROOT, keys, hints=hints)]))
        with pytest.raises(BugError, match="no request can mean"):
            session.ask(Ask("r", SPACE.digest, keys, 0, 65, hints))
    assert not session.ask(question(keys)).lease


def test_a_tier_that_is_down_is_reported(node: Node, server: MetricsServer, tmp_path: Path) -> None:
    """A directory that was given up is in the status with its reason, and in the metrics."""
    assert node.status()["down"] == {"disk": []}
    assert scrape(server)[("kvwise_tier_down", "tier=disk")] == 0
    shutil.rmtree(tmp_path / "disk")
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(1, 1)
    put(store, SPACE, keys, payloads(keys))
    assert eventually(lambda: bool(node.status()["down"]["disk"]))
    assert str(tmp_path / "disk") in node.status()["down"]["disk"][0]
    assert scrape(server)[("kvwise_tier_down", "tier=disk")] == 1


@pytest.mark.pain("O2")
def test_an_idle_store_counts_nothing(node: Node, server: MetricsServer) -> None:
    """While nothing happens no counter moves."""
    before = {name: value for name, value in scrape(server).items() if "_total" in name[0]}
    time.sleep(0.6)

    after = scrape(server)

    assert {name: after[name] for name in before} == before


@pytest.mark.pain("C11")
def test_counters_never_go_back(node: Node, server: MetricsServer) -> None:
    """Over evictions, clears and reads no counter ever decreases or is negative."""
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    last: Values = {}
    for seed in range(6):
        keys = prompt(seed, 20)
        put(store, SPACE, keys, payloads(keys))
        get(store, SPACE, prompt(seed // 2, 20))
        if seed == 3:
            store.clear()
        now = {name: value for name, value in scrape(server).items() if "_total" in name[0]}
        assert all(value >= last.get(name, 0.0) for name, value in now.items())
        assert set(last) <= set(now)
        last = now


def test_reads_from_disk_are_timed(tmp_path: Path) -> None:
    """After a restart the read histogram counts every object read."""
    config = settings(tmp_path, disk=True)
    keys = prompt(1, 6)
    store = Store.open(config)
    store.join(SPACE)
    put(store, SPACE, keys, payloads(keys))
    store.close()
    node = Node(config)
    server = MetricsServer("127.0.0.1:0", node.latencies, node.status)
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    assert get(store, SPACE, keys) == payloads(keys)

    values = scrape(server)

    server.close()
    store.close()
    assert values[("kvwise_read_seconds_count", "tier=disk")] == 6
    assert values[("kvwise_hit_tokens_total", "tier=disk")] == 96
    assert values[("kvwise_read_bytes_total", "tier=disk")] == 6 * 9000


def test_a_port_in_use_is_refused_with_a_hint(node: Node, server: MetricsServer) -> None:
    """The address is named and what to do is said."""
    with pytest.raises(ConfigError, match=r"serve\.metrics.*another port"):
        MetricsServer(f"127.0.0.1:{server.port}", node.latencies, node.status)
