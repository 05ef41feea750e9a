"""NIXL's POSIX backend between host memory and a file past the page cache.

The file is as long as all objects and is overwritten in every round; NIXL keeps no names and no
checksums.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvwise.bench.peers.drivers.base import (
    DriverError,
    Rates,
    Region,
    Round,
    Spec,
    Stopwatch,
    parts,
    run,
)

ENGINES = {"libaio": "use_aio", "io_uring": "use_uring", "posix_aio": "use_posix_aio"}
TRANSFER_S = 60
_LOOK_S = 0.0002


class Files:
    """An agent that knows one file and one piece of memory."""

    def __init__(self, spec: Spec, fd: int) -> None:
        os.environ["NIXL_LOG_LEVEL"] = "WARN"
        from nixl._api import nixl_agent, nixl_agent_config

        self.name = f"bench-{os.getpid()}"
        self.size_bytes, self.fd = spec["object_bytes"], fd
        self.requests = parts(spec["count"], spec["at_once"])
        total_bytes = spec["count"] * self.size_bytes
        self.source = Region(total_bytes, random=True)
        self.target = Region(total_bytes, random=False)
        self.agent: Any = nixl_agent(self.name, nixl_agent_config(backends=[]))
        chosen = ENGINES[spec["engine"]]
        flags = {flag: str(flag == chosen).lower() for flag in ENGINES.values()}
        self.agent.create_backend("POSIX", flags)
        for region in (self.source, self.target):
            place = (region.address, total_bytes, 0, "memory")
            self.agent.register_memory([place], "DRAM", ["POSIX"])
        self.agent.register_memory([(0, total_bytes, fd, "file")], "FILE", ["POSIX"])

    def move(self, operation: str, region: Region) -> Stopwatch:
        """All objects in one direction, request by request; preparing is not in the time."""
        watch = Stopwatch()
        for request in self.requests:
            offsets = [n * self.size_bytes for n in request]
            memory = [(region.address + offset, self.size_bytes, 0) for offset in offsets]
            blocks = [(offset, self.size_bytes, self.fd) for offset in offsets]
            handle = self.agent.initialize_xfer(
                operation,
                self.agent.get_xfer_descs(memory, "DRAM"),
                self.agent.get_xfer_descs(blocks, "FILE"),
                self.name,
            )
            with watch:
                self._finish(handle, self.agent.transfer(handle))
            self.agent.release_xfer_handle(handle)
        return watch

    def _finish(self, handle: Any, state: str) -> None:
        """Wait for the end of a transfer."""
        deadline = time.monotonic() + TRANSFER_S
        while state != "DONE":
            if state == "ERR" or time.monotonic() > deadline:
                raise DriverError(f"a NIXL transfer ended as {state}")
            time.sleep(_LOOK_S)
            state = self.agent.check_xfer_state(handle)


@contextmanager
def prepare(spec: Spec) -> Iterator[Round]:
    """A file, memory, and an agent that has both registered."""
    with tempfile.NamedTemporaryFile(dir=spec["folder"]) as file:
        fd = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        os.posix_fallocate(fd, 0, spec["count"] * spec["object_bytes"])
        files = Files(spec, fd)

        def do_round() -> Rates:
            files.target.wipe()
            put = files.move("WRITE", files.source)
            get = files.move("READ", files.target)
            files.source.require_same(files.target)
            total_bytes = files.source.size_bytes
            return {"put": put.gbps(total_bytes), "get": get.gbps(total_bytes)}

        yield do_round
        os.close(fd)


if __name__ == "__main__":
    run(prepare)
