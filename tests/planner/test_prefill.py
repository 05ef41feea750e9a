"""The estimate of computing a prompt beside published times, and hardware read from files."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import fields_of, find_model
from kvwise.planner.configs import model_of
from kvwise.planner.hardware import read_hardware
from kvwise.planner.prefill import ERROR_MEDIAN, ERROR_MOST, Prefill
from kvwise.planner.shapes import Precisions

TIMES = Path(__file__).with_name("prefill_times.csv")
"""Seconds that a public performance model gives for whole prompts, batch 1; KV in BF16."""
KNOWN = read_hardware()


def rows() -> list[dict[str, str]]:
    """All published times."""
    with TIMES.open() as file:
        return list(csv.DictReader(file))


def test_break_evens_follow_from_bytes_and_times() -> None:
    """Given the same times, the rate that loading must reach is the published one, on each row."""
    assert len(rows()) == 100
    for row in rows():
        tokens = int(row["tokens"])
        size_bytes = float(find_model(row["model"]).sequence_bytes(tokens, Precisions()))
        rate = size_bytes / float(row["prefill_ms"]) / 1e6

        assert rate == pytest.approx(float(row["node_gb_per_s"]), rel=0.01, abs=0.005)


def test_the_estimate_is_as_wrong_as_it_says() -> None:
    """The stated errors are those on the published times, rounded up and no more."""
    errors = []
    for row in rows():
        prefill = Prefill(find_model(row["model"]), KNOWN.gpu(row["gpu"]), int(row["tp"]))
        errors.append(
            abs(1000 * prefill.seconds(int(row["tokens"])) / float(row["prefill_ms"]) - 1)
        )

    assert ERROR_MEDIAN - 0.01 <= median(errors) <= ERROR_MEDIAN + 0.005
    assert sorted(errors)[90] <= 0.26
    assert ERROR_MOST - 0.05 <= max(errors) <= ERROR_MOST


def test_computing_grows_faster_than_the_prompt() -> None:
    """Attention is quadratic: twice the tokens take more than twice as long, on any GPU."""
    for gpu in KNOWN.gpus.values():
        prefill = Prefill(find_model("llama-3.1-8b"), gpu, 1)

        assert prefill.seconds(65_536) > 2 * prefill.seconds(32_768)
        assert prefill.seconds(32_768) > Prefill(find_model("llama-3.1-8b"), gpu, 2).seconds(32_768)


def test_a_model_without_figures_is_refused() -> None:
    """No estimate is made of work that is not known."""
    with pytest.raises(ConfigError, match="not known of deepseek_v4"):
        Prefill(find_model("deepseek-v4-pro"), KNOWN.gpu("h200-sxm"), 8)


def test_a_model_without_growing_kv_is_refused() -> None:
    """Where nothing grows with a prompt there is nothing to load."""
    states = {"model_type": "nemotron_h", "hybrid_override_pattern": "MM-M"}
    fields = {**fields_of("nemotron-h-56b"), **states, "num_hidden_layers": 4}

    with pytest.raises(ConfigError, match="no KV that grows"):
        Prefill(model_of("x", fields), KNOWN.gpu("h200-sxm"), 8)


def test_every_entry_says_where_it_is_from() -> None:
    """A date, a source, and how far to trust it."""
    gpus = [gpu.origin for gpu in KNOWN.gpus.values()]
    for origin in (*gpus, *(tier.origin for tier in KNOWN.tiers.values())):
        assert origin.as_of.startswith("2026-")
        assert origin.source
    assert {tier.origin.mark for tier in KNOWN.tiers.values()} == {"measured", "spec", "assumed"}


def test_a_file_of_ones_own_wins(tmp_path: Path) -> None:
    """Its entries replace those of the same name, and stand beside the others."""
    path = tmp_path / "mine.toml"
    path.write_text(
        "[gpu.H100-SXM]\nhbm_gb = 80\nhbm_gb_per_s = 3000\nbf16_tflops = 700\n"
        "host_link_gb_per_s = 50\n"
        '[tier.nfs]\nabout = "a share"\nread_gb_per_s = 2\nwrite_gb_per_s = 1\n'
    )
    found = read_hardware(path)

    assert found.gpu("h100-sxm").bf16_tflops == 700
    assert found.tiers["nfs"].load_s(4e9) == pytest.approx(2.0)
    assert found.tiers["nfs"].origin.mark == "assumed"
    assert set(KNOWN.gpus) == set(found.gpus)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gpus.x]\n", "there is no 'gpus'"),
        ("gpu = 3\n", "gpu is no table"),
        ("[gpu]\nx = 3\n", "gpu.x is no table"),
        ("[gpu.x]\nbf16 = 3\n", "there is no 'bf16'; hint: there is bf16_tflops"),
        ("[gpu.x]\nhbm_gb = -1\n", "hbm_gb cannot be -1"),
        ("[gpu.x]\nhbm_gb = true\n", "hbm_gb cannot be True"),
        ("[gpu.x]\nhbm_gb = nan\n", "hbm_gb cannot be nan"),
        ("[gpu.x]\nhbm_gb = 80\n", "hbm_gb_per_s, bf16_tflops, host_link_gb_per_s must be given"),
        (
            '[tier.x]\nabout = ""\nread_gb_per_s = 0\nwrite_gb_per_s = 1',
            "read_gb_per_s cannot be 0",
        ),
        ('[tier.x]\nmark = "guess"\n', "mark 'guess' is none of"),
        ("[tier.x", "is no TOML"),
    ],
)
def test_a_wrong_entry_is_named(text: str, said: str, tmp_path: Path) -> None:
    """Unknown names, impossible numbers and missing ones are errors that say which."""
    path = tmp_path / "mine.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_hardware(path)


def test_a_gpu_that_is_none() -> None:
    """It is refused with the name that is near."""
    with pytest.raises(ConfigError, match="h100-sxm"):
        KNOWN.gpu("h100_sxm")


def test_a_link_that_nobody_names() -> None:
    """Several GPUs without a link among them are computed over the host's, and that is said."""
    model, plain = find_model("llama-3.1-70b"), replace(KNOWN.gpu("h100-sxm"), scale_up_gb_per_s=0)
    said = Prefill(model, plain, 8).caution

    assert "64 GB/s" in said
    assert "hint: scale_up_gb_per_s" in said
    assert Prefill(model, plain, 8).seconds(6_909) > 2 * (
        Prefill(model, KNOWN.gpu("h100-sxm"), 8).seconds(6_909)
    )
    assert not Prefill(model, plain, 1).caution
    assert not Prefill(model, KNOWN.gpu("h100-sxm"), 8).caution
