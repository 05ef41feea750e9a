"""What `doctor` says of nodes, sizes, seeds and engines. A broken host is a folder of its files."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.cli import engine_checks, node_checks, peer_checks, size_checks
from kvwise.cli.checks import Case, Grade, check_cpu
from kvwise.cli.peer_checks import Peer
from kvwise.host import Host, cpu_quotas
from kvwise.units import GIB, KIB, MIB
from tests.cli.test_doctor import case, fake_python, host, memory_host

NODES = "/sys/devices/system/node"
DRIVER = {"/proc/driver/nvidia/version": "NVRM version: 580.65.06"}
RDMA = {"/sys/class/infiniband/mlx5_0/node_type": "1: CA"}


@pytest.mark.parametrize(
    ("limit", "files", "expected"),
    [
        (resource.RLIM_INFINITY, RDMA, Grade.OK),
        (8 * MIB, {}, Grade.OK),
        (64 * KIB, {}, Grade.WARN),
        (8 * MIB, RDMA, Grade.WARN),
        (8 * GIB, RDMA, Grade.OK),
    ],
)
def test_locked_memory_is_held_against_what_registers_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    files: dict[str, str],
    expected: Grade,
) -> None:
    """The usual limit is enough without adapters, the arena must fit with one, less warns."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))

    found = node_checks.check_locked_memory(case(host(tmp_path, files), dram__size="4GiB"))

    assert found.grade is expected
    assert ("ulimit -l" in found.advice) is (expected is Grade.WARN)


@pytest.mark.parametrize(
    ("online", "allowed", "dram", "expected"),
    [
        ("0", "0", "4GiB", Grade.OK),
        ("0-1", "0-1", "4GiB", Grade.WARN),
        ("0-1", "1", "4GiB", Grade.OK),
        ("0-1", "1", "9GiB", Grade.FAIL),
    ],
)
def test_nodes_are_held_against_the_arena(
    tmp_path: Path, online: str, allowed: str, dram: str, expected: Grade
) -> None:
    """One node is fine, several are a warning, and one that is too small for the arena fails."""
    files = {f"{NODES}/node{n}/meminfo": f"Node {n} MemTotal: {8 * GIB // KIB} kB" for n in (0, 1)}
    files |= {f"{NODES}/online": online, "/proc/self/status": f"Mems_allowed_list:\t{allowed}"}

    found = node_checks.check_numa(case(host(tmp_path, files), dram__size=dram))

    assert found.grade is expected
    assert ("--membind=0" in found.advice) is (expected is Grade.WARN)


@pytest.mark.parametrize(("source", "expected"), [("tsc", Grade.OK), ("hpet", Grade.WARN)])
def test_slow_clocks_are_told(tmp_path: Path, source: str, expected: Grade) -> None:
    """A clock that takes a call to the hardware costs each copy its time."""
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

    assert node_checks.check_clock(Case(host=host(tmp_path, {path: source}))).grade is expected


@pytest.mark.pain("H5")
@pytest.mark.parametrize(
    ("files", "expected", "told"),
    [
        ({}, Grade.OK, "no NVIDIA driver"),
        (DRIVER, Grade.OK, "compatibility mode"),
        (DRIVER | {"/proc/driver/nvidia-fs/version": "2.24"}, Grade.OK, "nvidia-fs is loaded"),
        (
            DRIVER | {"/etc/cufile.json": '{"properties": {"allow_compat_mode": false}}'},
            Grade.WARN,
            "forbidden",
        ),
    ],
)
def test_direct_storage_is_known_at_the_start(
    tmp_path: Path, files: dict[str, str], expected: Grade, told: str
) -> None:
    """Whether GDS works, falls back or fails is said before anything hangs on it."""
    found = node_checks.check_direct_storage(replace(Case(host=host(tmp_path, files)), environ={}))

    assert found.grade is expected
    assert told in found.seen


@pytest.mark.pain("C10")
@pytest.mark.parametrize(
    ("modules", "expected"),
    [("nvidia 1 0 - Live\n", Grade.WARN), ("nvidia_peermem 1 0 - Live\n", Grade.OK)],
)
def test_a_missing_kernel_module_is_told(tmp_path: Path, modules: str, expected: Grade) -> None:
    """GPUs and RDMA adapters without nvidia-peermem are a warning."""
    on = host(tmp_path, DRIVER | RDMA | {"/proc/modules": modules})

    assert node_checks.check_remote_memory(Case(host=on)).grade is expected


