"""`kvwise serve`: run the daemon of this node in the foreground. It knows no verb of the daemon."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

import kvwise
from kvwise import config as configuration
from kvwise.config import Config
from kvwise.config.values import split_address
from kvwise.errors import ConfigError
from kvwise.live.daemon import Daemon
from kvwise.live.node import Node
from kvwise.live.place import SocketPlace
from kvwise.live.stats import MetricsServer
from kvwise.units import format_size

FLUSH_S = 20.0
"""How long a daemon that was told to stop may go on writing what was deferred."""

SUCCESSION_S = 15.0
"""How long an embedded daemon waits for one that is just leaving its socket."""

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another waits for it. The usual 5 ms would be
felt by every request that is asked about while a worker computes."""

EXIT_FORCED = 1
Decorator = Callable[[Callable[..., None]], Callable[..., None]]
_log = logging.getLogger("kvwise")


SETTINGS, FLAGS = "settings", "flags"
"""Where options that are settings gather in click's context, and by which flag each was given."""


def _setting(flag: str, name: str, text: str, *, multiple: bool = False) -> Decorator:
    """An option that sets a configuration key."""

    def note(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
        del parameter
        if value is not None and value != ():
            ctx.meta.setdefault(SETTINGS, {})[name] = value
            ctx.meta.setdefault(FLAGS, {})[name] = flag

    return click.option(flag, expose_value=False, callback=note, multiple=multiple, help=text)


@click.command(
    epilog="""\b
Examples:
  kvwise serve --dram 8GiB
  kvwise serve --dram 8GiB --disk /mnt/nvme0/kv --disk /mnt/nvme1/kv --disk-size 500GiB
  kvwise serve --config kvwise.toml --print-config
"""
)
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file with settings.")
@_setting("--socket", "serve.socket", "Unix socket to listen at.")
@_setting("--dram", "dram.size", "Memory for the whole node, such as 8GiB.")
@_setting(
    "--disk", "disk.paths", "Directory to keep objects in; once for each drive.", multiple=True
)
@_setting("--disk-size", "disk.size", "Cap on all disk directories together, such as 500GiB.")
@_setting("--metrics", "serve.metrics", "host:port for Prometheus; '' for none.")
@_setting("--event-log", "serve.event_log", "File to record every event in.")
@_setting("--decision-log", "serve.decision_log", "File to write decisions to, as JSON lines.")
@click.option("--exit-when-idle", is_flag=True, help="Exit soon after the last client left.")
@click.option("--print-config", is_flag=True, help="Print the effective configuration and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@click.pass_context
def command(
    ctx: click.Context, path: Path | None, exit_when_idle: bool, print_config: bool, as_json: bool
) -> None:
    """Run the cache daemon of this node.

    It owns the memory and the disk directories, and every engine of this user on this node
    can attach to it. It stops on SIGTERM or Ctrl-C after writing what was deferred;
    a second signal stops it at once.
    SIGHUP reopens the decision log, so that it can be rotated; where a terminal is attached,
    the end of which it tells of, it stops the daemon too.
    """
    given, flags = ctx.meta.get(SETTINGS, {}), ctx.meta.get(FLAGS, {})
    config = configuration.load(path, given, flags=flags)
    if print_config:
        click.echo(configuration.render(config), nl=False)
        return
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    sys.setswitchinterval(SWITCH_S)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # one for each connection and read
    serve(config, exit_when_idle=exit_when_idle, as_json=as_json)


def serve(config: Config, *, exit_when_idle: bool, as_json: bool) -> None:
    """Open everything, say so, serve until told to stop, and close everything."""
    place = SocketPlace(Path(config.socket_path), wait_s=SUCCESSION_S if exit_when_idle else 0.0)
    metrics: MetricsServer | None = None
    try:
        with _starting_threads():
            node = Node(config)
        try:
            if config.serve.metrics:
                with _starting_threads():
                    metrics = MetricsServer(config.serve.metrics, node.latencies, node.status)
            linger_s = config.serve.linger_s if exit_when_idle else None
            daemon = Daemon(node, place, linger_s=linger_s)
            _heed_signals(daemon, node)
            gc.collect()
            gc.freeze()  # what was recovered stays; no collection need look at it again
            click.echo(_ready(config, node, metrics, as_json=as_json))
            daemon.run()
        finally:
            if metrics is not None:
                metrics.close()
            if not node.close(FLUSH_S):
                _log.warning("some deferred writes were dropped")
    finally:
        place.close()
    _log.info("stopped")


@contextmanager
def _starting_threads() -> Iterator[None]:
    """Say what it means when the kernel gives no thread.

    Raises:
        ConfigError: it gave none.
    """
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise ConfigError(
            "no thread can be started: a limit of this user, service or container is reached; "
            "hint: raise ulimit -u, TasksMax= or --pids-limit"
        ) from error


def _heed_signals(daemon: Daemon, node: Node) -> None:
    """The first signal stops the daemon in order, the second at once; SIGHUP has logs reopened."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asked for more
        if sys.stdin is not None and sys.stdin.isatty():
            numbers.append(signal.SIGHUP)
        else:
            signal.signal(signal.SIGHUP, lambda *_: node.reopen_logs())

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for each in numbers:
            signal.signal(each, _exit_now)
        _log.info("%s: writing what was deferred, then stopping", signal.Signals(number).name)
        daemon.stop()

    for each in numbers:
        signal.signal(each, stop)


def _exit_now(number: int, frame: FrameType | None) -> None:
    """Leave without closing anything: what the disk holds is whole or is found torn."""
    del number, frame
    os._exit(EXIT_FORCED)


def _ready(config: Config, node: Node, metrics: MetricsServer | None, *, as_json: bool) -> str:
    """The line that says what is served, and where."""
    status = node.status()
    tiers, backing = status["levels"]["tiers"], status["arena"]["backing"]
    budget_bytes = status["endurance"].get("disk", {}).get("budget_per_day_bytes", 0)
    address = ""
    if metrics is not None:
        host = split_address(config.serve.metrics)[0]
        address = f"http://{host}:{metrics.port}/metrics"
    if as_json:
        facts = {
            "ready": True,
            "version": kvwise.__version__,
            "pid": os.getpid(),
            "socket": config.socket_path,
            "dram_bytes": tiers["dram"]["capacity_bytes"],
            "backing": backing,
            "disk_bytes": config.disk.size,
            "write_bytes_per_day": budget_bytes,
            "objects": status["levels"]["blocks"],
            "metrics": address,
        }
        return json.dumps(facts)
    parts = [f"{format_size(tiers['dram']['capacity_bytes'])} of memory ({backing})"]
    if config.disk.paths:
        found = tiers["disk"]["objects"]
        where = ", ".join(config.disk.paths)
        parts.append(f"{format_size(config.disk.size)} of disk in {where} ({found} objects found)")
    if budget_bytes:
        parts.append(f"{format_size(budget_bytes)} may be written to disk in a day")
    if address:
        parts.append(f"metrics at {address}")
    return f"kvwise {kvwise.__version__} serves {config.socket_path}: " + "; ".join(parts)
