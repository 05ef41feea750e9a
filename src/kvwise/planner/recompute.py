"""Who is asked how long computing takes: the roofline, a file of times, or a package of tables.

The package is `aiconfigurator-core`, an extra of kvwise: times of kernels that its makers measured
on GPUs, added up to those of whole models. It is asked in a process of its own, which is this file,
so that whatever it does there ends with the answer or with its deadline. It would download the
configuration of a model that it does not have; it is not asked about such models.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import msgspec

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import names, repository
from kvwise.planner.hardware import Gpu
from kvwise.planner.oracle import (
    ROOFLINE,
    TABLES,
    Measured,
    Oracle,
    Row,
    Times,
    read_times,
)
from kvwise.planner.prefill import Prefill
from kvwise.planner.shapes import Model

PACKAGE, MODULE = "aiconfigurator-core", "aiconfigurator_core"
INSTALL = "pip install 'kvwise[aiconfigurator]'"
ENGINE = "vllm"
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
ANSWER_S = 120.0
"""How long the package may take; a model takes two seconds of a processor."""


class _Answer(msgspec.Struct, frozen=True):
    """What the process prints last: milliseconds of each length."""

    milliseconds: dict[int, float]


def oracle_of(said: str, model: Model, gpu: Gpu, ranks: int) -> Oracle:
    """The oracle that an option names: the roofline, the package, or a file.

    Raises:
        ConfigError: there is no such file or package, or what it says cannot be.
    """
    if said.lower() == ROOFLINE:
        return Prefill(model, gpu, ranks)
    if said.lower() == TABLES:
        return Measured(tabled(model, gpu, ranks), model, gpu, ranks)
    return Measured(read_times(Path(said)), model, gpu, ranks)


def tabled(model: Model, gpu: Gpu, ranks: int) -> Times:
    """The times that the package knows of a model on so many GPUs of a kind.

    Raises:
        ConfigError: it is not installed, or knows none.
    """
    if find_spec(MODULE) is None:
        raise ConfigError(f"--recompute {TABLES} needs the package {PACKAGE}; hint: {INSTALL}")
    if model.name not in names():
        raise ConfigError(
            f"{PACKAGE} knows models by where they are published, and {model.name} is from a file; "
            f"hint: name one of 'kvwise model', or --recompute {ROOFLINE} or FILE"
        )
    system = gpu.name.replace("-", "_")
    experts_over = ranks if model.has_experts else 1
    asked = (repository(model.name), system, str(ranks), str(experts_over))
    command = [sys.executable, "-m", __name__, *asked]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _no_data(model, gpu, ranks, f"no answer within {ANSWER_S:.0f} s") from error
    if done.returncode:
        raise _no_data(model, gpu, ranks, _last(done.stderr))
    found = msgspec.json.decode(_last(done.stdout), type=_Answer, strict=False)
    source = f"{PACKAGE} {metadata.version(PACKAGE)} ({ENGINE}, {system}, {ranks} GPUs)"
    return Times(source, [Row(n, one / 1e3) for n, one in found.milliseconds.items()])


def _no_data(model: Model, gpu: Gpu, ranks: int, why: str) -> ConfigError:
    """The package has no answer."""
    return ConfigError(
        f"{PACKAGE} has no prefill times of {model.name} on {ranks} x {gpu.name}: {why:.300}; "
        f"hint: --recompute {ROOFLINE}, or FILE with times of your own"
    )


def _last(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def main() -> None:
    """Ask the package, and print what it says."""
    from aiconfigurator_core.sdk.engine import EngineHandle

    name, system, ranks, experts_over = sys.argv[1:]
    there = files(MODULE)
    if not (there / "model_configs" / f"{name.replace('/', '--')}_config.json").is_file():
        sys.exit(f"it does not know {name}")
    if not (there / "systems" / f"{system}.yaml").is_file():
        sys.exit(f"it has no tables of a {system}")
    engine = EngineHandle.compile(
        name, system, ENGINE, tp_size=int(ranks), moe_tp_size=int(experts_over)
    )
    found = {tokens: engine.predict_prefill_latency(1, tokens) for tokens in LENGTHS}
    sys.stdout.write(json.dumps({"milliseconds": found}) + "\n")


if __name__ == "__main__":
    main()