def test_a_quota_of_processors_counts(tmp_path: Path) -> None:
    """A container that may use one processor is told, however many the host has."""
    files = {
        "/proc/self/cgroup": "0::/a/b",
        "/sys/fs/cgroup/a/cpu.max": "100000 100000",
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "/proc/cpuinfo": "flags\t\t: avx2\n",
    }
    on = host(tmp_path, files)

    assert list(cpu_quotas(on)) == [1.0]
    found = check_cpu(Case(host=on))
    assert found.grade is Grade.WARN
    assert found.advice


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.pain("M8")
@pytest.mark.parametrize(
    ("engines", "settings", "expected"),
    [
        (1, {}, Grade.OK),
        (2, {}, Grade.WARN),
        (8, {}, Grade.FAIL),
        (8, {"client__url": "/run/kvwise.sock"}, Grade.OK),
        (2, {"disk__paths": "/mnt", "disk__size": "1TiB"}, Grade.FAIL),
    ],
)
def test_sizes_are_multiplied_before_the_kernel_does(
    tmp_path: Path, engines: int, settings: dict[str, str], expected: Grade
) -> None:
    """Engines without a common daemon take memory each, and cannot share a directory."""
    on = memory_host(tmp_path, total=16 * GIB, available=16 * GIB)
    one = case(on, dram__size="4GiB", **settings)

    found = size_checks.check_scope(replace(one, engines=engines, ranks=4))

    assert found.grade is expected
    assert ("kvwise serve --dram 4.0GiB" in found.advice) is (expected is not Grade.OK)


@pytest.mark.pain("G4")
@pytest.mark.parametrize(
    ("each", "ranks", "disk", "expected"),
    [
        (0, 8, "", Grade.OK),
        (GIB, 8, "", Grade.OK),
        (4 * GIB, 8, "", Grade.FAIL),
        (4 * GIB, 8, "1TiB", Grade.WARN),
    ],
)
def test_a_cache_smaller_than_the_engines_own_is_refused(
    tmp_path: Path, each: int, ranks: int, disk: str, expected: Grade
) -> None:
    """All ranks together count; a disk that is larger makes it a warning."""
    settings = {"disk__paths": "/mnt", "disk__size": disk} if disk else {}
    one = case(Host(tmp_path), dram__size="16GiB", **settings)

    found = size_checks.check_device_cache(
        replace(one, ranks=ranks, device_cache_bytes=each, environ={})
    )

    assert found.grade is expected


def test_an_engine_on_a_processor_says_what_it_keeps(tmp_path: Path) -> None:
    """What vLLM on a CPU is told to keep is read where it is told."""
    one = replace(case(Host(tmp_path)), environ={size_checks.CPU_CACHE: "40"})

    assert "engines keep 40.0 GiB" in size_checks.check_device_cache(one).seen


