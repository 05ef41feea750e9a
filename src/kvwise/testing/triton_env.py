"""Owns the environment in which kernels are tested without a GPU: Triton beside an engine's torch.

It runs nothing in it: a test starts that Python with `TRITON_INTERPRET=1`, or compiles for a GPU
that is not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kvwise.errors import KvwiseError

PYTHON_ENV = "KVWISE_TRITON_PYTHON"
"""Environment variable naming a Python that has Triton, torch and numpy."""
PACKAGE = "triton==3.9.0"

_STAMP = ".finished"
_PATH_FILE = "engine.pth"
_ASK_DEADLINE_S = 60
_VENV_DEADLINE_S = 120
_PIP_DEADLINE_S = 15 * 60


class TritonEnvError(KvwiseError):
    """Triton could not be installed; the message says what to do."""


def find() -> Path | None:
    """A Python that has Triton: the chosen one, else the newest that `ensure` made."""
    chosen = os.environ.get(PYTHON_ENV)
    if chosen:
        return Path(chosen)
    stamps = sorted(_root().glob(f"triton-*/{_STAMP}"), key=lambda stamp: stamp.stat().st_mtime)
    return stamps[-1].parent / "bin" / "python" if stamps else None


def ensure(engine_python: Path) -> Path:
    """A Python with Triton on top of the packages of `engine_python`, installed first if need be.

    It is built beside its place and renamed, so that an interrupted build leaves nothing that
    counts, and of two builders at once one wins.

    Raises:
        TritonEnvError: it could not be made; the message says what to do.
    """
    chosen = os.environ.get(PYTHON_ENV)
    if chosen:
        if not Path(chosen).is_file():
            raise TritonEnvError(f"{PYTHON_ENV} names {chosen}, which is not there")
        return Path(chosen)
    site = _ask(engine_python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    folder = _root() / f"triton-{_digest(site)}"
    if not (folder / _STAMP).is_file():
        _build(folder, engine_python, site)
    return folder / "bin" / "python"


def _root() -> Path:
    """Where environments are kept, outside every clone: `$XDG_CACHE_HOME/kvwise`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvwise"


def _digest(site: str) -> str:
    """Short name for one pin on top of one engine."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.blake2b(f"{PACKAGE}\0{site}\0{version}".encode(), digest_size=6).hexdigest()


def _build(folder: Path, engine_python: Path, site: str) -> None:
    """Make the environment in `folder`."""
    making = folder.with_name(f"{folder.name}.{os.getpid()}.making")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run([str(engine_python), "-m", "venv", str(making)], _VENV_DEADLINE_S)
        python = making / "bin" / "python"
        pip = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
        _run([str(python), *pip, PACKAGE], _PIP_DEADLINE_S)
        own = Path(_ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
        (own / _PATH_FILE).write_text(f"{site}\n")
        _ask(python, "import torch, triton; print(triton.__version__)")
        (making / _STAMP).touch()
        if folder.is_dir() and not (folder / _STAMP).is_file():
            shutil.rmtree(folder)
        if not folder.is_dir():
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _ask(python: Path, code: str) -> str:
    """What a line of Python prints in that environment."""
    return _run([str(python), "-c", code], _ASK_DEADLINE_S).strip()


def _run(command: list[str], deadline_s: int) -> str:
    """What a command prints; its output is shown only when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TritonEnvError(f"preparing Triton: {error}") from None
    if done.returncode != 0:
        last = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).splitlines()[-8:])
        raise TritonEnvError(
            f"preparing Triton: `{' '.join(command)}` failed; run it by hand, or name a Python "
            f"that has {PACKAGE} and torch in {PYTHON_ENV}; its last lines:\n{last}"
        )
    return done.stdout
