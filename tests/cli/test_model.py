"""Model on the command line: the list, one model as table and JSON, and errors with a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.planner.catalogue import names
from tests.sim.trace.support import SAMPLE


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `kvwise`: exit code, output and errors."""
    code = cli.run(list(arguments))
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_list_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is on a line of its own with its bytes, and no line is too wide for a terminal."""
    code, out, _ = ran(capsys, "model")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}

    assert code == 0
    assert set(names()) <= set(lines)
    assert "327,680" in lines["llama-3.1-70b"]
    assert max(len(lines[name]) for name in names()) <= 80
    code, out, _ = ran(capsys, "model", "--json")
    assert [row["model"] for row in json.loads(out)] == names()


def test_one_model_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """What a rank holds stands beside the whole, in the table and in JSON."""
    code, out, _ = ran(capsys, "model", "llama-3.1-70b", "--tp", "8", "--tokens", "32768")
    assert code == 0
    assert "327,680 B" in out
    assert "40,960 B" in out
    assert "10.0 GiB" in out

    code, out, _ = ran(capsys, "model", "deepseek-v3", "--tp", "8", "--kv", "fp8", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["token_bytes"], told["rank_token_bytes"]) == (35_136, 35_136)
    assert [row["tokens"] for row in told["sequences"]] == [8_192, 32_768, 131_072]


def test_a_hybrid_says_what_a_snapshot_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The state of a kept prefix is told in bytes and in tokens."""
    _, out, _ = ran(capsys, "model", "kimi-k3")

    assert "428.6 MiB" in out
    assert "16,253 tokens" in out


def test_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with the names that are near."""
    code, _, err = ran(capsys, "model", "qwen3-31b")

    assert code == 2
    assert "qwen3-32b" in err


def test_a_trace_in_the_memory_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """`trace info --model` sizes capacities as the model's bytes would, and not beside them."""
    name, path = next(iter(SAMPLE.items()))
    assert name
    code, out, _ = ran(capsys, "trace", "info", str(path), "--model", "llama-3.1-70b", "--json")

    assert code == 0
    assert json.loads(out)["bytes_per_token"] == 327_680
    both = ("trace", "info", str(path), "--model", "qwen3-8b", "--bytes-per-token", "1KiB")
    code, _, err = ran(capsys, *both)
    assert code == 2
    assert "same thing" in err


def test_loading_beside_computing(capsys: pytest.CaptureFixture[str]) -> None:
    """A 70B model on eight GPUs: memory is some 56 times as quick as computing, one drive 1.8."""
    asked = ("model", "llama-3.1-70b", "--tp", "8", "--gpu", "h100-sxm", "--tokens", "8192")
    code, out, _ = ran(capsys, *asked, "--json")
    (length,) = json.loads(out)["loading"]["lengths"]

    assert code == 0
    assert length["speedup"]["dram-pcie5"] == pytest.approx(56, rel=0.02)
    assert length["speedup"]["nvme-gen5"] == pytest.approx(1.8, rel=0.02)
    code, out, _ = ran(capsys, *asked)
    assert "56x" in out
    assert "1.8x" in out


def test_a_latent_is_loaded_by_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight GPUs that need all of it load no sooner from memory than one does."""
    asked = ("model", "deepseek-v3", "--gpu", "h200-sxm", "--tokens", "32768", "--json")
    compute, speedup = {}, {}
    for ranks in ("4", "8"):
        _, out, _ = ran(capsys, *asked, "--tp", ranks)
        (length,) = json.loads(out)["loading"]["lengths"]
        compute[ranks], speedup[ranks] = length["compute_s"], length["speedup"]["dram-pcie5"]

    assert speedup["4"] / speedup["8"] == pytest.approx(compute["4"] / compute["8"])


def test_names_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tier may be called what would be markup to a terminal."""
    path = tmp_path / "mine.toml"
    path.write_text('[tier."[/x]"]\nabout = "odd"\nread_gb_per_s = 1\nwrite_gb_per_s = 1\n')
    asked = ("model", "llama-3.1-8b", "--gpu", "l40s", "--hardware", str(path))
    code, out, _ = ran(capsys, *asked)

    assert code == 0
    assert "[/x]" in out


def test_weights_and_ranks_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights larger than the GPUs are said, with how many it takes, and so are odd ranks."""
    code, out, _ = ran(capsys, "model", "llama-3.1-70b", "--gpu", "h100-sxm")
    assert code == 0
    assert "The weights do not fit: 141 GB in BF16" in out
    assert "It takes 2 such GPUs" in out
    _, out, _ = ran(capsys, "model", "llama-3.1-70b", "--gpu", "h100-sxm", "--tp", "8")
    assert "do not fit" not in out
    _, out, _ = ran(capsys, "model", "llama-3.1-70b", "--tp", "3")
    assert "3 ranks cannot share" in out


def test_more_stages_than_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """As many stages as layers are fine; one more has nothing to do and is refused."""
    assert ran(capsys, "model", "llama-3.1-8b", "--pp", "32")[0] == 0
    code, _, err = ran(capsys, "model", "llama-3.1-8b", "--pp", "33")

    assert code == 2
    assert "has 32 layers, which cannot fill 33 stages" in err


@pytest.mark.parametrize(
    ("model", "gpu"), [("llama-3.1-405b", "rtx-4090"), ("llama-3.1-70b", "l40s")]
)
def test_weights_that_are_far_too_large(
    model: str, gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text and JSON say so, however small the GPU is."""
    assert "The weights do not fit" in ran(capsys, "model", model, "--gpu", gpu)[1]
    _, out, _ = ran(capsys, "model", model, "--gpu", gpu, "--json")
    assert "It takes" in json.loads(out)["loading"]["weights"]["why_not"]


@pytest.mark.parametrize(
    ("model", "ranks", "kept", "size_gb"),
    [
        ("deepseek-v3", "8", "fp8", 671),
        ("gpt-oss-120b", "1", "fp4", 66),
        ("llama-3.1-70b", "2", "bf16", 141),
    ],
)
def test_weights_are_judged_as_they_are_kept(
    model: str, ranks: str, kept: str, size_gb: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint in FP8 or FP4 fits where one in BF16 would not, and nothing is said then."""
    _, out, _ = ran(capsys, "model", model, "--gpu", "h200-sxm", "--tp", ranks, "--json")
    weights = json.loads(out)["loading"]["weights"]

    assert weights["kept"] == kept
    assert weights["weights_gb"] == pytest.approx(size_gb, rel=0.03)
    assert not weights["why_not"]
