"""Owns an engine that does what it is told, one JSON line after another. It asserts nothing.

`child.py` runs it as the scenario `obey`; on the other side is `fault_stage.Engine`.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kvwise.engines.mover import LOAD_THREADS, STORE_THREADS
from kvwise.errors import CacheUnavailable
from kvwise.live import client
from tests.engines.rig import Rig

ANSWER = "ANSWER "
RETIRE_S = 0.5
"""Arenas of dead daemons are unmapped so soon here: nobody can wait a minute for each of them."""

ATTACH_S = 20.0
STEPS_S = 20.0


class Puppet:
    """One engine and the verbs that it obeys."""

    def __init__(self, rig: Rig) -> None:
        """Let arenas of dead daemons go soon."""
        self._rig = rig
        client.RETIRE_S = RETIRE_S

    def run(self, prompts: list[str], **how: Any) -> dict[str, Any]:
        """Generate for prompts, in one batch or one by one; how long each call took."""
        answers, seconds = [], []
        batches = [prompts] if how.get("together") else [[prompt] for prompt in prompts]
        for batch in batches:
            begin = time.monotonic()
            answers += self._rig.run(batch, **how)
            seconds.append(time.monotonic() - begin)
        return {"answers": answers, "seconds": seconds}

    def forget(self) -> bool:
        """Empty vLLM's own prefix cache."""
        self._rig.forget()
        return True

    def attach(self) -> bool:
        """Wait until the scheduler's client talks to a daemon; whether it does."""
        deadline = time.monotonic() + ATTACH_S
        while time.monotonic() < deadline:
            try:
                self._rig.cache.status()
            except CacheUnavailable:
                time.sleep(0.02)
            else:
                return True
        return False

    def census(self) -> dict[str, Any]:
        """Descriptors, threads, arenas that are mapped, device blocks in use, requests.

        Both clients look after their daemon first, as they do whenever there is something to do.
        """
        self._rig.cache.progress(0)
        self._rig.worker._cache.progress(0)
        scheduler = self._rig.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        maps = Path("/proc/self/maps").read_text().splitlines()
        arenas = {line.split()[4] for line in maps if "memfd:kvwise-arena" in line}
        return {
            "files": Counter(files()),
            "threads": threads(),
            "arenas": len(arenas),
            "blocks": pool.num_gpu_blocks - pool.get_num_free_blocks(),
            "requests": len(scheduler.requests),
        }

    def abort(self, prompt: str) -> dict[str, Any]:
        """Begin a request and abort it in the middle of its load; how long it took to be gone."""
        engine, scheduler = self._rig.llm.llm_engine, self._rig.scheduler
        engine.add_request("aborted", prompt, self._rig.params())
        for _ in range(5):
            engine.step()
        status = [str(request.status) for request in scheduler.requests.values()]
        begin = time.monotonic()
        engine.abort_request(["aborted"])
        while scheduler.requests and time.monotonic() < begin + STEPS_S:
            engine.engine_core.engine_core.step_fn()
        return {"status": status, "seconds": time.monotonic() - begin}

    def stall_stores(self, mark: str) -> bool:
        """From now on the first store copies half of its bytes, says so in a file, and hangs."""
        copier = self._rig.worker._copier

        def half_a_store(plan: Any, fence: object) -> None:
            """Copy the first half and stay."""
            del fence
            half = len(plan.sizes) // 2
            columns = (plan.arena[:half], plan.device[:half], plan.sizes[:half])
            for target, source, size in zip(*(c.tolist() for c in columns), strict=True):
                ctypes.memmove(target, source, size)
            Path(mark).touch()
            threading.Event().wait()

        copier.store = half_a_store
        return True


def threads() -> Counter[str]:
    """Threads by name, numbers left out; those of a pool count when there are more than it has."""
    found = Counter(re.sub(r"\d+", "", one.name) for one in threading.enumerate())
    return found - Counter({"kvwise-load_": LOAD_THREADS, "kvwise-store_": STORE_THREADS})


def files() -> list[str]:
    """What the open descriptors of this process are, numbers left out."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the one that listed them
            continue
        found.append(target.split(":[", maxsplit=1)[0])
    return found


def obey(rig: Rig) -> dict[str, Any]:
    """Answer one line after another until there is no more; how many there were."""
    puppet, count = Puppet(rig), 0
    print(ANSWER + json.dumps(True), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(puppet, order.pop("verb"))(**order)
        print(ANSWER + json.dumps(answer), flush=True)
        count += 1
    return {"count": count}
