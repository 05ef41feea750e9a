"""Owns one run of pip: shows where it is, bounds it in time, and turns its failures into hints.

It chooses no packages; the caller gives the arguments.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress

PIP_DEADLINE_S = 40 * 60
"""A whole installation over a slow line; pip itself times out on one that is dead."""

_TICK_S = 0.4
_LINES_KEPT = 4000
_COLLECTING = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9_.\-]+)")
_NO_CPU_TORCH = re.compile(r"No matching distribution found for torch==\S+\+cpu")
_HINTS = (
    (
        _NO_CPU_TORCH,
        "point PIP_EXTRA_INDEX_URL at an index that has CPU builds of torch, and run again",
    ),
    (
        re.compile(r"No matching distribution found for (\S+)"),
        "the pins, {0} among them, are for Python 3.11 on x86-64 Linux",
    ),
    (re.compile(r"No space left on device"), "free some disk space and run again"),
    (
        re.compile(r"NewConnectionError|ConnectTimeout|Temporary failure in name resolution"),
        "pip cannot reach its package index: check the network and pip's settings",
    ),
)


@dataclass
class _Run:
    """What is known of a running pip."""

    total: int
    site: Path | None
    seen: int = 0
    package: str = ""
    installing: bool = False
    lines: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Take one line of pip's output in."""
        if len(self.lines) < _LINES_KEPT:
            self.lines.append(line)
        found = _COLLECTING.match(line)
        if found:
            self.seen += 1
            self.package = re.split(r"[=<>\[;]", found[1])[0]
        if line.startswith("Installing collected packages"):
            self.installing = True

    def text(self) -> str:
        """Where pip is, for a person."""
        if not self.installing and self.total == 1:
            return f"fetching {self.package}"
        if not self.installing and not self.seen:
            return f"fetching {self.total} packages"
        if not self.installing:
            return f"fetching {self.seen} of {self.total} packages: {self.package}"
        if self.site is None:
            return f"unpacking {self.package}"
        done = len(list(self.site.glob("*.dist-info")))
        return f"unpacking {min(done, self.total)} of {self.total} packages"


def run_pip(
    python: Path, arguments: list[str], *, total: int, site: Path | None, progress: Progress
) -> None:
    """Run `python -m pip` to its end.

    Args:
        python: interpreter of the environment to change.
        arguments: what to tell pip.
        total: how many packages it is about to handle, for the progress line.
        site: folder that fills as pip unpacks, for the progress line.
        progress: where to show it.

    Raises:
        SetupError: pip failed or overran its deadline; the message says what to do.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    run = _Run(total, site, package=arguments[-1].partition("==")[0])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    reader = threading.Thread(target=_read, args=(process, run), daemon=True)
    reader.start()
    deadline = time.monotonic() + PIP_DEADLINE_S
    try:
        while process.poll() is None:
            progress.now(run.text())
            if time.monotonic() > deadline:
                raise SetupError(f"pip did not finish within {PIP_DEADLINE_S // 60} minutes")
            time.sleep(_TICK_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(timeout=5)
    if process.returncode != 0:
        raise SetupError(_explain(run.lines))


def _read(process: subprocess.Popen[str], run: _Run) -> None:
    """Feed pip's output to `run` until pip closes it."""
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                run.read(line.rstrip())


def _explain(lines: list[str]) -> str:
    """Why pip failed, and what to do about it."""
    output = "\n".join(lines)
    last = "\n".join(f"  {line}" for line in lines[-8:])
    for pattern, hint in _HINTS:
        found = pattern.search(output)
        if found:
            return f"pip failed; its last lines:\n{last}\nhint: {hint.format(*found.groups())}"
    return f"pip failed; its last lines:\n{last}"