def test_scale_comes_from_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Engines, ranks and what each keeps are options, and a size that is none is refused."""
    cli.run(["doctor", "--engines", "2", "--ranks", "4", "--device-cache", "100GiB"])
    said = " ".join(capsys.readouterr().out.split())
    assert "engines keep 800.0 GiB themselves (2 x 4 x 100.0 GiB)" in said

    assert cli.run(["doctor", "--device-cache", "much"]) == cli.EXIT_USAGE
    assert "not a size" in capsys.readouterr().err


# --- seeds, peers and versions -------------------------------------------------------------------


@pytest.mark.pain("K1")
@pytest.mark.parametrize(("seed", "expected"), [(None, Grade.OK), ("random", Grade.WARN)])
def test_a_hash_seed_is_told(seed: str | None, expected: Grade) -> None:
    """Whoever has a seed shares nothing with those that have none."""
    environ = {} if seed is None else {"PYTHONHASHSEED": seed}

    assert peer_checks.check_hash_seed(replace(Case(), environ=environ)).grade is expected


def test_a_running_engine_is_seen() -> None:
    """A process with the command line of a server is found, with its seed and algorithm."""
    words = ["vllm", "serve", "model", "--prefix-caching-hash-algo=sha256_cbor"]
    sleep = [sys.executable, "-c", "print(flush=True); input()", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    seeded = {**os.environ, "PYTHONHASHSEED": "7"}
    with subprocess.Popen(sleep, env=seeded, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        found = [peer for peer in peer_checks.peers(Host()) if peer.pid == process.pid]
        process.communicate(b"\n")

    assert found == [Peer(process.pid, "7", "sha256_cbor")]


def servers(*each: tuple[str, str]) -> dict[str, str]:
    """Files of a host on which engines with these seeds and options run."""
    files = {"/proc/1/cmdline": "init", "/proc/self/cmdline": "vllm\0serve"}
    for number, (seed, option) in enumerate(each, 10):
        files[f"/proc/{number}/cmdline"] = f"/usr/bin/vllm\0serve\0model\0{option}"
        files[f"/proc/{number}/environ"] = f"A=1\0{seed}"
    return files


@pytest.mark.pain("K1")
@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ((), Grade.OK),
        ((("", ""), ("", "--prefix-caching-hash-algo\0sha256")), Grade.OK),
        ((("PYTHONHASHSEED=0", ""), ("PYTHONHASHSEED=0", "")), Grade.OK),
        ((("PYTHONHASHSEED=0", ""), ("", "")), Grade.WARN),
        ((("", ""), ("", "--prefix-caching-hash-algo\0sha256_cbor")), Grade.WARN),
        ((("", "--prefix-caching-hash-algo=xxhash"),), Grade.FAIL),
    ],
)
def test_engines_that_share_nothing_are_told(
    tmp_path: Path, each: tuple[tuple[str, str], ...], expected: Grade
) -> None:
    """Different seeds or algorithms are a warning, an algorithm that is refused fails."""
    found = peer_checks.check_peers(Case(host=host(tmp_path, servers(*each))))

    assert found.grade is expected
    assert found.seen.count("process 1") == len(each)


@pytest.mark.pain("G5")
def test_another_kvwise_beside_the_engine_fails(tmp_path: Path) -> None:
    """Daemon and connector of different versions are found before they talk."""
    said = '{"vllm": "0.32.0", "torch": "2", "missing": [], "kvwise": "0.0.1"}'

    found = engine_checks.check_engine(Case(engine_python=fake_python(tmp_path, said)))

    assert found.grade is Grade.FAIL
    assert "kvwise 0.0.1 beside" in found.seen


def test_an_interpreter_beside_us_is_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that starts here is a file here, and no name to look for elsewhere."""
    fake_python(tmp_path, '{"vllm": "0.32.0", "torch": "2.13.0", "missing": []}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")

    found = engine_checks.check_engine(Case(engine_python=Path("./python")))

    assert found.grade is Grade.OK
    assert found.seen.startswith("vLLM 0.32.0")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "is no Python interpreter"),
        ("echo []", "is no Python interpreter"),
        ("echo no such option >&2; exit 3", "ended with 3 and said: no such option"),
    ],
)
def test_a_program_that_is_no_interpreter(script: str, said: str, tmp_path: Path) -> None:
    """What was started is told from what it is not, in words."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)

    found = engine_checks.check_engine(Case(engine_python=path))

    assert found.grade is Grade.FAIL
    assert found.seen.startswith(f"{path} {said}")


def test_whoever_waits_is_told_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before an interpreter is asked, which may take its time, it is said which, and how long."""
    path = fake_python(tmp_path, '{"vllm": "0.32.0", "torch": "2.13.0", "missing": []}')
    heard, ask = list[str](), engine_checks.ask

    def listening(python: str) -> engine_checks.Answer:
        heard.append(capsys.readouterr().err)
        return ask(python)

    monkeypatch.setattr(engine_checks, "ask", listening)
    cli.run(["doctor", "--engine-python", str(path), "--json"])

    assert f"asking {path} which packages its environment has, for 30 s at most" in heard[0]
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize("options", [["--device-cache", "9PiB"], ["--device-cache", "x"]])
def test_sizes_that_cannot_be(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No GPU keeps more than a configuration could ask for."""
    assert cli.run(["doctor", *options]) == cli.EXIT_USAGE
    assert "--device-cache" in capsys.readouterr().err
