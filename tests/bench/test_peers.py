"""Comparisons with other caches: kvwise's sides are real, and drivers end however they end."""

from __future__ import annotations

import io
import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvwise import cli
from kvwise.bench.peers import run, talk
from kvwise.bench.peers.cases import REQUEST_BYTES, SERVER, Case, Plan, cases
from kvwise.bench.peers.compare import Found, Ground, compare
from kvwise.bench.peers.drivers.base import DriverError, Region, Stopwatch, parts
from kvwise.bench.peers.installs import MISSING_LIBRARY, PEERS, Peer
from kvwise.bench.peers.ourdisk import disk_side
from kvwise.bench.peers.ours import Load, MemorySide, Paged, PagedSide, daemon
from kvwise.bench.peers.run import Options, spoken
from kvwise.bench.peers.talk import Driver, DriverLost, PeerError, peer_command
from kvwise.bench.places import STAMP
from kvwise.bench.rows import Row, Rows
from kvwise.cli import bench_peers
from kvwise.errors import ConfigError
from kvwise.units import KIB, MIB
from tests.bench.fakes import Notes

LOAD = Load(300 * KIB, 5, 2)
"""Objects that end inside an arena page, and a last request that is not full."""

PAGED = Paged(layers=3, blocks=64, block_tokens=16, half_bytes=4 * KIB, tokens=512)

PROGRAM = """
    from contextlib import contextmanager
    from kvwise.bench.peers.drivers.base import run

    @contextmanager
    def prepare(spec):
        def do_round():
            {body}
        yield do_round

    run(prepare)
"""


def _python(folder: Path, text: str) -> Path:
    """What stands where a peer's interpreter would: it runs `text` with the driver's arguments."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(text))
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -P {script} "$@"\n')
    path.chmod(0o755)
    return path


def _driver(folder: Path, python: Path) -> Driver:
    """A driver with a folder of its own."""
    place = folder / "place"
    place.mkdir()
    spec = {"rate": 2.5, "count": 1, "object_bytes": 4096, "at_once": 1}
    return Driver("a peer", peer_command("lmcache_storage", python, place), spec, place)


# --- kvwise's own sides --------------------------------------------------------------------------


def test_memory_goes_to_a_daemon_and_back() -> None:
    """Put and get move all bytes through a real daemon, round after round."""
    with daemon(8 * MIB, Notes()) as client:
        side = MemorySide(client, LOAD)
        rounds = [side.round() for _ in range(3)]

    assert [set(rates) for rates in rounds] == [{"put", "get"}] * 3
    assert all(rate > 0 for rates in rounds for rate in rates.values())


def test_paged_blocks_go_to_a_daemon_and_back() -> None:
    """Requests of paged KV in two halves move through a real daemon."""
    with daemon(16 * MIB, Notes()) as client:
        rates = PagedSide(client, PAGED, 3).round()

    assert set(rates) == {"put", "get"}


def test_changed_bytes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that moved a wrong byte fails; it does not give a rate."""
    with daemon(8 * MIB, Notes()) as client:
        side = MemorySide(client, LOAD)
        get = side._wire.get

        def spoiled(*arguments: object) -> None:
            get(*arguments)  # type: ignore[arg-type]
            side.target.bytes[123] ^= 1

        monkeypatch.setattr(side._wire, "get", spoiled)
        with pytest.raises(PeerError, match="other bytes"):
            side.round()


