"""A plan as somebody sees it who has never seen one: help, heading, bill, and the front page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import ClassVar

import click
import pytest

from kvwise import cli
from kvwise.cli.options import Sectioned
from kvwise.cli.plan import command
from tests.cli.test_plan import chats, ran
from tests.sim.trace.support import published

__all__ = ["chats"]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES_MAX = 6
SHARED = ("plan", "--model", "qwen3-235b-a22b", "--gpu", "h200-sxm", "--hosts", "1", "--trace")
"""Four KV heads: eight GPUs hold each twice, and four of them once."""


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which help is as wide as it may be."""
    monkeypatch.setenv("COLUMNS", "100")


def test_help_is_listed_by_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option stands once under a heading, first those that a plan needs."""
    assert cli.run(["plan", "--help"]) == 0
    page = capsys.readouterr().out
    headings = re.findall(r"^(\S[^:\n]+):$", page, re.MULTILINE)
    listed = re.findall(r"^  (--?[a-z-]+)", page, re.MULTILINE)
    given = {one.opts[0] for one in command.params}

    assert headings[0] == "What to plan for"
    assert listed[:4] == ["--model", "--gpu", "--tp", "--trace"]
    assert len(headings) > 5
    assert sorted(listed) == sorted({*given, "-h"})
    assert "<=x<=" not in page
    assert 1 < page.split("Examples:")[1].count("kvwise plan") <= EXAMPLES_MAX


def test_help_says_who_needs_what(capsys: pytest.CaptureFixture[str]) -> None:
    """A test of the planner and a list of names need no model, and help says so."""
    cli.run(["plan", "--help"])
    page = " ".join(capsys.readouterr().out.split())

    assert page.count("[required, but for --validate and --list-hardware]") == 3
    assert "[required]" not in page


class Small(Sectioned):
    """A command with one option."""

    sections: ClassVar = {"One": ("one",)}
    rest: ClassVar = "Rest"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (click.Option(["--one"], type=click.IntRange(0, 9), help="What."), "What."),
        (
            click.Option(["--one"], type=click.IntRange(0, 9), help="What.", required=True),
            "What.  [required]",
        ),
        (
            click.Option(["--one"], type=click.FloatRange(0, 1), default=1.0, show_default=True),
            "[default: 1.0]",
        ),
        (click.Option(["--one"], type=click.IntRange(1), help="What."), "What."),
        (click.Option(["--one"], help="What  [a; b]."), "What  [a; b]."),
    ],
)
def test_help_without_ranges(one: click.Option, said: str) -> None:
    """Ranges are left to the message that refuses a value; everything else stays."""
    small = Small("small", params=[one])
    line = small.get_help(click.Context(small)).split("--one")[1].split("\n\n")[0]

    assert line.endswith(said)


def test_bytes_that_ranks_hold_twice(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The heading says both numbers where GPUs hold copies, and one where they do not."""
    for ranks, held in (("8", 385_024), ("4", 192_512)):
        code, text, _ = ran(capsys, *SHARED, chats, "--tp", ranks, "--json")
        told = json.loads(text)
        _, out, _ = ran(capsys, *SHARED, chats, "--tp", ranks)
        assert code == 0
        assert (told["token_bytes"], told["token_bytes_on_gpus"]) == (192_512, held)
        assert ("385,024 on the GPUs, as ranks hold copies" in out) is (ranks == "8")
        assert "192,512 bytes a token" in out


def test_what_gpus_cost_beside_what_is_saved(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Terminal and page show the price of an hour, each part of the bill, and all GPUs' price."""
    asked = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--hosts", "2")
    page = tmp_path / "plan.html"
    _, out, _ = ran(capsys, *asked, "--html", page)
    told = json.loads(ran(capsys, *asked, "--json")[1])
    bill = told["bill"]

    assert bill["gpus"] == 2
    assert bill["all_gpus_usd_per_month"] == pytest.approx(2 * 730 * bill["gpu_hour_usd"])
    for text in (out, page.read_text()):
        assert f"An hour of one l40s is ${bill['gpu_hour_usd']:.2f}, memory $14 a GB" in text
        assert f"Both GPUs are ${bill['all_gpus_usd_per_month']:,.0f} a month" in text
        assert "saved by levels" in text
        assert "do not add up" in text


def test_shares_that_differ_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where long prompts come back and short ones do not, computing is more than blocks."""
    path, blocks = tmp_path / "long.jsonl", 200
    long = [{"input_length": 512 * blocks, "hash_ids": list(range(blocks))}] * 4
    short = [{"input_length": 512, "hash_ids": [blocks + number]} for number in range(3 * blocks)]
    rows = [
        {"timestamp": 1_000 * number, "output_length": 1, **one}
        for number, one in enumerate([*long, *short])
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", path, "--json")
    reuse = json.loads(ran(capsys, *asked)[1])["decisions"][0]

    assert reuse["numbers"]["of_computing"] > reuse["numbers"]["reuse"] + 0.05
    assert reuse["why"].endswith("as it attends to all of them")


SOCKET = re.compile(r"/\S+/kvwise\.sock")
"""Where a daemon listens depends on who asks."""


def shown_in(page: Path, out: str) -> str:
    """What a page says that a plan prints, and does not; empty where all of it is in its order."""
    block = re.search(r"^\$ kvwise plan .+\n((?:.*\n)+?)```$", page.read_text(), re.MULTILINE)
    assert block is not None
    printed = SOCKET.sub("SOCKET", "\n".join(line.rstrip() for line in out.splitlines()))
    parts, at = re.split(r"^ *\.\.\.$\n", SOCKET.sub("SOCKET", block[1]), flags=re.MULTILINE), 0
    assert len(parts) > 1
    for part in parts:
        at = printed.find(part.strip("\n"), at)
        if at < 0:
            return part
    return ""


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "plan.md"])
def test_pages_show_what_is_printed(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plan on a page is what its command prints, but for what dots stand for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    text = page.read_text()
    asked = re.search(r"^\$ kvwise (plan .+)$", text, re.MULTILINE)
    made = re.search(r"^kvwise (trace make .+)$", text, re.MULTILINE)
    assert asked is not None
    words = shlex.split(asked[1])
    if made is not None:
        assert ran(capsys, *shlex.split(made[1]))[0] == 0
    else:
        (tmp_path / words[-1]).symlink_to(published(words[-1]))
    code, out, _ = ran(capsys, *words)

    assert code == 0
    assert shown_in(page, out) == ""
