"""Configurations from every source at once: a file, variables, options. It owns no key.

An input has up to three parts with a zero byte between them: the text of the file, lines of
variables, lines of options.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from kvwise import config
from kvwise.host import check_host

_SHARED_MEMORY = Path("/dev/shm")


def open_config(stack: ExitStack) -> Callable[[bytes], None]:
    """Load, check against this machine, print, and load what was printed."""
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvwise-fuzz-", dir=base)))
    given, printed = folder / "given.toml", folder / "printed.toml"

    def attempt(data: bytes) -> None:
        text, variables, options = [*data.split(b"\0", 2), b"", b""][:3]
        given.write_bytes(text)
        loaded = config.load(given, dict(_pairs(options)), environ=dict(_pairs(variables)))
        printed.write_text(config.render(loaded), encoding="utf-8")
        again = config.load(printed, environ={})
        assert config.render(again) == config.render(loaded)
        assert config.digest(again) == config.digest(loaded)
        check_host(loaded)

    return attempt


def _pairs(lines: bytes) -> Iterator[tuple[str, str]]:
    """Names and values as a shell would hand them over: any byte but zero."""
    for line in lines.split(b"\n"):
        name, equals, value = line.decode("utf-8", "surrogateescape").partition("=")
        if equals and "\0" not in value:
            yield name.strip(), value


def texts() -> list[bytes]:
    """Good configurations: the defaults as they are printed, and each source alone."""
    printed = config.render(config.Config()).encode()
    lines = [line.split(b"#")[0].strip() for line in printed.split(b"\n")]
    variables = b"\n".join(
        f"{key.variable}={_written(key.default)}".encode() for key in config.KEYS
    )
    options = b"\n".join(f"{key.name}={_written(key.default)}".encode() for key in config.KEYS)
    disk = b'[disk]\npaths = ["/a", "/b"]\nsize = "600MiB"\nio = "direct"\n[plan]\nmargin = 0.5'
    return [
        b"\n".join(lines),
        b"\0" + variables,
        b"\0\0" + options,
        disk,
        disk + b"\0KVWISE_DRAM_SIZE=1GiB\nKVWISE_PLAN_POLICY=load\0serve.socket=/run/x.sock",
        b"\0KVWISE_DISK_PATHS=/a:/b\nKVWISE_DISK_SIZE=2TiB\nKVWISE_CONFIGX=1",
    ]


def _written(value: object) -> str:
    """A default as a variable would have it."""
    return ":".join(value) if isinstance(value, tuple) else str(value)
