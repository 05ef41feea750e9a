"""Owns a vLLM OpenAI server on this machine, from its command line to its end.

It decides nothing about caching: the connector's settings come from the caller.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import kvwise
from kvwise.bench import chat, engine_switch
from kvwise.bench.children import Child
from kvwise.bench.progress import Progress

START_DEADLINE_S = 300
STOP_S = 25
"""The server gives its engine 15 s to end; beyond this the group is killed."""

_SHUTDOWN_TIMEOUT_S = 15
_KV_SPACE_GIB = 2
_CORES = "VLLM_CPU_OMP_THREADS_BIND"
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Lets weights lie in huge pages, where the kernel has them for who asks. In small ones, two
processes of one engine may differ by a sixth, by where in memory their pages happen to be."""

BLOCK_TOKENS = 32
_CONTEXT_TOKENS = 4096
_SEQUENCES = 4
STEP_TOKENS = 2048
"""Tokens of a prompt that the engine computes in one step."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a server is started with.

    Attributes:
        python: interpreter that has vLLM.
        model: checkpoint folder.
        folder: where the server may put its log and its view of the kvwise package.
        cache: kvwise's own settings, handed to the connector; None runs without a connector.
        cores: cores that it computes on; None leaves the choice to vLLM, which takes one core fewer
            when it has no connector.
        switch: file of the switch by which its connector is taken away while it runs, if any.
    """

    python: Path
    model: Path
    folder: Path
    cache: dict[str, Any] | None
    cores: list[int] | None = None
    switch: Path | None = None


class Engine:
    """A running server; a context manager that stops it."""

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.port = port

    @classmethod
    def start(cls, options: EngineOptions, progress: Progress) -> Self:
        """Start a server and wait until it answers.

        Raises:
            SetupError: it ended or was not ready in time; the message says where its log is.
        """
        engine = cls.begin(options)
        try:
            engine.wait_ready(progress)
        except BaseException:
            engine.stop()
            raise
        return engine

    @classmethod
    def begin(cls, options: EngineOptions) -> Self:
        """Start a server without waiting for it, so that several may start at a time."""
        port = free_port()
        command = [str(options.python), *_arguments(options, port)]
        log = options.folder / "engine.log"
        env = _environment(options)
        return cls(Child("the engine", command, log=log, env=env, stop_s=STOP_S), port)

    def wait_ready(self, progress: Progress) -> None:
        """Wait until it answers.

        Raises:
            SetupError: it ended or was not ready in time; the message says where its log is.
        """
        doing = "starting the engine"
        ready = partial(chat.healthy, self.port)
        self._child.wait_until(ready, START_DEADLINE_S, progress, doing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def session(self) -> int:
        """Id of the session that all its processes are in."""
        return self._child.pid

    def forget(self) -> None:
        """Empty the engine's own prefix cache; what kvwise holds stays."""
        chat.forget(self.port)

    def stop(self) -> None:
        """End the server and everything it started; idempotent."""
        self._child.stop()


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _arguments(options: EngineOptions, port: int) -> list[str]:
    """The server's command line, after the interpreter."""
    arguments = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model)]
    arguments += ["--served-model-name", chat.MODEL, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--dtype", "bfloat16", "--max-model-len", str(_CONTEXT_TOKENS)]
    arguments += ["--max-num-seqs", str(_SEQUENCES), "--block-size", str(BLOCK_TOKENS)]
    arguments += ["--max-num-batched-tokens", str(STEP_TOKENS)]
    arguments += ["--enforce-eager", "--enable-prompt-tokens-details"]
    arguments += ["--shutdown-timeout", str(_SHUTDOWN_TIMEOUT_S)]
    if options.cache is not None:
        connector = {
            "kv_connector": "KvwiseConnector",
            "kv_connector_module_path": "kvwise.engines.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": options.cache,
        }
        arguments += ["--kv-transfer-config", json.dumps(connector)]
    if options.switch is not None:
        arguments += engine_switch.ARGUMENTS
    return arguments


def _environment(options: EngineOptions) -> dict[str, str]:
    """The server's environment: offline, silent, and able to import kvwise."""
    bound = {} if options.cores is None else {_CORES: ",".join(map(str, options.cores))}
    switch = {} if options.switch is None else {engine_switch.PLACE: str(options.switch)}
    return {
        **os.environ,
        **bound,
        **switch,
        "PYTHONPATH": str(overlay(options.folder)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_SPACE_GIB),
        _TUNABLES: os.environ.get(_TUNABLES, _HUGE_PAGES),
    }


def overlay(folder: Path) -> Path:
    """A folder for PYTHONPATH that holds kvwise and nothing else.

    The engine's environment is shared by every clone, so kvwise is not installed in it; and the
    folder that this kvwise comes from may hold packages that the engine must not see.
    """
    place = folder / "overlay"
    place.mkdir(parents=True, exist_ok=True)
    link = place / "kvwise"
    target = Path(kvwise.__file__).parent
    if not link.is_symlink() or link.resolve() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target, target_is_directory=True)
    return place
