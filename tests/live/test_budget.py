"""The write budget over restarts: what was spent stays spent, whatever happened in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.config import Config
from kvwise.core.balance import Balance
from kvwise.core.brain import Brain
from kvwise.core.govern import BURST_DAYS
from kvwise.errors import FrameError
from kvwise.live.blocks import put
from kvwise.live.budget import NAME, Saved, pack, read, unpack
from kvwise.live.clock import unix_ns
from kvwise.live.events import replay
from kvwise.live.node import DISK, Node
from kvwise.live.session import Session
from kvwise.live.store import Store
from tests.live.support import SPACE, payloads, prompt, served, settings

PER_DAY = 24 * 40 * 16384
"""Forty objects an hour."""

BALANCE = Balance(1e6, 5 * 10**9, 2e8, 8e4, ((100, 3e8), (120, 1e6)))


def limited(folder: Path, **more: object) -> Config:
    """A store with a budget."""
    return settings(folder, disk=True, write_per_day=PER_DAY, **more)


def spend(node: Node, chunks: int, seed: int) -> None:
    """Have a prompt stored and written."""
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(seed, chunks)
    put(store, SPACE, keys, payloads(keys))
    store.flush(5)


def balance(node: Node) -> Balance:
    """What the disk's budget holds."""
    return node.pump.query(Brain.balances)[DISK]


def test_a_restart_goes_on(tmp_path: Path) -> None:
    """A store that closed in order finds its bucket as it was, and counts on; so does its log."""
    log = tmp_path / "events.kvlog"
    node = Node(limited(tmp_path))
    spend(node, 8, 1)
    before = balance(node)
    node.close(1)

    node = Node(limited(tmp_path, serve_event_log=str(log)))
    after = balance(node)
    spend(node, 8, 2)
    last = balance(node)
    node.close(1)

    assert before.level_bytes < PER_DAY / 24 - 4 * 16384
    assert abs(after.level_bytes - before.level_bytes) < PER_DAY / 24 / 60
    assert after.written_bytes == before.written_bytes > 0
    assert last.written_bytes > after.written_bytes
    assert replay(log)[0].divergence == ""


def test_crashes_fill_no_bucket(tmp_path: Path) -> None:
    """A daemon that is killed again and again writes no more than one hour's worth in all."""
    config, objects = limited(tmp_path), 0
    for seed in range(3):
        with served(config, tmp_path) as daemon:
            client = daemon.client()
            client.join(SPACE)
            for part in range(4):
                keys = prompt(10 * seed + part, 20)
                put(client, SPACE, keys, payloads(keys))
                client.flush(0.3)
            objects = client.status()["levels"]["tiers"]["disk"]["objects"]
            daemon.send(signal.SIGKILL)
            client.close()
    assert 0 < objects <= 40 + 1


@pytest.mark.parametrize("damage", [b"", b"rubbish", pack(Saved(0, True, BALANCE))[:-3]])
def test_damage_empties_the_bucket(tmp_path: Path, damage: bytes) -> None:
    """A file that says nothing is worth nothing, and the store starts all the same."""
    Node(limited(tmp_path)).close(1)
    (tmp_path / "disk" / NAME).write_bytes(damage)
    node = Node(limited(tmp_path))
    assert balance(node).level_bytes < PER_DAY / 24 / 60
    node.close(1)
    saved = read(tmp_path / "disk" / NAME)
    assert saved is not None
    assert saved.closed


def test_a_lost_file_empties_the_bucket(tmp_path: Path) -> None:
    """Objects without a budget beside them are no fresh start."""
    node = Node(limited(tmp_path))
    spend(node, 8, 1)
    node.close(1)
    (tmp_path / "disk" / NAME).unlink()
    node = Node(limited(tmp_path))
    assert balance(node).level_bytes < PER_DAY / 24 / 60
    node.close(1)


