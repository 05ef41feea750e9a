"""The files of a plan: nothing is lost by them, nothing old stays, all are there or none."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from kvwise import config as configuration
from kvwise.cli.plan_told import NAMED
from kvwise.planner.catalogue import fields_of
from tests.cli.test_plan import ran
from tests.sim.trace.support import SAMPLE
from tests.tiers.mounts import mounted

ASKED = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--hosts", "1")
PAYS = ("--dram", "40GB", "--drives", "0")


@pytest.fixture
def once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Prompts that never come back: nothing is to be started for them."""
    path = tmp_path / "once.jsonl"
    assert ran(capsys, "trace", "make", "oneshot", "--requests", "20", "-o", path)[0] == 0
    return path


@pytest.fixture
def often(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Prompts that come back, from more sessions than a GPU can keep."""
    path = tmp_path / "often.jsonl"
    assert ran(capsys, "trace", "make", "chat", "--requests", "1500", "-o", path)[0] == 0
    return path


@pytest.mark.parametrize("option", ["--html", "--stack", "--out"])
@pytest.mark.parametrize("read", ["--trace", "--hardware", "--recompute", "--model"])
def test_what_is_read_is_never_written_over(
    option: str, read: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where files may be replaced: whatever a plan reads is as it was."""
    mine, trace = tmp_path / "plan.json", tmp_path / "t.jsonl"
    for path in (mine, trace):
        path.write_text("mine")
    options: dict[str, str | Path] = {"--model": "qwen3-8b", "--trace": trace, read: mine}
    words: list[str | Path] = [word for pair in options.items() for word in pair]
    aim = tmp_path if option == "--out" else mine
    code, _, err = ran(capsys, "plan", "--gpu", "l40s", *words, option, aim, "--force")

    assert code == 2
    assert f"{option} would write over" in err
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--html", "there"], "there is there already hint: --force writes over it"),
        (["--stack", "there"], "there is there already hint: --force writes over it"),
        (["--out", "full"], "plan.html is there already hint: --force writes over it"),
        (["--html", "pipe", "--force"], "pipe is no regular file"),
        (["--html", "a", "--stack", "a"], "--html and --stack both write a"),
        (["--out", "full", "--stack", "full/stack.toml", "--force"], "both write"),
        (["--out", ""], "it is empty"),
        (["--html", ""], "it is empty"),
        (["--disk", "", "--drives", "1"], "it is empty"),
        (["--out", "there/plan"], "there is no folder"),
        (["--stack", "/proc/stack.toml"], "cannot write /proc/stack.toml"),
    ],
)
def test_files_that_cannot_be_written_are_refused_first(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the trace is read, which is none here, and everything is as it was."""
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    for name in ("there", "full/plan.html", "none.jsonl"):
        Path(name).write_text("mine")
    os.mkfifo("pipe")
    code, _, err = ran(capsys, *ASKED, "--trace", "none.jsonl", *options)

    assert code == 2
    assert said in err.replace("\n", " ")
    assert Path("there").read_text() == Path("full/plan.html").read_text() == "mine"
    assert Path("pipe").is_fifo()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"full", "none.jsonl", "pipe", "there"}


def test_nothing_of_an_older_plan_stays(
    once: Path, often: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder has the files of one plan; where there is no stack to write, that is an error."""
    out, stack = tmp_path / "out", tmp_path / "stack.toml"
    assert ran(capsys, *ASKED, *PAYS, "--trace", often, "--out", out, "--stack", stack)[0] == 0
    assert (out / "stack.toml").read_text() == stack.read_text()
    before = {path.name for path in out.iterdir()}

    asked = (*ASKED, "--trace", once, "--out", out)
    assert ran(capsys, *asked)[0] == 2
    assert {path.name for path in out.iterdir()} == before
    assert ran(capsys, *asked, "--force")[0] == 0
    assert before - {path.name for path in out.iterdir()} == {"stack.toml"}
    assert "client.url" not in (out / "vllm.sh").read_text()

    code, text, err = ran(capsys, *ASKED, "--trace", once, "--stack", tmp_path / "no", "--json")
    assert code == 1
    assert "no was not written: this plan comes to nothing" in err
    assert json.loads(text)["stack"] is None
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ['a\n[write]\nper_day = "1GiB"\n#.jsonl', "bad\udcff.jsonl"])
def test_a_name_stays_a_name(
    name: str,
    often: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a file or a directory is called sets nothing, and need not be text."""
    trace, out = often.rename(tmp_path / name), tmp_path / "out"
    cheap = tmp_path / "cheap.toml"
    cheap.write_text('[price.drive-tb]\namount = 50\nunit = "USD to buy a TB"\n')
    drive, socket = tmp_path / 'd\n[write]\nper_day = "2GiB"', "/run/s\n[x]"
    asked: list[str | Path]
    asked = [*ASKED, "--trace", trace, "--hardware", cheap, "--dram", "40GB", "--drives", "1"]
    asked += ["--drive-size", "4TB", "--disk", drive, "--socket", socket, "--out", out]
    monkeypatch.setattr(sys, "argv", ["kvwise", *map(str, asked)])
    code, _, _ = ran(capsys, *asked)

    assert code == 0
    assert len(list(out.iterdir())) == 5
    read = configuration.load(out / "stack.toml", environ={})
    assert read.write.per_day == 0
    assert read.serve.socket == socket
    assert read.disk.paths == (str(drive),)


def test_a_page_that_finds_no_room_is_not_there(
    once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A filesystem that is too small keeps what it had."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8k", "none") as small:
        code, _, err = ran(capsys, *ASKED, "--trace", once, "--html", small / "plan.html")

        assert code == 2
        assert "No space left" in err
        assert list(small.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--objective", "cost"], "--objective needs --search"),
        (["--ttft-max", "1"], "--ttft-max needs --search"),
        (["--budget", "5"], "--budget needs --search"),
        (["--jobs", "2"], "--jobs needs --search"),
        (["--quick"], "--quick needs --validate"),
        (["--times", "x.csv"], "--times needs --validate"),
        (["--search", "--out", "x"], "--out is for a plan, not for --search"),
        (["--validate", "--html", "x"], "--html is for a plan, not for --validate"),
        (["--validate", "--search"], "two different things"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: list[str], said: str, once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who asks for something gets it, or is told why not."""
    code, _, err = ran(capsys, *ASKED, "--trace", once, *options)

    assert code == 2
    assert said in err


def test_hardware_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the names of one's own file, wherever that is named."""
    mine = tmp_path / "mine.toml"
    mine.write_text('[tier.tape]\nabout = "slow"\nread_gb_per_s = 1\nwrite_gb_per_s = 1\n')
    code, out, _ = ran(capsys, "plan", "--list-hardware", "--json", "--hardware", mine)
    told = json.loads(out)

    assert code == 0
    assert told["tiers"]["tape"]["read_gb_per_s"] == 1
    assert {"gpus", "tiers", "prices"} == told.keys()
    assert "tape" in ran(capsys, "plan", "--list-hardware", "--hardware", mine)[1]


def test_what_tells_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe is not waited for, and lengths alone are refused with the formats that say more."""
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe cannot be read" in ran(capsys, *ASKED, "--trace", tmp_path / "pipe")[2]
    code, _, err = ran(capsys, *ASKED, "--trace", SAMPLE["azure"])

    assert code == 2
    assert "mooncake, mooncake-delta, weka" in err
    assert "burstgpt" not in err


def test_plans_are_no_traces(
    once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan is not put among the files of a trace, and one that lies there is named as such."""
    folder, plans = tmp_path / "traces", tmp_path / "plans"
    folder.mkdir()
    once.rename(folder / "once.jsonl")
    code, _, err = ran(capsys, *ASKED, "--trace", folder, "--out", folder)
    assert (code, [path.name for path in folder.iterdir()]) == (2, ["once.jsonl"])
    assert "--out would put plan.json among the files of the trace" in err

    assert ran(capsys, *ASKED, "--trace", folder, "--out", plans)[0] == 0
    for asked in ((*ASKED, "--trace"), ("trace", "info")):
        code, _, err = ran(capsys, *asked, plans)
        assert code != 0
        assert "plan.json: this is a plan that kvwise wrote, and no trace" in err.replace("\n", " ")


@pytest.mark.parametrize("is_whole", [False, True])
def test_scripts_serve_what_there_is(
    *, is_whole: bool, once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with weights is served; for a configuration alone the scripts say what to do."""
    model, out = tmp_path / "my model", tmp_path / "out"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(fields_of("qwen3-8b")))
    if is_whole:
        (model / "model.safetensors").touch()
    asked = ("--model", model / "config.json", "--gpu", "l40s", "--hosts", "1", "--trace", once)
    code, text, _ = ran(capsys, "plan", *asked, "--out", out)
    script = (out / "vllm.sh").read_text()
    named = shlex.quote(str(model)) if is_whole else "MODEL"

    assert code == 0
    assert f"vllm serve {named} --tensor" in script
    assert (f"# MODEL: {NAMED}" in script) is not is_whole
    assert ("Engines are told to serve MODEL" in text) is not is_whole
