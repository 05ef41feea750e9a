"""Trace on the command line: tables, JSON, files that are made, and errors with a hint."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.sim.trace.read import FORMATS
from tests.sim.trace.support import SAMPLE, load, published, reuse_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "traces.md"


def ran(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Run `kvwise trace`: exit code, output and errors."""
    code = cli.run(["trace", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_told_in_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures of every sample are printed, no table line is too wide, nothing is cut."""
    code, out, _ = ran(capsys, "info", SAMPLE[name], "--bytes-per-token", "320KiB")

    assert code == 0
    assert out.startswith(f"{name}: {len(load(SAMPLE[name]).requests)} requests in ")
    assert "…" not in out
    tables = [line for line in out.splitlines() if "   " in line]
    assert max(map(len, tables)) <= 80


def test_a_made_trace_is_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `make` writes, `info` reads: all requests, with sessions, turns and a curve."""
    path = tmp_path / "chat.jsonl"
    made = ran(capsys, "make", "chat", "--requests", "300", "--seed", "5", "-o", path)
    code, out, _ = ran(capsys, "info", path, "--json", "--bytes-per-token", "1000")
    told = json.loads(out)

    assert made[0] == code == 0
    assert "300 requests in" in made[2]
    assert (told["format"], told["requests"]) == ("mooncake", 300)
    assert told["sessions"] > 1
    assert told["bytes_per_token"] == 1000
    assert told["blocks"]["turns"][0]["first"] == 1
    assert told["blocks"]["curve"][-1]["hit_ratio"] == told["blocks"]["reuse"] > 0
    assert told["blocks"]["reuse"] * told["blocks"]["input_blocks"] == pytest.approx(
        reuse_of(load(path)).hit_blocks
    )


def test_capacities_are_told_as_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """1,000 tokens at 1 MiB each are 0.977 GiB; without a size there is no memory."""
    with_size = ran(capsys, "info", SAMPLE["mooncake"], "--bytes-per-token", "1MiB")[1]
    without = ran(capsys, "info", SAMPLE["mooncake"])[1]

    assert "1 k tokens" in with_size
    assert "0.977 GiB" in with_size
    assert "GiB" not in without


def test_made_files_are_the_same_for_a_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed gives the same bytes, compressed too; another seed gives others."""
    paths = [tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz", "c.jsonl", "d.jsonl")]
    for path, seed in zip(paths, "3334", strict=True):
        assert ran(capsys, "make", "rag", "oneshot:2", "--requests", "50", "--seed", seed,
                   "-o", path)[0] == 0  # fmt: skip
    packed, again, plain, other = (path.read_bytes() for path in paths)

    assert packed == again
    assert gzip.decompress(packed) == plain != other
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_parameters_are_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A parameter is set for one kind, or for each kind that has it."""
    path = tmp_path / "t.jsonl"
    arguments = ["--set", "turns=1", "--set", "agent.system_tokens=0", "--set", "starts=1"]
    code, _, _ = ran(capsys, "make", "chat", "agent", "--requests", "80", *arguments, "-o", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    assert code == 0
    assert len({row["session_id"] for row in rows}) == 80
    assert min(row["input_length"] for row in rows if "chat" in row["session_id"]) > 800
    assert min(row["input_length"] for row in rows if "agent" in row["session_id"]) < 800


def test_a_file_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file is left alone until it is forced."""
    path = tmp_path / "t.jsonl"
    path.write_text("precious")
    refused = ran(capsys, "make", "oneshot", "--requests", "1", "-o", path)

    assert refused[0] == 2
    assert "hint: --force writes over it" in refused[2]
    assert path.read_text() == "precious"
    assert ran(capsys, "make", "oneshot", "--requests", "1", "--force", "-o", path)[0] == 0
    assert path.read_text().startswith('{"timestamp":')


def test_a_trace_goes_to_the_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`-o -` prints what the file would hold, and makes no file of that name."""
    monkeypatch.chdir(tmp_path)
    words = ["trace", "make", "chat", "--requests", "20", "-o"]
    assert cli.run([*words, "t.jsonl"]) == 0
    capfdbinary.readouterr()
    assert cli.run([*words, "-"]) == 0

    assert capfdbinary.readouterr().out == Path("t.jsonl").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_only_a_file_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Devices, pipes and folders stay what they are; a link stays a link, its file is written."""
    os.mkfifo(tmp_path / "pipe")
    link, aim = tmp_path / "link", tmp_path / "aim"
    aim.write_text("old")
    link.symlink_to(aim)
    words = "make", "oneshot", "--requests", "1", "--force", "-o"
    for bad in (tmp_path / "pipe", tmp_path / "missing" / "t.jsonl"):
        code, _, said = ran(capsys, *words, bad)
        assert (code, "hint:" in said) == (2, True)
    assert (tmp_path / "pipe").is_fifo()
    assert ran(capsys, *words, link)[0] == 0

    assert link.is_symlink()
    assert aim.read_text().startswith('{"timestamp":')


def test_nothing_beside_the_file_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What happens to have the name that a half-written file could have is not ours."""
    beside = tmp_path / "t.jsonl.part"
    beside.write_text("mine")
    assert ran(capsys, "make", "oneshot", "--requests", "1", "-o", tmp_path / "t.jsonl")[0] == 0

    assert beside.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl", "t.jsonl.part"]


def test_sessions_that_are_cut_off_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short trace has shorter sessions than `turns` says, and whoever made it is told so."""
    path = tmp_path / "t.jsonl"
    _, _, err = ran(capsys, "make", "agent", "oneshot", "--requests", "3000", "-o", path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = [row["session_id"] for row in rows]
    agents = [name for name in names if name.startswith("agent")]
    mean = len(agents) / len(set(agents))

    assert f"3000 requests in {path}, of {len(set(names))} sessions" in err
    assert f"agent: {mean:.1f} requests a session and not 40, since the end" in err
    assert "oneshot:" not in err

    _, _, err = ran(capsys, "make", "oneshot", "--requests", "9", "--force", "-o", path)
    assert err.splitlines() == [f"ok 9 requests in {path}, of 9 sessions"]


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["chat", "oneshoot"], "there is no kind 'oneshoot'", "did you mean 'oneshot'?"),
        (["chat:0"], "a share is a number above 0", "chat:0.5 is half"),
        (["chat:nan"], "a share is a number above 0", "chat:0.5 is half"),
        (["chat:x"], "a share is a number above 0", "chat:0.5 is half"),
        (["chat", "--set", "turn=3"], "there is no parameter 'turn'", "did you mean 'turns'?"),
        (["chat", "--set", "rag.zipf=1"], "there is no parameter 'rag.zipf'", ""),
        (["chat", "--set", "turns"], "'turns' sets nothing", "--set turns=VALUE"),
        (["chat:1", "chat:2"], "chat is named twice", "chat:2 is twice as much of it"),
        (["chat", "--set", "turns=0"], "turns=0: not a number from 1 to 10000", ""),
        (["chat", "--set", "turns=nan"], "turns=nan: not a number from 1 to 10000", ""),
        (["chat", "--requests", "0"], "0 is not in the range", ""),
        (["chat", "--requests", "many"], "'many' is not a valid integer", ""),
    ],
)
def test_what_cannot_be_made_is_refused(
    arguments: list[str],
    error: str,
    hint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong kinds, shares and parameters are usage errors that say what was meant."""
    path = tmp_path / "t.jsonl"
    code, _, err = ran(capsys, "make", "--requests", "5", "-o", path, *arguments)

    assert code == 2
    assert error in err
    assert hint in err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--bytes-per-token", "large"], "not a size: 'large'"),
        (["--bytes-per-token", "0"], "'0' is no size of a token"),
        (["--start-every", "nan"], "'nan' is not a finite number"),
        (["--start-every", "-1"], "-1.0 is not in the range"),
        (["--format", "mooncakes"], "'mooncakes' is not one of"),
        (["--block-tokens", "0"], "0 is not in the range"),
        (["--pace", "fast"], "'fast' is not one of"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values that cannot be are usage errors, before anything is read."""
    code, out, err = ran(capsys, "info", SAMPLE["mooncake"], *arguments)

    assert (code, out) == (2, "")
    assert error in err


def test_a_bad_line_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no trace is an error on two lines: where and what, and what to do."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": []}\n')
    code, out, err = ran(capsys, "info", path, "--block-tokens", "4")

    assert (code, out) == (1, "")
    assert f"error: {path}:1: field hash_ids: 0 blocks do not make 9 tokens at 4 a block\n" in err
    assert "hint: --block-tokens says another block size" in err


def test_hostile_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a file calls its models is printed without what a terminal would obey."""
    path = tmp_path / "t.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens\n1,\x1b[31m[red],5,5\n")
    code, out, _ = ran(capsys, "info", path)

    assert code == 0
    assert "?[31m[red] 1" in out
    assert "\x1b" not in out


def test_recorded_sessions_start_when_they_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--start-every`, `--in-turn` and `--pace` change how long a trace takes."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(SAMPLE["weka"].read_bytes())
    spans = [
        json.loads(ran(capsys, "info", tmp_path, "--json", *options)[1])["span_s"]
        for options in (
            [], ["--start-every", "100"], ["--in-turn"], ["--pace", "think"],
            ["--pace", "scaled", "--api-factor", "2"],
        )
    ]  # fmt: skip

    assert spans == [30.0, 130.0, 61.0, 28.0, 32.0]


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The example in the documentation is the output of today, figure by figure."""
    path = published("mooncake_conversation_trace.jsonl.gz")
    code, out, _ = ran(capsys, "info", path, "--bytes-per-token", "320KiB")

    assert code == 0
    assert out in PAGE.read_text()


@pytest.mark.parametrize("verb", ["info", "make"])
def test_the_verbs_help_themselves(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a help page with examples, and what it knows by name."""
    code, out, _ = ran(capsys, verb, "--help")

    assert code == 0
    assert f"kvwise trace {verb} " in out
    assert ("mooncake-delta" if verb == "info" else "document_tokens") in out
