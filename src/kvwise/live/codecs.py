"""Codecs of a daemon: loaded on a thread of their own, compiled by another process where need be.

Compiling would compete with requests for the interpreter, so here only machine code is loaded that
is kept on disk. What is missing there is compiled by a process of low priority first. It decides
nothing; whoever reads or writes is told by `Codecs` what is not there yet.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kvwise.codecs import compiler, forms, kept
from kvwise.codecs.forms import Codecs
from kvwise.codecs.kept import NotKeptError
from kvwise.config import environment
from kvwise.core.elements import Coding, Elements
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.workers import attempt
from kvwise.units import NS_PER_S

COMPILE_S = 900.0
"""How long compiling may take: half a minute, and much longer beside an engine that computes on all
cores."""

PAUSE_S = 0.02
"""Between two codecs that are loaded the interpreter belongs to others."""

SAID_BYTES = 2000
_log = logging.getLogger(__name__)


class CodecLoader:
    """Loads what `Codecs` needs. Whatever goes wrong, there are no codecs from then on."""

    def __init__(self, codecs: Codecs, told: Callable[[tuple[Coding, ...]], None]) -> None:
        """Load nothing yet; `told` hears which codings were loaded, none where they failed."""
        self._codecs = codecs
        self._told = told
        self._turn = threading.Lock()
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []
        self._compiled_s = self._loaded_s = 0.0

    def load(
        self, codings: Mapping[Coding, Elements], numbers: Iterable[int] = ()
    ) -> threading.Event:
        """Begin to load; the event is set once all is there, will take long, or failed."""
        settled, wanted = threading.Event(), tuple(numbers)
        if not codings and not wanted:
            settled.set()
            return settled
        work = partial(self._run, dict(codings), wanted, settled)
        thread = threading.Thread(target=work, name="kvwise-codecs", daemon=True)
        with self._changing:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
            thread.start()
        return settled

    def status(self) -> dict[str, Any]:
        """What became of it: why there are none, whether some are to come, and seconds it took."""
        return {
            "failure": self._codecs.failure,
            "loading": any(thread.is_alive() for thread in self._threads),
            "compiling": self._child is not None,
            "compiled_s": self._compiled_s,
            "loaded_s": self._loaded_s,
        }

    def close(self, timeout_s: float) -> None:
        """Give up what is under way, and wait for it; idempotent."""
        with self._changing:
            self._closing.set()
            if self._child is not None:
                self._child.kill()
            threads, self._threads = self._threads, []
        deadline_ns = deadline_after(timeout_s)
        for thread in threads:
            thread.join(seconds_until(deadline_ns))

    # --- on the thread ---

    def _run(
        self, codings: dict[Coding, Elements], numbers: tuple[int, ...], settled: threading.Event
    ) -> None:
        """Load, and tell."""
        try:
            with self._turn:
                if self._codecs.failure:
                    return
                failure = self._obtain(codings, numbers, settled)
                if self._closing.is_set():
                    return
                self._codecs.failure = failure
            if failure:
                _log.warning("no codecs: %s; hint: %s, or repair it", failure, forms.INSTALL)
            if codings or failure:
                self._told(() if failure else tuple(codings))
        finally:
            settled.set()

    def _obtain(
        self, codings: dict[Coding, Elements], numbers: tuple[int, ...], settled: threading.Event
    ) -> str:
        """Have all of them; why not, if so."""
        load = partial(self._load, codings, numbers)
        error = attempt(load)
        if isinstance(error, NotKeptError):
            settled.set()
            failure = self._compile(compiler.words(codings, numbers))
            if failure:
                return failure
            error = attempt(load)
        return f"{type(error).__name__}: {error}" if error else ""

    def _load(self, codings: dict[Coding, Elements], numbers: tuple[int, ...]) -> None:
        """Load what is kept.

        Raises:
            NotKeptError: some of it is not.
            ImportError: Numba does not go with what else is installed.
        """
        if not kept.folder():
            raise NotKeptError("no machine code can be kept")
        before_ns = now_ns()
        with kept.only_kept():
            for number in numbers:
                self._codecs.make(number)
                self._closing.wait(PAUSE_S)
            for coding, elements in codings.items():
                self._codecs.warm([coding], elements)
                self._closing.wait(PAUSE_S)
        self._loaded_s += (now_ns() - before_ns) / NS_PER_S

    def _compile(self, words: list[str]) -> str:
        """Have a process compile; why it did not, if so."""
        if not kept.folder():
            return f"machine code cannot be kept: {kept.FOLDER} cannot be written"
        _log.info("codecs are compiled, once for this version on this machine: %s", " ".join(words))
        before_ns = now_ns()
        with tempfile.TemporaryFile() as said:
            with self._changing:
                if self._closing.is_set():
                    return "the daemon ends"
                child = self._child = subprocess.Popen(
                    [sys.executable, "-m", compiler.__name__, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                    env=environment(),
                )
            failure = _awaited(child)
            with self._changing:
                self._child = None
            said.seek(0)
            last = said.read()[-SAID_BYTES:].decode(errors="replace").strip().splitlines()[-1:]
        self._compiled_s += (now_ns() - before_ns) / NS_PER_S
        return ": ".join([failure, *last]) if failure else ""


def _awaited(child: subprocess.Popen[bytes]) -> str:
    """Wait for the compiler, as long as may be; how it failed, if it did."""
    with child:
        try:
            status = child.wait(COMPILE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return f"compiling took more than {COMPILE_S:.0f} s"
    return f"the compiler ended with status {status}" if status else ""
