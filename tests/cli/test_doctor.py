"""Owns the tests of `kvwise doctor`, on this host and on broken ones. It trusts no real setting.

A broken host is a folder with the files that a kernel would show.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kvwise import cli, config
from kvwise.cli import checks, disk_checks, doctor, engine_checks
from kvwise.cli.checks import Case, Finding, Grade
from kvwise.host import Host, control_group_limits
from kvwise.units import GIB, KIB, MIB

MEMINFO = """MemTotal:       {total} kB
MemAvailable:   {available} kB
HugePages_Free:     {huge}
Hugepagesize:       2048 kB
"""


def host(root: Path, files: dict[str, str]) -> Host:
    """A host that shows exactly these files."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def memory_host(root: Path, *, total: int, available: int, huge: int = 0) -> Host:
    """A host with that much memory, in bytes, and so many free huge pages."""
    text = MEMINFO.format(total=total // KIB, available=available // KIB, huge=huge)
    return host(root, {"/proc/meminfo": text})


def case(root: Host | Path, **settings: str | int) -> Case:
    """A configuration with these settings (`dram__size` is dram.size) on a host."""
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    on = root if isinstance(root, Host) else Host(root)
    return Case(config.load(overrides=overrides, environ={}), on)


# --- the host ------------------------------------------------------------------------------------


def test_this_host_is_examined_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """On a real host every check gives a finding, and the exit code says whether one failed."""
    code = cli.run(["doctor", "--json"])

    found = json.loads(capsys.readouterr().out)
    names = [finding["name"] for finding in found["findings"]]
    assert {"python", "kernel", "memory", "huge pages", "disk", "engine", "gpu"} <= set(names)
    assert sum(found["counts"].values()) == len(names)
    assert code == int(found["counts"]["fail"] > 0)


def test_python_and_kernel_of_the_tests_are_good() -> None:
    """What runs this test can run kvwise."""
    here = Case()

    assert checks.check_python(here).grade is Grade.OK
    assert checks.check_kernel(here).grade is Grade.OK


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 is too old, and the advice says what is needed."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))

    found = checks.check_python(Case())

    assert found.grade is Grade.FAIL
    assert "3.11" in found.advice


def test_a_sandbox_without_memfd_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that forbids memfd_create fails with the kernel's own words."""

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)

    found = checks.check_kernel(Case())

    assert found.grade is Grade.FAIL
    assert "Operation not permitted" in found.seen


def test_one_core_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A single core is allowed and warned about."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    on = host(tmp_path, {"/proc/cpuinfo": "flags\t\t: sse avx2\n"})

    found = checks.check_cpu(Case(host=on))

    assert found.grade is Grade.WARN
    assert "1 core" in found.seen


@pytest.mark.pain("M8")
@pytest.mark.parametrize(
    ("total", "available", "expected"),
    [
        (64 * GIB, 32 * GIB, Grade.OK),
        (64 * GIB, 2 * GIB, Grade.WARN),
        (2 * GIB, 2 * GIB, Grade.FAIL),
    ],
)
def test_memory_is_held_against_the_arena(
    tmp_path: Path, total: int, available: int, expected: Grade
) -> None:
    """An arena that fits is fine, one that needs swap is a warning, one above the total fails."""
    on = memory_host(tmp_path, total=total, available=available)

    assert checks.check_memory(case(on, dram__size="4GiB")).grade is expected


@pytest.mark.pain("M8")
@pytest.mark.parametrize(
    "files",
    [
        {"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/memory.max": str(GIB)},
        {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": str(GIB)},
        {
            "/proc/self/cgroup": "4:memory:/a\n0::/",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB),
        },
        {
            "/proc/self/cgroup": "7:cpu,memory:/a/b",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    ],
)
def test_a_control_group_is_a_limit(tmp_path: Path, files: dict[str, str]) -> None:
    """A container's limit counts, in both versions of control groups and from any parent."""
    memory_host(tmp_path, total=64 * GIB, available=64 * GIB)

    found = checks.check_memory(case(host(tmp_path, files), dram__size="4GiB"))

    assert found.grade is Grade.FAIL
    assert "control group limit 1.0 GiB" in found.seen


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    """The word `max` and version 1's huge number both mean that there is none."""
    memory_host(tmp_path, total=64 * GIB, available=64 * GIB)
    files = {
        "/proc/self/cgroup": "4:memory:/\n0::/",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "/sys/fs/cgroup/memory.max": "max",
    }

    assert list(control_group_limits(host(tmp_path, files))) == []


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(65536, 65536, Grade.OK), (1024, 1 << 20, Grade.WARN), (1024, 1024, Grade.FAIL)],
)
def test_open_files_are_held_against_segments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, soft: int, hard: int, expected: Grade
) -> None:
    """A limit below the number of segment files is seen before the daemon meets it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    examined = case(Host(), disk__paths=str(tmp_path), disk__size="1TiB", disk__segment="256MiB")

    assert checks.check_open_files(examined).grade is expected


def test_missing_shared_memory_warns(tmp_path: Path) -> None:
    """A host without /dev/shm is warned about."""
    assert checks.check_shared_memory(Case(host=Host(tmp_path))).grade is Grade.WARN


# --- socket and metrics --------------------------------------------------------------------------


def test_a_folder_of_everybody_warns(tmp_path: Path) -> None:
    """A socket in a folder that others can write could be replaced by them."""
    tmp_path.chmod(0o777)

    found = checks.check_socket(case(Host(), serve__socket=str(tmp_path / "s")))

    assert found.grade is Grade.WARN
    assert f"chmod 700 {tmp_path}" in found.advice


def test_a_folder_for_everybody_is_left_as_it_is(tmp_path: Path) -> None:
    """Others would lose /tmp if its mode were changed as told."""
    tmp_path.chmod(0o1777)

    found = checks.check_socket(case(Host(), serve__socket=str(tmp_path / "s")))

    assert found.grade is Grade.WARN
    assert "chmod" not in found.advice
    assert "directory of your own" in found.advice


def test_a_taken_port_fails(tmp_path: Path) -> None:
    """A metrics address that somebody else has is found before the daemon is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        found = checks.check_metrics(
            case(Host(), serve__metrics=address, serve__socket=str(tmp_path / "s"))
        )

    assert found.grade is Grade.FAIL
    assert address in found.seen


