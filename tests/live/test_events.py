"""The event log: what a store heard leads a fresh brain to the same commands; damage is noticed."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvwise.core.words import DRAM, Ended, Joined, Tick, TierSpec
from kvwise.core.world import BrainConfig
from kvwise.errors import ConfigError, FrameError
from kvwise.live.blocks import get, put
from kvwise.live.events import MAGIC, EventLog, Recording, replay
from kvwise.live.messages import Step, Timing
from kvwise.live.store import Store
from tests.live.support import PAGE, SPACE, payloads, prompt, settings

BRAIN = BrainConfig(PAGE, (TierSpec("dram", 100 * PAGE, PAGE, 0, 1e10, 0.0),))


def busy_run(folder: Path) -> Path:
    """A real store with evictions, disk writes, loads, misses and timings; its event log."""
    log = folder / "events.kvlog"
    store = Store.open(settings(folder, disk=True, serve_event_log=str(log)))
    store.join(SPACE)
    for seed in range(10):
        keys = prompt(seed, 15)
        put(store, SPACE, keys, payloads(keys))
        store.flush(10)
        store.step(Step(timings=[Timing(SPACE.digest, 64, 2048.0, 0.05)]))
        get(store, SPACE, prompt(seed // 2, 15))
    get(store, SPACE, prompt(0, 15))
    store.close()
    return log


def events_start(log: bytes) -> int:
    """Where the records of events begin."""
    return len(MAGIC) + 8 + int(struct.unpack_from("<I", log, len(MAGIC))[0])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of one busy run."""
    return busy_run(tmp_path_factory.mktemp("run"))


def test_a_real_run_replays_equal(recorded: Path) -> None:
    """Every event of a live store, threads and disk included, leads to the same commands."""
    verdict, brain = replay(recorded)

    assert verdict.divergence == ""
    assert verdict.complete
    assert verdict.events > 100
    assert brain.snapshot()["counters"]["hit_tokens"]["disk"] > 0


def test_a_recovered_run_replays_equal(tmp_path: Path) -> None:
    """A store that starts with a full disk logs what it found; the earlier log is kept."""
    busy_run(tmp_path)
    log = busy_run(tmp_path)

    assert replay(log)[0].divergence == ""
    assert replay(log.with_name(log.name + ".old"))[0].divergence == ""


def test_a_killed_process_leaves_a_readable_log(recorded: Path, tmp_path: Path) -> None:
    """Cut anywhere, a log replays equal up to its last whole record."""
    whole = recorded.read_bytes()
    cut = tmp_path / "cut"
    header = events_start(whole)
    counts = []
    for size in (header, header + 3, header + (len(whole) - header) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        verdict, _ = replay(cut)
        assert verdict.equal
        counts.append(verdict.events)

    assert counts == sorted(counts)
    assert counts[0] == counts[1] == 0


def test_a_different_command_is_a_divergence(tmp_path: Path) -> None:
    """A log whose digests do not match names the first event that differs."""
    path = tmp_path / "log"
    log = EventLog(path, BRAIN)
    log.add(Joined(1, 1, SPACE), [])
    log.add(Tick(2), [Ended(7)])
    log.close()

    verdict, _ = replay(path)

    assert not verdict.equal
    assert verdict.events == 1
    assert "Tick" in verdict.divergence


def test_an_event_that_breaks_the_brain_is_a_divergence(tmp_path: Path) -> None:
    """A promise that the brain breaks in replay is reported, not raised."""
    path = tmp_path / "log"
    log = EventLog(path, BRAIN)
    log.add(Joined(1, 1, SPACE), [])
    log.close()
    small = BrainConfig(PAGE, (TierSpec("dram", PAGE, PAGE, 0, 1e10, 0.0),))
    other = EventLog(tmp_path / "small", small)
    other.close()
    body = path.read_bytes()
    (tmp_path / "small").write_bytes((tmp_path / "small").read_bytes() + body[events_start(body) :])

    verdict, _ = replay(tmp_path / "small")

    assert "broke the brain" in verdict.divergence


def test_the_log_is_bounded(tmp_path: Path) -> None:
    """At its bound a log ends, says so, and the store goes on; what it holds still replays."""
    path = tmp_path / "log"
    log = EventLog(path, BRAIN, bytes_max=2000)
    for n in range(1000):
        log.add(Tick(n), [])

    assert not log.is_open
    assert path.stat().st_size <= 2000
    verdict, _ = replay(path)
    assert verdict.equal
    assert not verdict.complete


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path) -> None:
    """When the log cannot be written it closes; adding goes on without an error."""
    log = EventLog(tmp_path / "log", BRAIN)
    log.close()
    log._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb")
    log.add(Tick(1), [])

    log.flush()

    assert not log.is_open
    log.add(Tick(2), [])
    log.close()