def test_changed_blocks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for paged KV, in the last layer's V of the request's last block."""
    with daemon(16 * MIB, Notes()) as client:
        side = PagedSide(client, PAGED, 1)
        get = side._wire.get
        last = PAGED.tokens // PAGED.block_tokens - 1

        def spoiled(*arguments: object) -> None:
            get(*arguments)  # type: ignore[arg-type]
            start = 5 * PAGED.blocks * PAGED.half_bytes + last * PAGED.half_bytes
            side.target.bytes[start + PAGED.half_bytes - 1] ^= 1

        monkeypatch.setattr(side._wire, "get", spoiled)
        with pytest.raises(PeerError, match="other bytes"):
            side.round()


def test_a_store_without_room_fails_the_run() -> None:
    """A daemon that takes only some of the objects is no measurement."""
    with (
        daemon(2 * MIB, Notes()) as client,
        pytest.raises(PeerError, match=r"took \d of 3 objects"),
    ):
        MemorySide(client, Load(768 * KIB, 3, 3)).round()


@pytest.mark.parametrize("copies", [False, True])
def test_disk_writes_and_reads_back(tmp_path: Path, copies: bool) -> None:
    """The disk tier moves all bytes, with and without the copies of a caller, and frees them."""
    with disk_side(tmp_path, LOAD, copies=copies) as side:
        rounds = [side.round() for _ in range(2)]

        assert [set(rates) for rates in rounds] == [{"put", "get"}] * 2
        assert side._tier.used_bytes == 0


# --- what drivers share --------------------------------------------------------------------------


def test_regions_are_compared_to_the_last_byte() -> None:
    """Equal contents pass and one other byte does not."""
    one, other = Region(1 << 16, random=True), Region(1 << 16, random=False)
    other.memory[:] = one.memory[:]
    one.require_same(other)
    other.memory[-1] = other.memory[-1] ^ 1
    with pytest.raises(DriverError, match="not those that were stored"):
        one.require_same(other)


def test_requests_cover_every_object_once() -> None:
    """Both sides cut the same objects into the same requests."""
    cut = [n for request in parts(LOAD.count, LOAD.at_once) for n in request]

    assert cut == list(range(LOAD.count))
    assert parts(LOAD.count, LOAD.at_once) == LOAD.requests


def test_a_stopwatch_adds_up() -> None:
    """Only what is inside its blocks counts."""
    watch = Stopwatch()
    for _ in range(3):
        with watch:
            pass

    assert watch.gbps(10**9) == pytest.approx(1 / watch.seconds)


def test_a_driver_sees_the_drivers_and_nothing_else_of_kvwise(tmp_path: Path) -> None:
    """A peer's environment must not get our packages; rates come back as they were said."""
    body = """
            import importlib.util
            import kvwise.bench
            seen = importlib.util.find_spec("kvwise.bench.rows") is not None
            return {"put": spec["rate"], "seen": seen}
    """
    driver = _driver(tmp_path, _python(tmp_path, PROGRAM.format(body=body.strip())))
    try:
        driver.start(Notes())
        rates = driver.round(Notes())
    finally:
        driver.close()

    assert rates == {"put": 2.5, "seen": 0.0}


def test_a_driver_that_ends_gives_its_last_words(tmp_path: Path) -> None:
    """A peer that is not there is told as its interpreter told it."""
    driver = _driver(tmp_path, Path(sys.executable))
    try:
        with pytest.raises(DriverLost, match=r"No module named '(torch|lmcache)'"):
            driver.start(Notes())
    finally:
        driver.close()


def test_a_driver_that_crashes_in_a_round_gives_its_last_words(tmp_path: Path) -> None:
    """So does one that ends later."""
    driver = _driver(
        tmp_path, _python(tmp_path, PROGRAM.format(body='raise ValueError("spoiled")'))
    )
    try:
        driver.start(Notes())
        with pytest.raises(DriverLost, match="ValueError: spoiled"):
            driver.round(Notes())
    finally:
        driver.close()


def test_a_driver_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a deadline and leaves no process."""
    monkeypatch.setattr(talk, "ROUND_S", 1.0)
    monkeypatch.setattr(talk, "STOP_S", 1.0)
    driver = _driver(tmp_path, _python(tmp_path, PROGRAM.format(body="while True: pass")))
    try:
        driver.start(Notes())
        with pytest.raises(DriverLost, match="not ready within 1 s"):
            driver.round(Notes())
    finally:
        driver.close()

    assert not driver._child.alive


def test_a_driver_that_babbles_is_named(tmp_path: Path) -> None:
    """What is no JSON is no rate."""
    text = """
        import socket, sys, time
        talk = socket.socket(socket.AF_UNIX)
        talk.connect(sys.argv[1])
        talk.sendall(b"hello\\n")
        time.sleep(60)
    """
    driver = _driver(tmp_path, _python(tmp_path, text))
    try:
        with pytest.raises(DriverLost, match=r"hello.*no JSON"):
            driver.start(Notes())
    finally:
        driver.close()


# --- comparing -----------------------------------------------------------------------------------


def _case(rates: dict[str, float], disk: dict[str, Any]) -> Case:
    """A comparison of kvwise's real disk side with a peer that gives these rates."""
    size = {"object_bytes": LOAD.object_bytes, "count": LOAD.count, "at_once": LOAD.at_once}
    ours = {"what": "disk", "copies": False} | size | disk
    return Case("nixl", "disk", LOAD, "nixl_file", {"rates": rates}, ours, on_disk=True)


