"""The stack file and the flags of engines that a plan comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvwise import config
from kvwise.planner.advise import decide
from kvwise.planner.flags import sglang, vllm
from kvwise.planner.shapes import Precision, Precisions
from kvwise.planner.site import Decision, Site, Verdict
from kvwise.planner.stack import Places, Stack, stack_of, toml
from tests.planner.support import demand_of, site_of
from tests.sim.replay.support import made


def small() -> Site:
    """A host whose memory is not enough for the chats that are made up."""
    return replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9, drive_bytes=1e12)


def planned(site: Site) -> tuple[list[Decision], Stack]:
    """Decisions and the stack that they come to."""
    demand = demand_of(made(1_500, ("chat",)))
    decisions = decide(site, demand, {})
    stack = stack_of(site, demand, decisions, Places("/run/kv.sock", ("/mnt/a", "/mnt/b")))
    assert stack is not None
    return decisions, stack


def test_a_file_that_a_daemon_reads(tmp_path: Path) -> None:
    """The file says in the daemon's own keys what was decided."""
    site = replace(small(), drives=2)
    _, stack = planned(site)
    path = tmp_path / "stack.toml"
    path.write_text(toml(stack, ["a heading", ""]))
    read = config.load(path, environ={})

    assert read.dram.size == 20_000_000_000
    assert read.disk.paths == ("/mnt/a", "/mnt/b")
    assert read.disk.size == 1_900_000_000_000
    assert read.disk.dwpd == site.drive.dwpd
    assert read.serve.socket == "/run/kv.sock"


def test_no_level_no_stack() -> None:
    """Where neither memory nor drives pay there is nothing to start."""
    demand = demand_of(made(1_500, ("chat",)))
    site = replace(small(), dram_bytes=1e9, drives=0)

    assert stack_of(site, demand, decide(site, demand, {}), Places()) is None


def test_drives_are_numbered() -> None:
    """Without directories each drive has one of its own."""
    assert Places().directories(2) == ["/mnt/nvme0/kvwise", "/mnt/nvme1/kvwise"]
    assert Places().listens == config.Config().socket_path


def test_flags_of_vllm() -> None:
    """An engine is told the ranks, how KV is kept, and where the daemon listens."""
    decisions, stack = planned(replace(small(), drives=2))
    words = vllm(small(), "org/model", stack).words
    told = json.loads(words[words.index("--kv-transfer-config") + 1])

    assert words[:3] == ("vllm", "serve", "org/model")
    assert words[words.index("--tensor-parallel-size") + 1] == "8"
    assert words[words.index("--block-size") + 1] == "16"
    assert told["kv_connector_extra_config"] == {"client.url": "/run/kv.sock"}
    assert told["kv_load_failure_policy"] == "recompute"
    assert decisions[0].verdict is Verdict.YES
    assert "--kv-transfer-config" not in vllm(small(), "org/model", None).words
    fp8 = vllm(replace(small(), kept=Precisions(Precision.FP8)), "org/model", None).words
    assert fp8[fp8.index("--kv-cache-dtype") + 1] == "fp8"
    latent = vllm(site_of("deepseek-v3"), "org/model", None).words
    assert latent[latent.index("--block-size") + 1] == "64"


def test_a_model_that_the_connector_refuses() -> None:
    """A model with recurrent states gets no connector, and the engine its own block size."""
    _, stack = planned(replace(small(), drives=2))
    words = vllm(site_of("qwen3.5-27b"), "org/model", stack).words

    assert "--kv-transfer-config" not in words
    assert "--block-size" not in words


def test_flags_of_sglang() -> None:
    """SGLang is told the memory of each rank, and one directory where drives are to be."""
    decisions, stack = planned(replace(small(), drives=2))
    flags = sglang(small(), "org/model", decisions, stack)

    assert flags.words[flags.words.index("--hicache-size") + 1] == "2"
    assert flags.words[flags.words.index("--hicache-storage-backend") + 1] == "file"
    assert flags.environment == {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/mnt/a"}
    assert "--enable-hierarchical-cache" not in sglang(small(), "m", decisions, None).words
    assert "not run" in flags.tried


@pytest.mark.parametrize(
    ("model", "ranks", "said"),
    [
        ("llama-3.1-70b", 3, "1, 2, 4, 8"),
        ("qwen3-30b-a3b", 6, "1, 2, 4"),
        ("deepseek-v3", 3, "1, 2"),
    ],
)
def test_ranks_that_cannot_share(model: str, ranks: int, said: str) -> None:
    """Ranks that do not divide the heads are named with those that do."""
    found = site_of(model).model

    assert said in found.uneven(ranks)
    assert not found.uneven(8)
