"""How big and slow `pip install kvwise` is: bytes to download, seconds in a new environment.

It builds the wheel of this checkout, downloads what a user would download, installs from the
network's index into an empty environment without pip's cache, and prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEP_S_MAX = 600


def pip(python: str, *arguments: str) -> None:
    """Run pip quietly; its output is shown when it fails."""
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S_MAX, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}error: failed: {' '.join(command)}")


def main() -> None:
    """Measure once and print what was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
        wheel = next(folder.glob("kvwise-*.whl"))
        pip(sys.executable, "download", "--no-cache-dir", "--dest", str(folder / "all"), str(wheel))
        sizes = {p.name: p.stat().st_size for p in sorted((folder / "all").iterdir())}
        venv.EnvBuilder(with_pip=True).create(folder / "venv")
        python = str(folder / "venv" / "bin" / "python")
        started = time.monotonic()
        pip(python, "install", "--no-cache-dir", str(wheel))
        seconds = time.monotonic() - started
        version = subprocess.run(
            [python, "-m", "kvwise", "--version"], capture_output=True, timeout=60, check=True
        )
    print(
        json.dumps(
            {
                "installed": version.stdout.decode().strip(),
                "download_mb": round(sum(sizes.values()) / 1e6, 1),
                "install_s": round(seconds, 1),
                "files_mb": {name: round(size / 1e6, 2) for name, size in sizes.items()},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
