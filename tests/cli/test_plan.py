"""Plan on the command line: a verdict for each level, JSON, and errors with a hint."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

from kvwise import cli
from kvwise import config as configuration
from kvwise.planner.catalogue import fields_of
from tests.live.support import SPACE, Served, asks

QUANTISED = {"quant_method": "fp8"}
SMALL = {
    "KVWISE_DRAM_SIZE": "64MiB",
    "KVWISE_DISK_SIZE": "1GiB",
    "KVWISE_DISK_MIN_FREE": "16MiB",
    "KVWISE_SERVE_METRICS": "",
}
"""What a machine for tests has, in place of what was planned for."""


def ran(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Run `kvwise`: exit code, output and errors."""
    code = cli.run([*map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def cheap(tmp_path: Path) -> Path:
    """Drives at a price at which they pay for these chats."""
    path = tmp_path / "cheap.toml"
    path.write_text('[price.drive-tb]\namount = 50\nunit = "USD to buy a TB"\n')
    return path


@pytest.fixture
def chats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A trace of chats."""
    path = tmp_path / "chat.jsonl"
    code, _, _ = ran(capsys, "trace", "make", "chat", "--requests", "1500", "-o", path)
    assert code == 0
    return path


def test_a_verdict_for_each_level(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON say the same, and how to start what they come to."""
    asked = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--dram", "64GB")
    code, out, _ = ran(capsys, *asked)
    assert code == 0
    assert max(map(len, out.split("\n\n", 2)[1].splitlines())) <= 80

    code, text, _ = ran(capsys, *asked, "--json")
    told = json.loads(text)
    assert code == 0
    named = [one["boundary"] for one in told["decisions"]]
    assert named == ["reuse", "quantise", "hbm", "dram", "nvme", "shared", "compression", "router"]
    assert all(name in out for name in named)
    assert told["token_bytes"] == 131_072
    assert told["hosts"] >= 1
    if told["serve"]:
        assert told["serve"] in out
    assert {one["mark"] for one in told["hardware"].values()} <= {"measured", "spec", "assumed"}


def test_a_page_that_asks_nobody(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page says what the text says, in one file without a request to anywhere."""
    page = tmp_path / "plan.html"
    asked = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--dram", "64GB")
    code, out, _ = ran(capsys, *asked, "--html", page, "--json")
    told, html = json.loads(out), page.read_text()

    assert code == 0
    assert all(escape(one["why"]) in html for one in told["decisions"])
    assert all(f"{one['hit_ratio']:.1%}" in html for one in told["sizes"])
    assert told["model"] in html
    assert escape(told["command"]) in html
    assert "http" not in html
    assert "<script" not in html
    assert not re.search(r"\de[+-]\d", html)
    code, _, err = ran(capsys, *asked, "--html", tmp_path / "none" / "plan.html")
    assert code == 2
    assert "cannot write" in err


def test_what_is_started_keeps_its_promise(
    chats: Path, cheap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drives are named with their write budget, memory is no more than what is needed."""
    made = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--json")
    asked = (*made, "--hardware", cheap)
    code, out, _ = ran(capsys, *asked, "--hosts", "1", "--dram", "40GB", "--drive-size", "1TB")
    told = json.loads(out)
    verdicts = {one["boundary"]: one["verdict"] for one in told["decisions"]}

    assert code == 0
    assert (verdicts["dram"], verdicts["nvme"]) == ("yes", "yes")
    assert told["serve"].startswith(
        "KVWISE_DISK_DWPD=1 KVWISE_DISK_WRITE_AMPLIFICATION=1.1 kvwise serve --dram 40GB --disk "
    )
    _, out, _ = ran(capsys, *asked, "--hosts", "1", "--dram", "100TB")
    assert "100000GB" not in json.loads(out)["serve"]


def test_memory_as_it_was_measured(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory that was measured to be slow turns its verdict; one that is fast leaves the link."""
    path = tmp_path / "host.toml"
    asked: list[str | Path]
    asked = ["plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--hosts", "1"]
    asked += ["--dram", "40GB", "--hardware", path, "--json"]
    verdicts = {}
    for rate, said in ((0.05, "as tier.host-dram was measured"), (400.0, "is no slower")):
        path.write_text(
            f'[tier.host-dram]\nabout = "here"\nread_gb_per_s = {rate}\nwrite_gb_per_s = {rate}\n'
            'per_gpu = true\nsource = "kvwise probe"\nmark = "measured"\n'
        )
        told = json.loads(ran(capsys, *asked)[1])
        verdicts[rate] = {one["boundary"]: one["verdict"] for one in told["decisions"]}["dram"]
        assert any(said in note for note in told["notes"])
    assert verdicts == {0.05: "no", 400.0: "yes"}


def test_more_memory_than_the_usual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever does not say how much memory hosts have is given more; others are told of it."""
    path, blocks = tmp_path / "long.jsonl", 100
    rows = (
        {
            "timestamp": 5_000 * number,
            "input_length": 512 * blocks,
            "output_length": 1,
            "hash_ids": [number % 100 * blocks + block for block in range(blocks)],
        }
        for number in range(300)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked: list[str | Path]
    asked = ["plan", "--model", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "8", "--hosts", "1"]
    asked += ["--trace", path, "--drives", "0", "--json"]
    usual, told = (json.loads(ran(capsys, *asked, *more)[1]) for more in ((), ("--dram", "1TB")))
    (given, said) = (
        next(one for one in found["decisions"] if one["boundary"] == "dram")
        for found in (usual, told)
    )

    size = usual["stack"]["dram"]["size"]
    assert 1_000 < int(size.removesuffix("GB")) <= 2_000
    assert usual["serve"].startswith(f"kvwise serve --dram {size} ")
    assert given["verdict"] == "yes"
    assert told["stack"] is None
    assert f"a month more: --dram {size}" in said["why"]


def test_a_model_that_does_not_fit_has_no_bill(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is billed for an engine that does not start, and the exit code says so."""
    asked = ("plan", "--model", "llama-3.1-70b", "--gpu", "l40s", "--trace", chats)
    code, out, _ = ran(capsys, *asked, "--html", tmp_path / "plan.html")

    assert code == 1
    assert "this engine does not start" in out
    assert "give more (--tp 4)" in " ".join(out.split())
    assert "a million tokens" not in out
    assert "The model does not fit" in (tmp_path / "plan.html").read_text()
    assert json.loads(ran(capsys, *asked, "--json")[1])["bill"] is None


def test_names_of_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    """All names that --gpu and --drive take are listed without a model or a trace."""
    code, out, _ = ran(capsys, "plan", "--list-hardware")

    assert code == 0
    assert all(name in out for name in ("h100-sxm", "l40s", "nvme-qlc", "cxl", "dram-pcie5"))


def test_a_stack_that_is_served_as_it_is(
    chats: Path,
    cheap: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon serves the file that was written, with sizes of this machine instead of that one."""
    out, socket, drive = tmp_path / "out", tmp_path / "kv.sock", tmp_path / "drive"
    asked: list[str | Path]
    asked = ["plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--hosts", "1"]
    asked += ["--dram", "40GB", "--drives", "1", "--drive-size", "4TB", "--out", out]
    asked += ["--hardware", cheap]
    code, _, _ = ran(capsys, *asked, "--disk", drive, "--socket", socket)
    told = json.loads((out / "plan.json").read_text())

    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        "plan.json",
        "plan.html",
        "stack.toml",
        "vllm.sh",
        "sglang.sh",
    }
    assert configuration.load(out / "stack.toml", environ={}).disk.dwpd == 1
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    line = [sys.executable, "-m", "kvwise", "serve", "--json", "--config"]
    line.append(str(out / "stack.toml"))
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    daemon = Served(process, str(socket), json.loads(process.stdout.readline()))
    try:
        assert daemon.facts["socket"] == str(socket)
        client = daemon.client()
        client.join(SPACE)
        assert asks(client)
        client.close()
    finally:
        assert daemon.end() == 0
    assert (drive / "budget.kvwise").exists()
    assert f'"client.url":"{socket}"' in (out / "vllm.sh").read_text()
    assert told["stack"]["disk"]["paths"] == [str(drive)]


def test_the_command_says_what_the_file_says(
    chats: Path, cheap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever starts the daemon by the command that is printed gets the configuration on file."""
    asked: list[str | Path]
    asked = ["plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--json"]
    asked += ["--hosts", "1", "--dram", "40GB", "--drive-size", "1TB", "--hardware", cheap]
    file = tmp_path / "stack.toml"
    _, out, _ = ran(capsys, *asked, "--socket", tmp_path / "my.sock", "--stack", file)
    words = shlex.split(json.loads(out)["serve"])
    verb = words.index("serve")
    environ = dict(word.split("=", 1) for word in words[: verb - 1])
    flags = list(zip(words[verb + 1 :: 2], words[verb + 2 :: 2], strict=True))
    given = {name: value for name, value in flags if name != "--disk"}
    overrides = {
        "dram": {"size": given.pop("--dram")},
        "disk": {
            "size": given.pop("--disk-size"),
            "paths": [value for name, value in flags if name == "--disk"],
        },
        "serve": {"socket": given.pop("--socket")},
    }

    assert not given
    typed = configuration.load(overrides=overrides, environ=environ)
    assert typed == configuration.load(file, environ={})


def test_one_trace_twice_and_none_in_time(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loads that nobody has are not planned for: twice a file, or all requests at once."""
    asked: list[str | Path]
    asked = ["plan", "--model", "qwen3-8b", "--gpu", "l40s", "--trace", chats]
    code, _, err = ran(capsys, *asked, "--trace", chats)
    assert code != 0
    assert "is given twice" in err
    rows = [json.loads(line) for line in chats.read_text().splitlines()]
    chats.write_text("".join(json.dumps(row | {"timestamp": 0}) + "\n" for row in rows))
    code, _, err = ran(capsys, *asked)
    assert code != 0
    assert "no rates to plan for\nhint: " in err


def test_weights_as_the_model_says(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --weights they are those of the configuration, and the heading says which."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields_of("qwen3-8b") | {"quantization_config": QUANTISED}))
    asked: list[str | Path]
    asked = ["plan", "--model", path, "--gpu", "l40s", "--trace", chats]
    for more, said in (((), "fp8"), (("--weights", "bf16"), "bf16")):
        _, out, _ = ran(capsys, *asked, *more)
        assert f"weights in {said}, KV in bf16 (" in out.splitlines()[0]
        assert ("the engines need a checkpoint that is" in out) is bool(more)


def test_gpus_without_a_link_are_noted(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several that exchange over the host's link are told so by plan and by model."""
    for words in (("plan", "--trace", chats, "--model"), ("model",)):
        asked: list[str | Path] = [*words, "llama-3.1-8b", "--gpu", "l40s"]
        for count, is_said in (("2", True), ("1", False)):
            _, out, _ = ran(capsys, *asked, "--tp", count)
            assert ("l40s exchange over their link to the host" in out) is is_said


def test_money_and_what_would_change_it(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON tell what levels cost and save, a million tokens cost, and what turns it."""
    asked = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--trace", chats, "--dram", "64GB")
    code, out, _ = ran(capsys, *asked)
    _, text, _ = ran(capsys, *asked, "--json")
    told = json.loads(text)

    assert code == 0
    assert "a million tokens of prompts" in out
    assert "what would change this" in out
    bill = told["bill"]
    busy = [bill[f"{name}_hosts_busy"] for name in ("without_cache", "own_cache", "with_levels")]
    assert busy == sorted(busy, reverse=True)
    gpus = told["gpus_per_host"]
    assert all(f" {one * gpus:.2f} " in out for one in busy)
    assert bill["own_cache_usd_per_million_tokens"] < bill["without_cache_usd_per_million_tokens"]
    assert all(one["as_of"] and one["from"] for one in told["prices"].values())
    (nvme,) = (one for one in told["decisions"] if one["boundary"] == "nvme")
    assert nvme["numbers"]["costs_usd_per_month"] > 0
    assert all(one["becomes"] != nvme["verdict"] for one in nvme["sensitivity"])


def test_unique_prompts_are_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is to be started for prompts that never come back."""
    path = tmp_path / "once.jsonl"
    ran(capsys, "trace", "make", "oneshot", "--requests", "200", "-o", path)
    asked = ("plan", "--model", "qwen3-8b", "--gpu", "h100-sxm", "--trace", path)
    code, out, _ = ran(capsys, *asked, "--html", tmp_path / "plan.html")

    assert code == 0
    assert "Do not offload" in (tmp_path / "plan.html").read_text()
    assert "Do not offload" in out
    assert "kvwise serve" not in out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--model": "gpt-5"}, "no model 'gpt-5'"),
        ({"--model": "deepseek-v4-pro"}, "not known of deepseek_v4"),
        ({"--gpu": "h900"}, "no GPU 'h900'"),
        ({"--drive": "floppy"}, "no drive 'floppy'"),
        ({"--drive": "dram-pcie5"}, "no drive 'dram-pcie5'"),
        ({"--gpu": "h200"}, "hint: there is h200-sxm"),
        ({"--dram": "much"}, "--dram"),
        ({"--dram": "1000"}, "1000 is 1,000 bytes; hint: write a unit"),
        ({"--drive-size": "7.68"}, "7.68 is 7 bytes; hint: write a unit"),
        ({"--tp": "3"}, "3 ranks cannot share"),
        ({"--disk": "/mnt/a"}, "hint: --drives 1"),
    ],
)
def test_wrong_words_are_named(
    changes: dict[str, str], said: str, chats: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be understood is refused with what there is."""
    options = {"--model": "qwen3-8b", "--gpu": "l40s", "--trace": str(chats), **changes}
    code, _, err = ran(capsys, "plan", *(word for pair in options.items() for word in pair))

    assert code == 2
    assert said in err
