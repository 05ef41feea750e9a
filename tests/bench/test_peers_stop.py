"""A comparison that cannot begin, or is stopped on its way, says so and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.bench.peers.installs import PEERS
from kvwise.bench.progress import Terminal
from tests.bench.test_peers import PROGRAM, _python


def peers(folder: Path, *arguments: str) -> int:
    """Run the bench, a short one."""
    return cli.run(["bench", "peers", "--quick", "--disk", str(folder), *arguments])


@pytest.fixture
def rigged(tmp_path: Path) -> list[str]:
    """Options that name a peer with fixed rates, which is compared twice."""
    python = _python(tmp_path, PROGRAM.format(body='return {"put": 1.0, "get": 2.0}'))
    return ["--peer", "nixl", "--python", f"nixl={python}", "--objects", "8MiB"]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ([], "`kvwise bench peers --install` (3.1 GiB)"),
        (["--peer", "nixl"], "`kvwise bench peers --peer nixl --install` (1.2 GiB)"),
    ],
)
def test_nobody_to_compare_with_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chosen: list[str],
    told: str,
) -> None:
    """A machine without peers gets the command that changes it, and no empty table."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert peers(tmp_path, *chosen) == cli.EXIT_FAILED

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: nothing to compare; run {told}\n"


def test_a_peer_that_is_absent_beside_others_is_skipped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rigged: list[str],
) -> None:
    """What is there is compared; what is not has its reason and a hint."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert peers(tmp_path, *rigged, "--peer", "mooncake", "--json") == 0

    said = capsys.readouterr()
    result = json.loads(said.out)
    assert len(result["rows"]) == 4
    assert ["Mooncake Store is not installed" in reason for reason in result["skipped"]] == [True]
    assert "step 2 of 2: nixl, disk, libaio O_DIRECT, 8.0 MiB" in said.err


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupt_gives_the_rows_so_far(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rigged: list[str],
    as_json: bool,
) -> None:
    """Minutes of measuring are not thrown away, and the exit code is still that of Ctrl-C."""
    note = Terminal.note

    def interrupted(progress: Terminal, text: str) -> None:
        if text.startswith("step 2 of 2"):
            raise KeyboardInterrupt
        note(progress, text)

    monkeypatch.setattr(Terminal, "note", interrupted)

    assert peers(tmp_path, *rigged, *(["--json"] if as_json else [])) == cli.EXIT_INTERRUPTED

    out = capsys.readouterr().out
    assert "stopped after 1 of 2 comparisons" in out
    if as_json:
        assert [row["op"] for row in json.loads(out)["rows"]] == ["put", "get"]
    else:
        assert "kvwise / peer" in out


def test_an_interrupt_before_the_first_row_shows_no_table(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rigged: list[str],
) -> None:
    """There is nothing to show then, and nothing to say about ratios."""

    def interrupted(progress: Terminal, text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Terminal, "note", interrupted)

    assert peers(tmp_path, *rigged) == cli.EXIT_INTERRUPTED

    out = capsys.readouterr().out
    assert "stopped after 0 of 2 comparisons" in out
    assert "kvwise / peer" not in out


def test_what_an_install_takes_is_less_than_it_needs() -> None:
    """The room that is asked for holds what stays."""
    assert all(0 < peer.takes_bytes < peer.need_bytes for peer in PEERS.values())