def _compared(tmp_path: Path, body: str, *, passes: int = 1, **disk: object) -> Found:
    """What comes of a comparison with a peer whose round is `body`."""
    python = _python(tmp_path, PROGRAM.format(body=body))
    found = Found()
    case = _case({"put": 1.0, "get": 4.0}, disk)
    compare(case, Ground({"nixl": python}, tmp_path, passes, Notes()), found)
    return found


def test_rows_hold_both_sides_and_the_yardstick(tmp_path: Path) -> None:
    """Each operation is a row, its ratio is kvwise / peer, and nothing stays on the disk."""
    found = _compared(tmp_path, 'return spec["rates"]', passes=3)
    rows: dict[str, Row] = {row["op"]: row for row in found.rows}

    assert found.skipped == []
    assert set(rows) == {"put", "get"}
    for op, rate in (("put", 1.0), ("get", 4.0)):
        row = rows[op]
        assert row["gbps"] == rate
        assert row["ratio"] == pytest.approx(row["kvwise_gbps"] / rate, abs=0.002)
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["memcpy_gbps"] > 0
        assert row["object_bytes"] == LOAD.object_bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "python"]


def test_modes_of_a_peer_are_held_against_one_side_of_ours(tmp_path: Path) -> None:
    """`fast put` and `slow put` are rows of two paths."""
    found = _compared(tmp_path, 'return {"fast put": 4.0, "slow put": 1.0}')

    assert [(row["path"], row["op"]) for row in found.rows] == [
        ("disk fast", "put"),
        ("disk slow", "put"),
    ]
    fast, slow = found.rows
    assert slow["ratio"] == pytest.approx(4 * fast["ratio"], abs=0.003)


def test_a_peer_that_crashes_is_skipped(tmp_path: Path) -> None:
    """Its last words are the reason, and there is no row of what came before."""
    found = _compared(tmp_path, 'raise RuntimeError("no device")')

    assert found.rows == []
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("nixl, disk, 300.0 KiB: nixl_file ended with code 1")
    assert "RuntimeError: no device" in found.skipped[0]


def test_a_fault_of_kvwise_is_never_skipped(tmp_path: Path) -> None:
    """What our own side cannot do fails the run, with its last words."""
    with pytest.raises(PeerError, match=r"(?s)own side failed.*KeyError: 'shelf'"):
        _compared(tmp_path, 'return spec["rates"]', what="shelf")


def test_a_comparison_that_needs_too_much_memory_is_skipped(tmp_path: Path) -> None:
    """It says how much it needs and does not start."""
    case = replace(_case({}, {}), memory_bytes=1 << 60)
    found = Found()
    compare(case, Ground({"nixl": Path("/nowhere")}, tmp_path, 1, Notes()), found)

    assert "of memory are needed" in found.skipped[0]


def test_every_peer_is_compared_in_the_order_asked_for() -> None:
    """Cases follow the peers, both sides get the same objects, and sets exceed a cache."""
    found = cases(Plan((2 * MIB, 16 * MIB), 512 * MIB, 5, ("nixl", "lmcache")))

    assert [case.peer for case in found] == sorted((c.peer for c in found), reverse=True)
    assert {case.peer for case in found} == {"nixl", "lmcache"}
    for case in found:
        if "count" in case.spec:
            assert case.spec["count"] == case.load.count
            assert case.load.total_bytes == 512 * MIB
        if "at_once" in case.spec and case.driver != "lmcache_bench":
            assert case.load.at_once * case.load.object_bytes == REQUEST_BYTES


def test_the_server_case_has_the_shape_that_it_names() -> None:
    """4096 tokens of 8 layers in 16-bit floats are 128 MiB in 16 objects."""
    assert SERVER.load.total_bytes == 128 * MIB
    assert SERVER.load.count == 16


# --- installing and options ----------------------------------------------------------------------


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_every_package_of_a_peer_is_pinned_once(peer: Peer) -> None:
    """Each lock names exact versions, and torch only as its CPU build."""
    lines = peer.lock.read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = [pin.partition("==")[0].lower() for pin in pins]

    assert all(pin.count("==") == 1 for pin in pins)
    assert len(names) == len(set(names))
    assert names == sorted(names)
    assert all(pin.endswith("+cpu") for pin in pins if pin.startswith("torch=="))
    assert any(pin.startswith(peer.name) and pin.endswith(peer.version) for pin in pins)


