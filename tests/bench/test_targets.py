"""Files that are written: what may be lost by it, and that nothing is left half done."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kvwise.bench.targets import require_target, require_targets, whole, write_whole
from kvwise.errors import ConfigError
from tests.tiers.mounts import mounted


def test_a_file_is_replaced_only_on_demand(tmp_path: Path) -> None:
    """What is there stays unless that is wished, and a place that cannot be written is refused."""
    path = tmp_path / "host.toml"
    require_target(path, may_replace=False)
    path.write_text("mine")

    with pytest.raises(ConfigError, match="hint: --force writes over it"):
        require_target(path, may_replace=False)
    require_target(path, may_replace=True)
    with pytest.raises(ConfigError, match="is a folder"):
        require_target(tmp_path, may_replace=True)
    with pytest.raises(ConfigError, match="there is no folder"):
        require_target(tmp_path / "a" / "b", may_replace=True)
    with pytest.raises(ConfigError, match=r"cannot write /proc/q\.toml"):
        require_target(Path("/proc/q.toml"), may_replace=True)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_file_is_a_target(tmp_path: Path) -> None:
    """Devices, pipes and links to them are none, whatever may be replaced."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")

    for path in (pipe, link, Path("/dev/null")):
        with pytest.raises(ConfigError, match="no regular file"):
            require_target(path, may_replace=True)


def test_what_is_read_is_no_target(tmp_path: Path) -> None:
    """Neither by another name, nor as a file of a folder that is read, nor twice for one file."""
    folder = tmp_path / "traces"
    folder.mkdir()
    one, link = folder / "a.jsonl", tmp_path / "link"
    one.write_text("{}")
    link.symlink_to(one)

    for path in (one, link, folder / ".." / "traces" / "a.jsonl"):
        for read in (one, folder):
            with pytest.raises(ConfigError, match=r"--html would write over .*, which is read"):
                require_targets([("--html", path)], [read], may_replace=True)
    pair = [("--html", tmp_path / "x"), ("--stack", folder / ".." / "x")]
    with pytest.raises(ConfigError, match=r"--html and --stack both write"):
        require_targets(pair, [tmp_path / "none"], may_replace=True)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Where one of several files finds no room, all are as they were before."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=32k", "none") as small:
        first, second = small / "first", small / "second"
        first.write_text("old")

        with pytest.raises(ConfigError, match=r"cannot write .*second: No space left"):
            write_whole({first: "new", second: "x" * 100_000})

        assert [path.name for path in small.iterdir()] == ["first"]
        assert first.read_text() == "old"


def test_work_that_breaks_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """Who writes may fail too: then there is neither a part of a file nor a temporary one."""
    with suppress(KeyError), whole(tmp_path / "host.toml") as file:
        file.write(b"half")
        raise KeyError

    assert list(tmp_path.iterdir()) == []


def test_every_text_can_be_written(tmp_path: Path) -> None:
    """Bytes of a file's name come out as they were, and what is no character as an escape."""
    for text, expected in (("good\udcff", b"good\xff"), ("good\ud800", b"good\\ud800")):
        write_whole({tmp_path / "host.toml": text})

        assert (tmp_path / "host.toml").read_bytes() == expected
