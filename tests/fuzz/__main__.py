"""`python -m tests.fuzz PARSER --inputs N --seed S`: hostile bytes without end. It judges nothing.

With `--guided`, and the package atheris installed, inputs are chosen by the code they reach, and
those that reach more are written to a folder.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from itertools import chain, islice
from pathlib import Path

from tests.fuzz.drive import Finding, drive, limit_memory
from tests.fuzz.parsers import PARSERS, Parser


def main() -> int:
    """Drive one parser."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz")
    options.add_argument("parser", choices=sorted(PARSERS))
    options.add_argument("--inputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--guided", type=Path, metavar="FOLDER", help="needs atheris")
    chosen = options.parse_args()
    if chosen.guided:
        from tests.fuzz.guided import guide

        guide(chosen.parser, chosen.guided, chosen.inputs, chosen.seed)
    limit_memory()
    warnings.simplefilter("error")
    return run(PARSERS[chosen.parser], chosen.inputs, chosen.seed)


def run(parser: Parser, inputs: int, seed: int) -> int:
    """The corpus first, then what the mutator makes of it."""
    mutator = parser.mutator(seed)
    kept = [*parser.seeds(), *(data for _, data in parser.corpus())]
    made = (mutator.next() for _ in range(max(0, inputs - len(kept))))
    try:
        summary = drive(parser, islice(chain(kept, made), inputs), progress=True)
    except Finding as finding:
        print(f"FOUND {finding}", flush=True)
        raise
    print(summary)
    for kind, count in summary.refusals.most_common(12):
        print(f"{count:>10}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