@pytest.mark.pain("S1")
@pytest.mark.parametrize(
    ("address", "expected"),
    [("", Grade.OK), ("127.0.0.1:0", Grade.OK), ("0.0.0.0:0", Grade.WARN)],
)
def test_metrics_beyond_loopback_warn(address: str, expected: Grade) -> None:
    """Metrics on loopback or switched off are fine, for everybody they are a warning."""
    assert checks.check_metrics(case(Host(), serve__metrics=address)).grade is expected


# --- the disk tier -------------------------------------------------------------------------------


def disk_case(path: Path, **settings: str | int) -> Case:
    """A small disk tier in one directory of this host."""
    sizes: dict[str, str | int] = {"disk__size": "1GiB", "disk__min_free": "1MiB"}
    return case(Host(), disk__paths=str(path), **(sizes | settings))


def by_name(examined: Case) -> dict[str, Finding]:
    """The findings about the disk tier by name."""
    return {found.name: found for found in disk_checks.check_disk(examined)}


def test_no_disk_tier_is_no_fault() -> None:
    """Without paths there is one finding, and it is not a warning."""
    assert [found.grade for found in disk_checks.check_disk(case(Host()))] == [Grade.OK]


def test_a_good_folder_passes_and_stays_as_it_was(tmp_path: Path) -> None:
    """A private directory on a local disk passes every check and holds nothing afterwards."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)

    found = by_name(disk_case(folder))

    assert found["disk folder"].grade is Grade.OK
    assert found["disk space"].grade is Grade.OK
    assert "4 KiB blocks" in found["disk access"].seen
    assert list(folder.iterdir()) == []


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    """A directory that does not exist yet is examined through its parent, which stays clean."""
    found = by_name(disk_case(tmp_path / "a" / "b"))

    assert "will be created" in found["disk folder"].seen
    assert found["disk access"].grade is not Grade.FAIL
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only directory fails, and nothing more is tried there."""
    monkeypatch.setattr(os, "access", lambda *_: False)

    found = by_name(disk_case(tmp_path))

    assert list(found) == ["disk folder"]
    assert found["disk folder"].grade is Grade.FAIL


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    """A path that is a file fails."""
    path = tmp_path / "file"
    path.write_text("")

    assert by_name(disk_case(path))["disk folder"].grade is Grade.FAIL


def test_a_folder_open_to_others_warns(tmp_path: Path) -> None:
    """What is cached tells what was asked, so a directory that others can read is warned about."""
    tmp_path.chmod(0o755)

    found = by_name(disk_case(tmp_path))["disk folder"]

    assert found.grade is Grade.WARN
    assert f"chmod 700 {tmp_path}" in found.advice