def test_an_absent_peer_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason has the command; a peer that is there, or was named, has no reason."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peer = PEERS["nixl"]

    assert "hint: kvwise bench peers --peer nixl --install" in peer.absent({})
    assert not peer.absent({"nixl": Path(sys.executable)})
    peer.folder.mkdir(parents=True)
    (peer.folder / STAMP).touch()
    assert not peer.absent({})
    assert peer.python({}) == peer.folder / "bin" / "python"


def test_a_library_that_the_system_lacks_is_named() -> None:
    """The loader's message gets the packages to install."""
    words = f"libglog.so.0: {MISSING_LIBRARY}: No such file or directory"

    assert "apt-get install" in PEERS["mooncake"].explain(words)
    assert PEERS["mooncake"].explain("other trouble") == "other trouble"


def test_sizes_are_written_as_they_are_read() -> None:
    """The command that is printed can be run again."""
    assert [spoken(size) for size in (2 * MIB, 720 * KIB)] == ["2MiB", "720KiB"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objects", "5000"], "cannot be compared"),
        (["--objects", "1GiB"], "cannot be compared"),
        (["--objects", "much"], "not a size"),
        (["--python", "nixl"], "is not NAME=PATH"),
        (["--python", "redis=/bin/sh"], "there is no peer 'redis'"),
        (["--python", "nixl=/nowhere/python"], "cannot be executed"),
        (["--disk", "/nowhere/at/all"], "is no folder"),
        (["--peer", "redis"], "redis"),
    ],
)
def test_wrong_options_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing starts, and the message has a hint."""
    code = cli.run(["bench", "peers", *arguments])
    said = capsys.readouterr().err

    assert code == 2
    assert message in said
    assert "hint:" in said


def test_a_run_gives_rows_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command beside a peer that gives fixed rates, kvwise's disk side real."""
    body = 'return {"put": 1.0, "get": 2.0}'
    python = _python(tmp_path, PROGRAM.format(body=body))
    arguments = ["--peer", "nixl", "--python", f"nixl={python}", "--objects", "8MiB"]
    code = cli.run(["bench", "peers", "--quick", "--json", "--disk", str(tmp_path), *arguments])
    result = json.loads(capsys.readouterr().out)

    assert code == 0
    assert result["skipped"] == []
    assert [(row["path"].split()[1], row["op"], row["gbps"]) for row in result["rows"]] == [
        ("io_uring", "put", 1.0),
        ("io_uring", "get", 2.0),
        ("libaio", "put", 1.0),
        ("libaio", "get", 2.0),
    ]
    assert any("quick" in note for note in result["notes"])


@pytest.mark.parametrize(("load", "notes"), [(0.0, 0), (1000.0, 1)])
def test_a_busy_machine_is_noted(load: float, notes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader must know when other work ran beside both sides."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))

    assert len(run._busy()) == notes


def test_the_table_marks_where_a_peer_is_faster() -> None:
    """People see rows, reasons and notes; a ratio below one stands out."""
    row = {"peer": "nixl", "path": "disk", "op": "put", "object_bytes": MIB, "memcpy_gbps": 9.0}
    row |= {"gbps": 2.0, "kvwise_gbps": 1.0, "ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6}
    result = Rows("peers", "", "", {}, [row], ["mooncake is absent"], ["the machine was busy"])
    with Console(width=120, record=True, force_terminal=True, file=io.StringIO()) as console:
        bench_peers.show(result, console)
    text = console.export_text(styles=True)

    assert "\x1b[33m0.50 (0.40 to 0.60)" in text
    assert "mooncake is absent" in text
    assert "the machine was busy" in text


def test_options_know_their_own_command(tmp_path: Path) -> None:
    """The command in the result is the one that would give it again."""
    python = Path(sys.executable)
    options = Options(("nixl",), {"nixl": python}, False, (2 * MIB,), 3, False, tmp_path)

    assert options.command == (
        f"kvwise bench peers --peer nixl --python nixl={python} --objects 2MiB --passes 3 "
        f"--disk {tmp_path}"
    )
    with pytest.raises(ConfigError):
        Options(("nixl",), {}, False, (1,), 3, False, tmp_path)
