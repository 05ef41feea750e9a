"""LMCache's own benchmarks, `lmcache bench server` and `lmcache bench l2`, run once for each round.

The first moves paged KV between a simulated engine and LMCache's multi-process server, which runs
as long as the driver does; the second drives one of its storage adapters. Both verify contents.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvwise.bench.peers.drivers.base import (
    DriverError,
    Rates,
    Round,
    Spec,
    child,
    free_port,
    run,
    wait_for_port,
)

BENCH_S = 240
START_S = 120
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
"""Where the server's memory has a name; a server that is killed leaves it behind."""

MODES = ("engine_driven", "lmcache_driven")


def program() -> str:
    """The peer's command, beside its Python."""
    return str(Path(sys.executable).parent / "lmcache")


def bench(arguments: list[str]) -> dict[str, Any]:
    """The metrics in the report of a run of `lmcache bench`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [program(), "bench", *arguments, "--format", "json", "--output", str(report)]
        done = subprocess.run(
            command, stdout=sys.stderr, stdin=subprocess.DEVNULL, timeout=BENCH_S, check=False
        )
        if done.returncode != 0:
            raise DriverError(f"{command} ended with code {done.returncode}")
        metrics: dict[str, Any] = json.loads(report.read_text())["metrics"]
        return metrics


@contextmanager
def server(spec: Spec) -> Iterator[Round]:
    """A server with memory that was touched; each round asks it in both modes."""
    rpc, http, prometheus = free_port(), free_port(), free_port()
    command = [program(), "server", "--port", str(rpc), "--http-port", str(http)]
    command += ["--prometheus-port", str(prometheus), "--l1-size-gb", str(spec["pool_gib"])]
    command += ["--no-l1-use-lazy", "--eviction-policy", "LRU", "--max-workers", "2"]
    name = f"bench{os.getpid()}"
    command += ["--supported-transfer-mode", "auto", "--shm-name", name]
    sequences = itertools.count(0, spec["requests"])
    with ExitStack() as undo:
        undo.callback(SHARED_MEMORY.joinpath(f"lmcache_l1_pool_{name}").unlink, missing_ok=True)
        process = undo.enter_context(child(command))
        wait_for_port(http, process, START_S)

        def do_round() -> Rates:
            rates: Rates = {}
            for mode in MODES:
                first = next(sequences)  # a sequence that was seen before would all be hits
                client = ["server", "--rpc-url", f"tcp://localhost:{rpc}", "--mode", "cpu"]
                client += ["--url", f"http://localhost:{http}", "--transfer-mode", mode]
                client += ["--num-tokens", str(spec["tokens"]), "--interval", "0.1"]
                client += ["--kvcache-shape-spec", spec["shape"], "--start", str(first)]
                metrics = bench([*client, "--end", str(first + spec["requests"])])
                if metrics["results"]["checksum_fail"]:
                    raise DriverError("LMCache's server gave back other bytes")
                put_ms = metrics["cold_store"]["cold_store_p50"]
                get_ms = metrics["warm_retrieve"]["warm_retrieve_p50"]
                rates[f"{mode} put"] = spec["total_bytes"] / put_ms / 1e6
                rates[f"{mode} get"] = spec["total_bytes"] / get_ms / 1e6
            return rates

        yield do_round


@contextmanager
def adapter(spec: Spec) -> Iterator[Round]:
    """The native file adapter past the page cache; one batch of all objects is one call."""
    count, size_bytes = spec["count"], spec["object_bytes"]

    def do_round() -> Rates:
        with tempfile.TemporaryDirectory(dir=spec["folder"]) as folder:
            place = {"type": "fs_native", "base_path": folder, "num_workers": spec["workers"]}
            arguments = ["l2", "--l2-adapter", json.dumps(place | {"use_odirect": True})]
            arguments += ["--num-keys", str(count), "--data-size-kb", str(size_bytes // 1024)]
            arguments += ["--l1-align-bytes", "4096", "--rounds", str(spec["rounds"])]
            metrics = bench([*arguments, "--no-skip-verify"])
        rates: Rates = {}
        for entry in metrics.values():
            op = {"store": "put", "load": "get"}.get(str(entry.get("operation", "")).lower())
            if op is None:
                continue
            if entry["total_success"] != entry["total_keys"]:
                raise DriverError(f"{op}: {entry['total_success']} of {entry['total_keys']} keys")
            rates[op] = count * size_bytes / entry["duration_p50_ms"] / 1e6
        return rates

    yield do_round


@contextmanager
def prepare(spec: Spec) -> Iterator[Round]:
    """Whichever of the two was asked for."""
    os.environ["LMCACHE_TRACK_USAGE"] = "false"
    chosen = server if spec["what"] == "server" else adapter
    with chosen(spec) as do_round:
        yield do_round


if __name__ == "__main__":
    run(prepare)
