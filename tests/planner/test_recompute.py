"""Times from a package of tables: the published ones, and what is said where it has none."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvwise.errors import ConfigError
from kvwise.planner import recompute
from kvwise.planner.catalogue import find_model
from kvwise.planner.hardware import read_hardware
from kvwise.planner.oracle import estimate_of
from kvwise.planner.recompute import MODULE, oracle_of

PUBLISHED = Path(__file__).with_name("prefill_times.csv")
KNOWN = read_hardware()
LLAMA = find_model("llama-3.1-8b")
installed = pytest.mark.skipif(
    find_spec(MODULE) is None, reason=f"aiconfigurator-core is not here: {recompute.INSTALL}"
)


@installed
@pytest.mark.parametrize(
    ("name", "gpu", "ranks"),
    [("llama-3.1-8b", "h100-sxm", 1), ("deepseek-v3", "h200-sxm", 8)],
)
def test_the_package_says_what_was_published(name: str, gpu: str, ranks: int) -> None:
    """Its times are those of the published table, within 1 %, and the plan says whose they are."""
    with PUBLISHED.open() as file:
        rows = [one for one in csv.DictReader(file) if (one["model"], one["gpu"]) == (name, gpu)]
    rows = [one for one in rows if int(one["tp"]) == ranks]
    oracle = oracle_of("aiconfigurator", find_model(name), KNOWN.gpu(gpu), ranks)

    assert len(rows) == 4
    for row in rows:
        seconds = oracle.seconds(int(row["tokens"]))
        assert 1e3 * seconds == pytest.approx(float(row["prefill_ms"]), rel=0.01)
    assert estimate_of(oracle, 1000).by.startswith("aiconfigurator-core 0.")


@installed
def test_what_the_package_does_not_know_is_said() -> None:
    """A GPU that it has no tables of is named, with what else there is."""
    with pytest.raises(ConfigError, match=r"on 1 x mi300x: it has no tables of a mi300x; hint: "):
        oracle_of("aiconfigurator", LLAMA, KNOWN.gpu("mi300x"), 1)


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said how to get it, before anything is asked."""
    monkeypatch.setattr(recompute, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"hint: pip install 'kvwise\[aiconfigurator\]'"):
        oracle_of("AIConfigurator", LLAMA, KNOWN.gpu("h100-sxm"), 1)


def test_a_model_from_a_file_has_no_name_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package knows models by where they are published."""
    monkeypatch.setattr(recompute, "find_spec", lambda _: "there")

    with pytest.raises(ConfigError, match="mine is from a file; hint: "):
        oracle_of("aiconfigurator", replace(LLAMA, name="mine"), KNOWN.gpu("h100-sxm"), 1)


def test_whatever_goes_wrong_in_its_process_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that fails is quoted, and one that does not answer is ended."""
    python = tmp_path / "python"
    python.touch(0o755)
    monkeypatch.setattr(recompute, "find_spec", lambda _: "there")
    monkeypatch.setattr(sys, "executable", str(python))
    python.write_text("#!/bin/sh\necho 'KeyError: no such table' >&2\nexit 1\n")
    with pytest.raises(ConfigError, match=r"8b on 1 x h100-sxm: KeyError: no such table"):
        oracle_of("aiconfigurator", LLAMA, KNOWN.gpu("h100-sxm"), 1)

    python.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(recompute, "ANSWER_S", 0.2)
    with pytest.raises(ConfigError, match="no answer within 0 s; hint: "):
        oracle_of("aiconfigurator", LLAMA, KNOWN.gpu("h100-sxm"), 1)