def test_only_its_user_reads_a_log(recorded: Path) -> None:
    """Request names are somebody's business: mode 0600."""
    assert recorded.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    [b"", b"KVWLOG1\n", MAGIC, MAGIC + b"\0" * 8, MAGIC + struct.pack("<II", 1 << 31, 0)],
    ids=["empty", "other-magic", "no-header", "empty-header", "huge"],
)
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes) -> None:
    """A file that does not begin like a log is refused with `FrameError`."""
    path = tmp_path / "log"
    path.write_bytes(data)

    with pytest.raises(FrameError):
        Recording(path)


def test_the_log_of_an_older_version_is_refused_by_name(recorded: Path, tmp_path: Path) -> None:
    """A log whose events had another form is not misread, and a new log moves it away."""
    path = tmp_path / "older"
    path.write_bytes(b"KVWLOG1\n" + recorded.read_bytes()[len(MAGIC) :])

    with pytest.raises(FrameError, match="another version; hint"):
        replay(path)
    EventLog(path, BRAIN).close()

    assert replay(path)[0].equal
    assert path.with_name("older.old").read_bytes().startswith(b"KVWLOG1\n")


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(place=st.floats(0, 1), value=st.integers(1, 255))
def test_a_damaged_log_never_crashes_the_reader(
    recorded: Path, tmp_path: Path, place: float, value: int
) -> None:
    """One changed byte is refused, or the log reads as torn there; it is never another error."""
    path = tmp_path / "damaged"
    shutil.copy(recorded, path)
    data = bytearray(path.read_bytes())
    at = min(int(place * len(data)), len(data) - 1)
    data[at] ^= value
    path.write_bytes(data)

    try:
        verdict, _ = replay(path)
    except FrameError:
        return
    assert verdict.equal


def test_the_arena_tier_comes_first(recorded: Path) -> None:
    """The header tells how the brain was set up."""
    recording = Recording(recorded)
    recording.close()

    assert recording.header.brain.tiers[DRAM].name == "dram"
    assert recording.header.brain.page_bytes == PAGE


@pytest.mark.parametrize("kind", ["directory", "notes", "device"])
def test_what_is_no_log_is_not_moved_away(tmp_path: Path, kind: str) -> None:
    """A directory, a device or a file of somebody else stays where it is."""
    path = Path("/dev/null") if kind == "device" else tmp_path / "precious"
    if kind == "directory":
        (path / "within").mkdir(parents=True)
    elif kind == "notes":
        path.write_text("notes")
    before = path.stat()

    with pytest.raises(ConfigError, match="not an event log"):
        EventLog(path, BRAIN)

    assert path.stat().st_ino == before.st_ino
    assert list(tmp_path.glob("*.old")) == []


def test_an_older_log_is_kept_beside(tmp_path: Path) -> None:
    """The log of the life before gets `.old` at its end; an empty file counts as one."""
    path = tmp_path / "log"
    path.touch()
    for _ in range(2):
        EventLog(path, BRAIN).close()

    assert replay(path)[0].equal
    assert replay(tmp_path / "log.old")[0].equal


def test_a_log_that_is_being_written_is_not_moved_away(tmp_path: Path) -> None:
    """A second daemon with the same log is refused, and the first one's log stays whole."""
    log = EventLog(tmp_path / "log", BRAIN)

    with pytest.raises(ConfigError, match="another daemon"):
        EventLog(tmp_path / "log", BRAIN)
    log.add(Tick(1), [])
    log.close()

    assert replay(tmp_path / "log")[0].events == 1
