"""Sim over a trace on the command line: figures as text and JSON, sweeps, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kvwise import cli
from kvwise.cli import sim_writes
from kvwise.cli.sim import command
from kvwise.config import load
from kvwise.sim.replay.full import VARIANTS
from kvwise.sim.replay.profile import DEFAULT
from kvwise.sim.replay.writes import WriteRun, run_writes
from tests.sim.trace.support import SAMPLE, published

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulator.md"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of chats in a file."""
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    assert cli.run(["trace", "make", "chat", "--requests", "200", "-o", str(path)]) == 0
    return path


def ran(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Run `kvwise sim`: exit code, output and errors."""
    capsys.readouterr()
    code = cli.run(["sim", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run `kvwise sim --json`, which must succeed."""
    code, out, _ = ran(capsys, *arguments, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_one_run_has_its_figures_at_the_top(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One policy at one capacity: hit ratio, bounds, writes, seconds and a digest."""
    one = told(capsys, "--trace", trace, "--capacity-tokens", "30k", "--policy", "lru")

    assert (one["policy"], one["capacity_tokens"], one["capacity_blocks"]) == ("lru", 30_000, 58)
    assert one["hit_ratio"] == one["lru_hit_ratio"] < one["clairvoyant_hit_ratio"]
    assert one["gap_closed"] == 0
    assert 0 < one["blocks_written"] == one["input_blocks"] - one["hit_blocks"]
    assert one["seconds_saved"] > one["seconds_lost"] == 0
    assert one["requests_per_s"] > 0
    assert len(one["digest"]) == 32
    assert one["profile"]["name"] == DEFAULT


def test_the_policy_is_the_daemons(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs where no policy is named is what a daemon does without configuration."""
    one = told(capsys, "--trace", trace, "--capacity-tokens", "30k")
    assert one["policy"] == load(environ={}).evict.policy


def test_help_lists_every_option_once() -> None:
    """Headings leave no option out, and none is under two of them."""
    shown = CliRunner().invoke(command, ["--help"], prog_name="kvwise sim").output
    listed = re.findall(r"(?m)^  (--[a-z-]+)", shown.partition("Under faults")[2])
    names = [option.opts[0] for option in command.params if isinstance(option, click.Option)]
    assert sorted(listed) == sorted(names)
    assert {name for names in command.sections.values() for name in names} < {
        option.name for option in command.params
    }


def test_a_sweep_is_the_same_in_processes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several capacities are several runs, in any number of processes the same."""
    sizes = ("--trace", trace, "--capacity-tokens", "10k,30k", "--policy", "lru")
    one, two = (told(capsys, *sizes, "--jobs", jobs)["runs"] for jobs in ("1", "2"))

    assert [run["capacity_tokens"] for run in one] == [10_000, 30_000]
    assert [run["digest"] for run in one] == [run["digest"] for run in two]


def test_people_see_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a line for each run, and nothing in it is cut."""
    asked = ("--capacity-tokens", "1k,1M", "--plan", "load", "--policy", "lru,worth")
    code, out, _ = ran(capsys, "--trace", trace, *asked)

    assert code == 0
    assert "plan: load" in out
    assert len(re.findall("(?m)^worth [*] ", out)) == len(re.findall("(?m)^lru  ", out)) == 2
    assert "*: the policy of a daemon" in out
    assert "…" not in out


def test_writes_are_told_with_their_hits(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each rule and budget that fits a terminal, and in processes the same."""
    asked = ("--trace", trace, "--writes", "--budgets", "0.1", "--dram-share", "0.1")
    code, out, _ = ran(capsys, *asked)
    found = told(capsys, *asked, "--jobs", "2")

    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines()[3:])) <= 100
    runs = found["runs"]
    assert [run["budget"] for run in runs] == [None, 0.1] * 4
    assert len(re.findall("(?m)^worth [*] ", out)) == 2
    assert "*: what a\ndaemon does" in out
    assert all(f"{run['disk_blocks_written']:,}" in out for run in runs)
    assert all(f"{run['disk_bytes_written'] / 1e12:.3g}" in out for run in runs)
    assert all(f"{run['total_seconds_saved']:,.0f}" in out for run in runs)
    assert "ratio" in runs[-1]
    assert "ratio" not in runs[0]


def test_a_budget_may_be_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A size is the bytes of a day, and is shown as the share that it is."""
    asked = ("--trace", trace, "--writes", "--dram-share", "0.1", "--budgets", "0.5,3TB")
    runs = told(capsys, *asked)["runs"][:3]

    assert runs[0]["budget"] is None
    by_bytes = next(run for run in runs if run["budget_bytes_per_day"] == 3 * 10**12)
    by_share = next(run for run in runs if run["budget"] == 0.5)
    whole = by_share["budget_bytes_per_day"] / 0.5
    assert by_bytes["budget"] == pytest.approx(3 * 10**12 / whole)


def test_whoever_interrupts_sees_what_is_done(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is told when it is done; Ctrl-C in the third shows two rows, compared with none."""
    left = iter([True, True])

    def run(*arguments: Any) -> WriteRun:
        if not next(left, False):
            raise KeyboardInterrupt
        return run_writes(*arguments)

    monkeypatch.setattr(sim_writes, "run_writes", run)
    asked = ("--trace", trace, "--writes", "--dram-share", "0.1", "--budgets", "0.1")
    code, out, err = ran(capsys, *asked)

    assert code == cli.EXIT_INTERRUPTED
    assert len(re.findall(r"(?m)^ok \S.* no limit: [\d,]+ disk hits for \S+ TB written$", err)) == 2
    assert len(re.findall(r"(?m)^(all|second-touch), lru +no limit ", out)) == 2
    assert "worth *" not in out
    code, out, _ = ran(capsys, *asked, "--json")
    assert (code, out) == (cli.EXIT_INTERRUPTED, "")


@pytest.mark.slow
def test_the_example_on_the_page_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the published conversation trace, the page shows the line that is printed."""
    path = published("mooncake_conversation_trace.jsonl.gz")
    _, out, _ = ran(capsys, "--trace", path, "--capacity-tokens", "3M", "--policy", "lru")
    line = next(line for line in out.splitlines() if line.startswith("lru"))

    assert line.split() in [shown.split() for shown in PAGE.read_text().splitlines()]


def test_another_profile(tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a link slower than computing, loads are rare looks at it, and forced ones lose."""
    path = tmp_path / "slow.toml"
    path.write_text('name = "slow"\nlink_bytes_per_s = "1GB"\n')
    common = ("--trace", trace, "--capacity-tokens", "1M", "--profile", path)
    auto, load = (told(capsys, *common, "--plan", plan) for plan in ("auto", "load"))

    assert auto["hit_blocks"] == load["hit_blocks"] == load["loaded_blocks"] > 0
    assert auto["loads"] <= auto["requests"] / 64
    assert auto["seconds_lost"] < load["seconds_lost"] / 50
    assert load["seconds_lost"] > load["seconds_saved"] == 0


def test_a_cell_of_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell is told with its ratios, in processes as without; worse cells make the exit code."""
    cells = ("--grid", "--cell", "2048,1,50", "--cell", "2048,2,1")
    text = ran(capsys, *cells)
    one, two = (told(capsys, *cells, "--jobs", jobs) for jobs in ("1", "2"))

    assert text[0] == 0
    assert "0 of 2 cells are worse" in text[1]
    assert one == two
    assert [cell["mean_ratio"] for cell in one["cells"]] == pytest.approx([1, 1], abs=0.02)


def test_the_stack_of_the_page_runs(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example on the page is a stack, and is run beside all that it is to be held against."""
    example = re.search(r"```toml\n(\[engine\].+?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    path = tmp_path / "stack.toml"
    path.write_text(example[1])
    code, out, _ = ran(capsys, "--trace", trace, "--stack", path)
    found = told(capsys, "--trace", trace, "--stack", path, "--speed", "10", "--jobs", "2")

    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines()[3:])) <= 100
    shares = re.findall(r"(?m)^ *(?:hits|used from \w+) +(0\.\d+)", out)
    whole, *parts = map(float, shares)
    assert len(parts) == 3
    assert 0 < sum(parts) <= whole + 2e-4
    assert found["name"] == found["runs"][0]["name"] == "this stack"
    assert 0 < found["hit_ratio"] <= found["clairvoyant_hit_ratio"]
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p99"]
    assert found["seconds_saved"] >= 0
    assert [run["name"] for run in found["runs"]][1:] == list(VARIANTS[1:])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seed", "7", "--seeds", "5"], "--seed is one seed, and --seeds is about several"),
        (["--seed", "7", "--first", "5"], "--seed is one seed, and --first is about several"),
        (["--policy", "lru"], "--policy is for --trace, not for runs with faults"),
        ([str(SAMPLE["mooncake"])], "a file is for --trace"),
        (
            ["--trace", str(SAMPLE["mooncake"]), "--seed", "1"],
            "--seed is for runs with faults",
        ),
        (["--trace", str(SAMPLE["mooncake"])], "--capacity-tokens"),
        (["--grid", "--trace", str(SAMPLE["mooncake"])], "two different things"),
        (["--grid", "--policy", "lru"], "--policy is for --trace, not for --grid"),
        (["--speed", "2"], "--speed is for --stack, not"),
        (["--stack", str(PAGE)], "--stack needs --trace"),
        (["--trace", str(SAMPLE["mooncake"]), "--stack", str(PAGE)], "not valid TOML"),
        (["--trace", str(SAMPLE["mooncake"]), "--stack", "/dev/zero"], "more than 1048576 bytes"),
        (["--writes"], "--writes needs --trace"),
        (["--writes", "--trace", str(SAMPLE["mooncake"]), "--stack", str(PAGE)], "two different"),
        (
            ["--writes", "--trace", str(SAMPLE["mooncake"]), "--policy", "lru"],
            "--policy is for --trace, not for --writes",
        ),
        (
            ["--trace", str(SAMPLE["mooncake"]), "--budgets", "0.1"],
            "--budgets is for --writes, not for --trace",
        ),
        (["--writes", "--trace", str(SAMPLE["mooncake"])], "--dram-share: 0.03 of"),
        *(
            (["--trace", str(SAMPLE["mooncake"]), "--writes", "--budgets", text], f"{bad!r} is no")
            for text, bad in (("x", "x"), ("0", "0"), ("0.1,-1", "-1"), ("2TX", "2TX"), ("1,", ""))
        ),
        *(
            (["--writes", "--trace", str(SAMPLE["mooncake"]), "--disk-rate", rate], "--disk-rate")
            for rate in ("inf", "-1", "14GB/s", "0")
        ),
        (["--cell", "2048,1,1"], "--cell is for --grid, not"),
        (["--grid", "--cell", "2048,1"], "'2048,1' is no cell"),
        (["--grid", "--cell", "2048,0,1"], "clients"),
        (["--grid", "--cell", "2048,1,nan"], "GB/s"),
        (["--grid", "--cell", "8192,1,1e-300"], "a tier has 0.000001 to 1000000 GB/s"),
        (["--grid", "--cell", "9999999,1,1"], "a prefix has"),
        (["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "1e99"], "'1e99' is not from"),
        (["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "nan"], "'nan' is not from"),
        (["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "1,,2"], "'' is no number"),
        (["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "1T"], "with k, M, G at its"),
        (["--seeds", "9" * 30], "is not in the range 1<=x<=1000000"),
        (["--first", "9" * 30], "is not in the range"),
        (["--seed", "9" * 30], "is above"),
        (["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "9"], "hold no block of 512"),
        (["--trace", str(SAMPLE["azure"]), "--capacity-tokens", "1M"], "nothing of blocks"),
        (
            ["--trace", str(SAMPLE["mooncake"]), "--capacity-tokens", "1M", "--policy", "none"],
            "there is no 'none'",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong or misplaced option is an error that names it, with a hint."""
    code, out, err = ran(capsys, *arguments)

    assert code != 0
    assert not out
    assert complaint in err
    assert "hint: " in err
