"""Owns `.venv`: creates it and installs the pinned tools and kvwise, only when something changed.

It needs only the standard library, because it runs before anything is installed. It installs
nothing outside `.venv`, with one exception it announces: Debian's venv module, when missing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements-dev.lock"
STAMP = VENV / ".ready"
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
PYTHON_MIN = (3, 11)
INSTALL_S_MAX = 1800
LOCK_HEADER = "# The development environment, pinned. `make lock` writes this file."


def main() -> None:
    """Bring `.venv` up to date, or with `--lock` choose new pins."""
    parser = argparse.ArgumentParser(description="Prepare .venv, or choose new pins for it.")
    parser.add_argument("--lock", action="store_true", help="write requirements-dev.lock anew")
    if parser.parse_args().lock:
        write_lock()
    else:
        prepare()


def prepare() -> None:
    """Create and fill `.venv` unless its stamp says that it is as the lock file wants it."""
    if sys.version_info < PYTHON_MIN:
        sys.exit(f"error: kvwise needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    wanted = digest()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    started = time.monotonic()
    if not has_pip(PYTHON):
        say(f"creating .venv with Python {sys.version.split()[0]}")
        create(VENV)
    pins = [line for line in LOCK.read_text().splitlines() if "==" in line]
    say(f"installing {len(pins)} pinned packages")
    run([str(PYTHON), *PIP, "install", "--requirement", str(LOCK)])
    say("installing kvwise itself, editable")
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    run([str(PYTHON), *PIP, "install", *editable])
    STAMP.write_text(wanted)
    say(f"ready in {time.monotonic() - started:.0f} s")


def write_lock() -> None:
    """Resolve the dependency groups in an empty environment and pin what came out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    for members in project["dependency-groups"].values():
        wanted += [member for member in members if isinstance(member, str)]
    with tempfile.TemporaryDirectory() as folder:
        create(Path(folder))
        python = str(Path(folder) / "bin" / "python")
        say(f"resolving {len(wanted)} requirements")
        run([python, *PIP, "install", *wanted])
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True, timeout=60
        ).stdout
    LOCK.write_text(f"{LOCK_HEADER}\n{frozen}")
    say(f"pinned {len(frozen.splitlines())} packages in {LOCK.name}")


def digest() -> str:
    """What `.venv` is made from, as one hash: interpreter, pins, package metadata."""
    hasher = hashlib.blake2b(sys.version.encode(), digest_size=16)
    for source in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        hasher.update(source.read_bytes())
    return hasher.hexdigest()


def has_pip(python: Path) -> bool:
    """Whether this interpreter exists and can install packages."""
    if not python.exists():
        return False
    probe = [str(python), "-m", "pip", "--version"]
    return subprocess.run(probe, check=False, capture_output=True, timeout=60).returncode == 0


def create(folder: Path) -> None:
    """Make an environment with pip; Debian ships the module for that apart, so fetch it there."""
    if importlib.util.find_spec("ensurepip") is None:
        install_debian_venv()
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(with_pip=True).create(folder)


def install_debian_venv() -> None:
    """Install Debian's venv package where we may, else say how."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    elevate = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (elevate and shutil.which("sudo") is None):
        sys.exit(f"error: this Python has no ensurepip\nhint: install the package {package}")
    say(f"installing {package}, which Python's venv module needs")
    run([*elevate, "apt-get", "update", "-qq"])
    run([*elevate, "apt-get", "install", "-y", "-qq", package])


def run(command: list[str]) -> None:
    """Run one installation step; its output is shown when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=INSTALL_S_MAX
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}error: failed: {' '.join(command)}")


def say(what: str) -> None:
    """One progress line."""
    print(f"environment: {what}", flush=True)


if __name__ == "__main__":
    main()
