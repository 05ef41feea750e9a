"""Owns processes for engine tests: children with a real vLLM, and daemons that can be killed.

It knows no expectations. Every wait has a deadline, and nothing it started outlives it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kvwise.bench.places import finished
from kvwise.bench.provision import engine_folder

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("child.py")
RESULT = "RESULT "
CHILD_S = 240.0
STOP_S = 30.0
MODELS = ("llama", "hybrid", "mla")


def engine_python() -> Path | None:
    """The interpreter of an environment with vLLM, if there is one."""
    given = os.environ.get("KVWISE_ENGINE_PYTHON")
    if given:
        return Path(given)
    folder = engine_folder()
    return folder / "bin" / "python" if finished(folder) else None


def real_model() -> Path | None:
    """The directory of the small real model, if it was provisioned."""
    given = os.environ.get("KVWISE_SMOLLM2")
    if given:
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = [
        path for path in cache.glob("kvwise/models/smollm2-*") if (path / "config.json").is_file()
    ]
    return found[-1] if found else None


class Processes:
    """Starts children and daemons below a short directory of its own."""

    def __init__(self, python: Path) -> None:
        """`python` has vLLM."""
        self.python = python
        # Socket paths are limited to 107 bytes, and pytest's own directories are long.
        self.directory = Path(tempfile.mkdtemp(prefix="kvw-"))
        self._stack = ExitStack()
        self._results: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        """End everything that still runs."""
        self._stack.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def model(self, kind: str) -> str:
        """The directory of a tiny model; all are made at first use."""
        place = self.directory / "models"
        if not place.exists():
            calls = "; ".join(f"models.tiny_{one}(place / {one!r})" for one in MODELS)
            code = (
                "from pathlib import Path; from kvwise.testing import models; "
                f"place = Path({str(place)!r}); {calls}"
            )
            subprocess.run(
                [self.python, "-c", code], check=True, env=self.environment(), timeout=120
            )
        return str(place / kind)

    def environment(self, **more: str) -> dict[str, str]:
        """Without settings from outside; embedded daemons meet below our directory."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVWISE_", "VLLM_"))}
        return kept | {
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_RUNTIME_DIR": str(self.directory),
            **more,
        }

    def start(
        self, scenario: str, rig: dict[str, Any], *, more: dict[str, Any] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        """Start a scenario; `finish` waits for what it saw."""
        child = subprocess.Popen(
            [self.python, CHILD, scenario, json.dumps({"rig": rig, "more": more or {}})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=self.environment(**env),
        )
        self._stack.callback(_end, child)
        return child

    def once(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a run that several tests look at."""
        if name not in self._results:
            self._results[name] = run()
        return self._results[name]

    def daemon(self, name: str, **settings: object) -> Daemon:
        """A daemon that outlives engines, not yet started."""
        daemon = Daemon(self.directory / name, settings)
        self.own(daemon.kill)
        return daemon

    def own(self, end: Callable[[], None]) -> None:
        """Call this at the end, whatever happens."""
        self._stack.callback(end)


def finish(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What a scenario saw; its last words if it failed."""
    try:
        said, _ = child.communicate(timeout=CHILD_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        said, _ = child.communicate()
        raise AssertionError(f"no end within {CHILD_S} s:\n{said[-4000:]}") from None
    results = [line for line in said.splitlines() if line.startswith(RESULT)]
    assert child.returncode == 0, said[-6000:]
    assert len(results) == 1, said[-4000:]
    seen: dict[str, Any] = json.loads(results[0].removeprefix(RESULT))
    return seen


class Daemon:
    """`kvwise serve` with a disk tier of its own."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object],
        *,
        socket: Path | None = None,
        launch: Sequence[str | Path] = ("-m", "kvwise"),
    ) -> None:
        """Write down its configuration. `launch` is what Python runs with `serve` behind it."""
        directory.mkdir()
        self.socket = socket or directory / "kvwise.sock"
        self._launch = launch
        self._config = directory / "kvwise.toml"
        lines = {
            "dram.size": "64MiB",
            "disk.paths": [str(directory / "disk")],
            "disk.size": "256MiB",
            "disk.min_free": "64MiB",
            "disk.segment": "16MiB",
            "plan.policy": "load",
            "serve.metrics": "",
            **settings,
        }
        self._config.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in lines.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [sys.executable, *self._launch, "serve", "--json"]
        command += ["--config", str(self._config), "--socket", str(self.socket)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the daemon said nothing"

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None, "the daemon does not run"
        return self._process.pid

    def kill(self) -> None:
        """End it without giving it a chance to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator does; it writes first what was deferred."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and whatever it started."""
    if child.poll() is None:
        os.killpg(child.pid, 9)
        child.wait(10)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
