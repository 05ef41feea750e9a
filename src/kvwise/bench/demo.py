"""Owns one run of the demo: a real engine, a real daemon, one measurement after the other.

It ends everything that it started, however it ends itself. What the numbers mean is for `result`
to say, and how they look for `page`.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kvwise
from kvwise.bench import chat, machine
from kvwise.bench.chat import Question
from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.measure import Bench, Phase, each, interleaved
from kvwise.bench.page import render
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress, Steps
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.bench.result import Replay, Report, Setting, conclude
from kvwise.bench.server import BLOCK_TOKENS, STEP_TOKENS, Engine, EngineOptions
from kvwise.bench.talks import ANSWER_TOKENS, Talk, open_talk
from kvwise.errors import CacheUnavailable, EngineError
from kvwise.live.events import replay
from kvwise.units import GIB, MIB, format_size

STEPS = 7
DOCUMENTS = 6
REPEATS = 2
"""How often each document is asked from the quick sources; the slow ones are asked once."""
WARM_DOCUMENT = 10_000
"""A document that is not measured: it warms up the engine and every path of the cache."""

MEMORY_BYTES = 5 * GIB
"""What engine, model and arena take together."""
DISK_MIN_FREE_BYTES = 4 * GIB
"""What the daemon leaves free on a filesystem unless told otherwise."""

_DISK_PREFIX = "demo-disk-"
_DIVERGENCE_CHARS_MAX = 200
_TALK_BYTES = 64 * MIB
_SPARE_TALKS = 4
_WRITTEN_DEADLINE_S = 120
_RETURN_DEADLINE_S = 90


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What a run is asked for.

    Attributes:
        out: folder for the report, the logs and, during the run, the disk tier.
        documents: how many conversations to measure.
    """

    out: Path
    documents: int = DOCUMENTS


@dataclass(slots=True)
class _Run:
    """What a run has at hand."""

    options: DemoOptions
    progress: Steps
    bench: Bench
    stack: ExitStack
    engine_options: EngineOptions
    daemon_options: DaemonOptions

    def start_daemon(self, life: int) -> Daemon:
        """Start the daemon of this life, with an event log of its own."""
        old = self.daemon_options
        log = self.options.out / f"events-{life}.kvlog"
        log.unlink(missing_ok=True)
        options = replace(old, event_log=log)
        daemon = self.stack.enter_context(Daemon.start(options, self.progress))
        self.progress.done(f"cache daemon, {'first' if life == 1 else 'second'} life")
        return daemon

    def start_engine(self) -> Engine:
        """Start an engine that is attached to the daemon."""
        started_s = time.monotonic()
        engine = self.stack.enter_context(Engine.start(self.engine_options, self.progress))
        self.progress.done(f"engine ready after {time.monotonic() - started_s:.0f} s")
        return engine

    def collect(self, daemon: Daemon) -> None:
        """Keep what the daemon decided."""
        self.bench.learn(daemon.decisions(limit=10 * len(self.bench.samples) + 100))


def run_demo(options: DemoOptions, progress: Progress) -> Report:
    """Measure, write `report.json` and `report.html` into `options.out`, and return the report.

    Raises:
        KvwiseError: something could not be installed, started or asked; nothing is left running.
    """
    started, started_s = datetime.now(UTC), time.monotonic()
    _require_room(options)
    facts = machine.describe(options.out)  # before anything of ours makes it busy
    steps = Steps(progress, STEPS)
    steps.next("an engine and a model, installed once")
    python = ensure_engine(steps)
    model = ensure_smollm2(python, steps)
    with _prepared(options, steps, python, model) as run:
        try:
            engine = _measure(run)
        except (EngineError, CacheUnavailable) as error:
            error.add_note(f"engine.log and daemon.log in {options.out} tell more")
            raise
    steps.next("replaying what the daemon heard, and the report")
    replays = [_replayed(path) for path in sorted(options.out.glob("events-[0-9].kvlog"))]
    setting = Setting(
        version=kvwise.__version__,
        engine=engine,
        model=f"SmolLM2-135M-Instruct, bfloat16 ({model.name})",
        machine=facts,
        started=started.isoformat(timespec="seconds"),
        took_s=time.monotonic() - started_s,
    )
    report = conclude(setting, run.bench.samples, run.bench.decisions, replays)
    (options.out / "report.json").write_bytes(report.to_json())
    (options.out / "report.html").write_text(render(report), encoding="utf-8")
    return report


def _require_room(options: DemoOptions) -> None:
    """Refuse before anything starts when memory or disk cannot hold it."""
    options.out.mkdir(parents=True, exist_ok=True)
    memory_bytes = machine.memory_bytes("MemAvailable")
    if memory_bytes < MEMORY_BYTES:
        raise SetupError(
            f"{format_size(memory_bytes)} of memory are available, and the demo needs "
            f"{format_size(MEMORY_BYTES)}; hint: end what else runs, and run again"
        )
    need_bytes = DISK_MIN_FREE_BYTES + 2 * _arena_bytes(options)
    free_bytes = shutil.disk_usage(options.out).free
    if free_bytes < need_bytes:
        raise SetupError(
            f"{options.out} has {format_size(free_bytes)} free, and the demo needs "
            f"{format_size(need_bytes)}, of which it leaves most; hint: choose another folder "
            "with --out"
        )


def _arena_bytes(options: DemoOptions) -> int:
    """Memory for the arena: every conversation, and some room."""
    return _TALK_BYTES * (options.documents + _SPARE_TALKS)