@pytest.mark.pain("D13")
@pytest.mark.parametrize("kind", ["tmpfs", "nfs4", "overlay"])
def test_a_filesystem_that_is_no_local_disk_warns(tmp_path: Path, kind: str) -> None:
    """Memory, networks and container layers are named for what they are."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    table = f"1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw shared:1 - {kind} x rw\n"
    on = host(tmp_path / "host", {"/proc/self/mountinfo": table})

    found = disk_checks.check_folder(folder, on)

    assert found.grade is Grade.WARN
    assert kind in found.seen


def test_the_cap_is_held_against_the_filesystem(tmp_path: Path) -> None:
    """A cap above the filesystem fails, one above what is free now warns."""
    found = os.statvfs(tmp_path)
    total = found.f_frsize * found.f_blocks
    free = found.f_frsize * found.f_bavail

    assert by_name(disk_case(tmp_path, disk__size=total))["disk space"].grade is Grade.FAIL
    assert by_name(disk_case(tmp_path, disk__size=free + GIB))["disk space"].grade is Grade.WARN


def test_two_paths_on_one_filesystem_share_it(tmp_path: Path) -> None:
    """The shares of paths on the same filesystem are added up."""
    two = f"{tmp_path}/a:{tmp_path}/b"

    found = disk_checks.check_space(
        tmp_path / "a", case(Host(), disk__paths=two, disk__size="4GiB", disk__min_free=MIB)
    )

    assert found.seen.startswith("4.0 GiB of disk.size")


@pytest.mark.pain("D13")
def test_a_filesystem_that_cannot_punch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filesystem that gives no space back is refused before the tier would refuse it."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("kvwise.tiers.directio.punch", unsupported)

    found = disk_checks.check_access(tmp_path, "buffered")

    assert found.grade is Grade.FAIL
    assert "Operation not supported" in found.seen


# --- engine and GPU ------------------------------------------------------------------------------


def fake_python(folder: Path, answer: str) -> Path:
    """A program that answers like an interpreter asked about its packages."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def answer(vllm: str, missing: str = "[]") -> str:
    """What an interpreter with this vLLM would say."""
    return f'{{"vllm": "{vllm}", "torch": "2.13.0", "missing": {missing}}}'


@pytest.mark.pain("G5")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer("0.32.0"), Grade.OK),
        (answer("0.33.1+cu130"), Grade.OK),
        (answer("0.31.2"), Grade.FAIL),
        (answer("0.34.0"), Grade.WARN),
        (answer(""), Grade.FAIL),
        (answer("0.32.0", '["kvwise", "xxhash"]'), Grade.FAIL),
        ("no json", Grade.FAIL),
    ],
)
def test_engine_versions_are_judged(tmp_path: Path, said: str, expected: Grade) -> None:
    """Known versions pass, older ones fail, newer ones warn, and an empty environment fails."""
    examined = Case(engine_python=fake_python(tmp_path, said))

    assert engine_checks.check_engine(examined).grade is expected


def test_a_missing_interpreter_fails(tmp_path: Path) -> None:
    """An interpreter that is not there fails with a hint at the option."""
    found = engine_checks.check_engine(Case(engine_python=tmp_path / "nowhere"))

    assert found.grade is Grade.FAIL
    assert "--engine-python" in found.advice


def test_the_question_is_answered_by_a_real_interpreter() -> None:
    """The running interpreter knows kvwise and what it depends on."""
    assert engine_checks.ask(sys.executable).missing == []


def test_a_gpu_is_announced_with_its_state(tmp_path: Path) -> None:
    """A host with an NVIDIA driver is told that the CUDA path is untried."""
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n"
    on = host(tmp_path, {"/proc/driver/nvidia/version": version})

    found = engine_checks.check_gpu(Case(host=on))

    assert found.grade is Grade.WARN
    assert "580.65.06" in found.seen


# --- showing -------------------------------------------------------------------------------------


def test_a_failure_is_shown_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed check appears as a word with its advice, and the exit code is 1."""
    path = tmp_path / "file"
    path.write_text("")

    code = cli.run(["doctor", "--disk-size", "1GiB", "--disk", str(path)])

    shown = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "fail disk folder" in shown
    assert "-> choose another path" in shown
    assert shown.endswith(" fail")


# --- what is shown -------------------------------------------------------------------------------


def shown(findings: list[Finding], width: int) -> str:
    """What a person sees on a terminal of that width."""
    out = io.StringIO()
    doctor.show(findings, Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_command_is_broken(width: int) -> None:
    """A command can be copied from a narrow terminal; only the words around it are wrapped."""
    echo = "`echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`"
    advice = f"as root: {echo}, or some other thing that is longer: `sysctl vm.nr_hugepages=2048`"
    found = Finding("huge pages", Grade.WARN, "none [at all]", advice)
    text = shown([found], width)

    assert echo in text
    assert "`sysctl vm.nr_hugepages=2048`" in text
    assert " ".join(text.replace("->", "").split()).startswith(
        f"warn huge pages none [at all] {advice}"
    )
    assert all(len(line) <= width for line in text.splitlines() if echo not in line)


def test_every_command_of_an_advice_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """What this host is advised to do can be copied at 80 columns."""
    cli.run(["doctor", "--dram", "64MiB"])
    text = capsys.readouterr().out
    cli.run(["doctor", "--dram", "64MiB", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]

    commands = [c for found in findings for c in re.findall(r"`[^`]+`", found["advice"])]
    assert [command for command in commands if command not in text] == []
    bare = re.compile(r"(?<!`)\b(sysctl|chmod|ulimit|install -d) ")
    assert [found["name"] for found in findings if bare.search(found["advice"])] == []
