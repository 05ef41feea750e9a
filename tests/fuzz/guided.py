"""Inputs chosen by the code they reach, where atheris is installed. Nothing else needs it.

libFuzzer keeps what reaches new code; the mutator of this folder makes half of its changes.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from tests.fuzz.mutate import BYTES_MAX


def guide(name: str, folder: Path, inputs: int, seed: int) -> NoReturn:
    """Run until so many inputs were tried; what reached new code lies in `folder` then."""
    atheris = importlib.import_module("atheris")
    for module in [module for module in sys.modules if module.startswith(("kvwise", "tests."))]:
        del sys.modules[module]  # they come back with counters in them
    with atheris.instrument_imports(include=["kvwise"]):
        parsers = importlib.import_module("tests.fuzz.parsers")
    parser = parsers.PARSERS[name]
    mutator = parser.mutator(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(parser.seeds()):
        (folder / f"seed-{number}").write_bytes(data)
    stack = ExitStack()
    attempt = parser.open(stack)

    def one(data: bytes) -> None:
        try:
            attempt(data)
        except parser.errors:
            return

    def change(data: bytes, size: int, number: int) -> bytes:
        if number % 2:
            return bytes(atheris.Mutate(data, size))
        return bytes(mutator.change(data)[:size])

    arguments = [
        f"-atheris_runs={inputs}",
        f"-max_len={BYTES_MAX}",
        f"-seed={seed + 1}",
        "-timeout=20",
    ]
    atheris.Setup([sys.argv[0], *arguments, str(folder)], one, custom_mutator=change)
    atheris.Fuzz()
    sys.exit(0)