@contextmanager
def _prepared(options: DemoOptions, progress: Steps, python: Path, model: Path) -> Iterator[_Run]:
    """Fresh places for sockets, logs and the disk tier; everything started in them ends here."""
    out = options.out.resolve()
    size_bytes = _arena_bytes(options)
    with (
        _alone(out),
        # The address of a socket is short, and the path of `out` may not be.
        tempfile.TemporaryDirectory(prefix="kvwise-demo-") as place,
        tempfile.TemporaryDirectory(dir=out, prefix=_DISK_PREFIX) as disk,
        ExitStack() as stack,
    ):
        socket = Path(place) / "kvwise.sock"
        daemon = DaemonOptions(
            socket=socket,
            disk=Path(disk),
            dram_bytes=size_bytes,
            disk_bytes=2 * size_bytes,
            event_log=out / "events-1.kvlog",
            log=out / "daemon.log",
        )
        engine = EngineOptions(python, model, folder=out, cache={"client.url": str(socket)})
        try:
            yield _Run(options, progress, Bench(progress), stack, engine, daemon)
        finally:
            progress.now("stopping the engine and the daemon")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder, and remove what an earlier run left in it.

    Raises:
        SetupError: another run uses it.
    """
    with (out / "demo.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                f"another demo is writing to {out}; hint: wait for it, or choose another --out"
            ) from None
        for log in (out / "engine.log", out / "daemon.log", *out.glob("events-[0-9].kvlog")):
            log.unlink(missing_ok=True)
        for disk in out.glob(f"{_DISK_PREFIX}*"):
            shutil.rmtree(disk)
        yield


def _measure(run: _Run) -> dict[str, Any]:
    """Take every measurement, and say what engine it was."""
    bench, progress = run.bench, run.progress
    progress.next("a cache daemon and an engine, which takes up to a minute")
    daemon, engine = run.start_daemon(1), run.start_engine()
    facts = _engine_facts(engine)
    warm = _warm_up(run, engine)
    progress.next("opening conversations about long documents")
    for number in range(run.options.documents):
        progress.now(f"opening conversation {number + 1} of {run.options.documents}")
        bench.talks.append(open_talk(engine.port, number))
    progress.next("computing, and loading from the engine's own cache and from memory")
    each(bench, engine.port, Phase.FIRST_VISIT)
    interleaved(bench, engine.port, REPEATS)
    progress.done("computed, loaded from the engine's own cache, loaded from memory")

    progress.next("restarting the engine, and loading from memory")
    _wait_written(run, daemon)
    engine.stop()
    engine = run.start_engine()
    _warm_up(run, engine, warm)
    each(bench, engine.port, Phase.DRAM_RESTARTED, REPEATS)
    progress.done("loaded from memory, engine restarted")

    run.collect(daemon)
    progress.next("restarting the daemon, and loading from disk")
    _wait_written(run, daemon)
    daemon.stop()
    daemon = run.start_daemon(2)
    _wait_for_return(run, engine, daemon, warm)
    each(bench, engine.port, Phase.DISK)
    progress.done("loaded from disk, daemon restarted")
    run.collect(daemon)
    return facts


def _engine_facts(engine: Engine) -> dict[str, Any]:
    """What the engine is and how it was set up."""
    return {
        "name": "vLLM on the CPU",
        "version": chat.version(engine.port),
        "dtype": "bfloat16",
        "block_tokens": BLOCK_TOKENS,
        "step_tokens": STEP_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
    }


def _warm_up(run: _Run, engine: Engine, talk: Talk | None = None) -> Talk:
    """Send an unrelated conversation along every path: computing, the device's cache, kvwise."""
    run.progress.now("warming up")
    talk = talk or open_talk(engine.port, WARM_DOCUMENT)
    for _ in range(2):
        chat.forget(engine.port)
        for number in range(2):
            name = f"warm-up-{number}"
            chat.ask(engine.port, Question(name, talk.messages, ANSWER_TOKENS))
    return talk


def _wait_written(run: _Run, daemon: Daemon) -> None:
    """Wait until the disk tier holds what the arena holds.

    Raises:
        SetupError: the disk is too slow for a demo.
    """
    run.progress.now("waiting for deferred writes")
    if not daemon.written(_WRITTEN_DEADLINE_S):
        raise SetupError(
            f"writing to {daemon.options.disk} was not done within {_WRITTEN_DEADLINE_S} s; "
            "hint: choose a folder on a faster disk with --out"
        )


def _wait_for_return(run: _Run, engine: Engine, daemon: Daemon, talk: Talk) -> None:
    """Ask an unrelated conversation until the engine uses the restarted daemon.

    Raises:
        SetupError: it did not within its deadline.
    """
    deadline = time.monotonic() + _RETURN_DEADLINE_S
    while not daemon.decisions(limit=1):
        if time.monotonic() > deadline:
            raise SetupError(
                f"the engine did not come back to the daemon within {_RETURN_DEADLINE_S} s; "
                f"hint: see {run.options.out / 'engine.log'}"
            )
        run.progress.now("waiting until the engine uses the restarted daemon")
        chat.forget(engine.port)
        chat.ask(engine.port, Question("return", talk.messages, ANSWER_TOKENS))


def _replayed(path: Path) -> Replay:
    """Feed an event log to a fresh brain."""
    verdict, _ = replay(path)
    divergence = verdict.divergence
    if len(divergence) > _DIVERGENCE_CHARS_MAX:
        whole = f"kvwise explain --log {path} --replay"
        divergence = f"{divergence[:_DIVERGENCE_CHARS_MAX]}... (the whole: {whole})"
    return Replay(path.name, verdict.equal, verdict.events, divergence)