@pytest.mark.parametrize(("years", "most"), [(-10, 1 / 24), (10, BURST_DAYS)])
def test_a_jumping_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int, most: float
) -> None:
    """A wall clock that went back gives nothing, one that went forward no more than the burst."""
    Node(limited(tmp_path)).close(1)
    real = unix_ns()
    monkeypatch.setattr("kvwise.live.budget.unix_ns", lambda: real + years * 31_557_600 * 10**9)
    node = Node(limited(tmp_path))
    assert balance(node).level_bytes == pytest.approx(PER_DAY * most, rel=0.01)
    node.close(1)


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its file the store serves on, and says so once."""

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvwise.live.budget.os.fsync", refuse)
    node = Node(limited(tmp_path))
    spend(node, 4, 1)
    node.close(1)
    assert [r.message for r in caplog.records].count(
        f"{tmp_path / 'disk' / NAME} cannot be written: No space left on device"
    ) == 1


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_hostile_bytes(tail: bytes, place: int, byte: int) -> None:
    """Any bytes are a budget or are refused; a changed one is refused."""
    good = bytearray(pack(Saved(5, True, BALANCE)))
    assert unpack(bytes(good)) == Saved(5, True, BALANCE)
    place %= len(good)
    if good[place] != byte:
        good[place] = byte
        with pytest.raises(FrameError):
            unpack(bytes(good))
    with pytest.raises(FrameError):
        unpack(tail)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e19, -1e19])
def test_no_amount_is_no_budget(bad: float) -> None:
    """Numbers that nobody can have are refused even where the checksum holds."""
    for wrong in (
        Balance(level_bytes=bad),
        Balance(recent_bytes=bad),
        Balance(span_s=bad),
        Balance(offered_bytes=((1, bad),)),
        Balance(written_bytes=(1 << 64) - 1000),
    ):
        with pytest.raises(FrameError, match="no amount"):
            unpack(pack(Saved(5, True, wrong)))


def test_a_debt_outlives_a_restart(tmp_path: Path) -> None:
    """An object larger than the bucket is written once, and its history and debt are known on."""
    config = settings(tmp_path, disk=True, write_per_day=20_000)
    (tmp_path / "disk").mkdir()
    old = Balance(10_000.0, 7 * 10**9, 1e6, 1e4)
    (tmp_path / "disk" / NAME).write_bytes(pack(Saved(unix_ns(), True, old)))
    node = Node(config)
    spend(node, 1, 1)
    left = balance(node)
    node.close(1)
    node = Node(config)
    again = balance(node)
    node.close(1)
    assert left.level_bytes < 0
    assert again.level_bytes == pytest.approx(left.level_bytes, abs=100)
    assert again.written_bytes == left.written_bytes > 7 * 10**9


def test_directories_share_one_budget(tmp_path: Path) -> None:
    """Neither another order of the paths nor a lost, new or damaged one makes a new budget."""
    first, second, third = (str(tmp_path / name) for name in "abc")

    def life(*paths: str, chunks: int = 0, seed: int = 0) -> tuple[Balance, Balance]:
        node = Node(limited(tmp_path, disk_paths=list(paths)))
        begun = balance(node)
        if chunks:
            spend(node, chunks, seed)
        ended = balance(node)
        node.close(1)
        return begun, ended

    spent = life(first, second, chunks=8, seed=1)[1]
    assert spent.written_bytes > 0
    for paths in ((second, first), (second,), (second, third), (third,), (first, second, third)):
        begun, _ = life(*paths)
        assert begun.written_bytes == spent.written_bytes
        assert begun.level_bytes == pytest.approx(spent.level_bytes, rel=0.01)
    more = life(second, chunks=8, seed=2)[1]
    assert life(first, second)[0].written_bytes == more.written_bytes > spent.written_bytes
    (tmp_path / "a" / NAME).write_bytes(b"rubbish")
    begun, _ = life(first, second)
    assert begun.written_bytes == more.written_bytes
    assert begun.level_bytes < PER_DAY / 24 / 60


@pytest.mark.parametrize("name", [NAME, NAME + ".new"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_harms_nobody(tmp_path: Path, name: str, kind: str) -> None:
    """A link leads nowhere and a pipe is not waited for; both give way to the file."""
    folder, victim = tmp_path / "disk", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    if kind == "link":
        (folder / name).symlink_to(victim)
    else:
        os.mkfifo(folder / name)
    Node(limited(tmp_path)).close(1)
    assert victim.read_text() == "mine"
    assert read(folder / NAME) is not None
    assert not (folder / (NAME + ".new")).exists()
