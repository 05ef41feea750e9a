"""The configuration: every key there is, where its value comes from, what is refused.

It alone reads the environment. It opens nothing and knows neither tiers nor daemons.

Later sources win: defaults, a TOML file, `KVWISE_<SECTION>_<KEY>` variables, explicit overrides.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from kvwise.config.values import (
    ADDRESS,
    CHANCE,
    COUNT,
    NUMBER,
    PATH,
    PATHS,
    SIZE,
    Kind,
    words,
)
from kvwise.errors import ConfigError
from kvwise.units import GIB, KIB, MIB, format_size

ENV_PREFIX = "KVWISE_"
PAGE_ALIGN_BYTES = 4 * KIB
PAGE_BYTES_MAX = 64 * MIB
DRAM_PAGES_MIN = 16
SOCKET_PATH_BYTES_MAX = 107  # a Unix socket address holds 108 bytes with its end mark

T = TypeVar("T")


# --- the keys ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its name is `section.key`, its text says what it does."""

    name: str
    kind: Kind
    default: object
    text: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.name.replace(".", "_").upper()

    def parse(self, value: object, origin: str = "") -> object:
        """The value in its own type; `origin` says where it was written.

        Raises:
            ConfigError: it is not one of those allowed.
        """
        try:
            return self.kind.read(value)
        except (ArithmeticError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{origin}{': ' if origin else ''}{self.name} = {value!r} is not allowed; "
                f"hint: write {self.kind.allowed}"
            ) from error


def _key(default: T, kind: Kind, text: str) -> T:
    """A field of a section that is a configuration key."""
    return field(default=default, metadata={"kind": kind, "text": text})


@dataclass(frozen=True, slots=True)
class Dram:
    """The arena: memory of this node that all its engines share."""

    size: int = _key(4 * GIB, SIZE, "bytes of memory for the arena, whole node, all engines")
    page: int = _key(128 * KIB, SIZE, "bytes of one arena page; a multiple of 4KiB")
    hugepages: str = _key("auto", words("auto", "on", "off"), "auto: if any; on: must; off: never")


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk tier. Without paths there is none."""

    paths: tuple[str, ...] = _key((), PATHS, "directories to keep objects in, one per drive")
    size: int = _key(0, SIZE, "hard cap on the bytes in all paths together")
    min_free: int = _key(4 * GIB, SIZE, "bytes that each filesystem keeps free")
    io: str = _key("auto", words("auto", "direct", "buffered"), "auto: direct where that works")
    threads: int = _key(4, COUNT, "threads that read and write")
    segment: int = _key(256 * MIB, SIZE, "bytes of one segment file")
    dwpd: float = _key(0.0, NUMBER, "drive writes per day the drives are rated for; 0: no limit")
    write_amplification: float = _key(1.0, NUMBER, "bytes that drives write for each byte given")
    codec: str = _key(
        "off",
        words("auto", "off", "fixed", "dense"),
        "auto: as objects come sooner; off: as they are; fixed, dense: always so",
    )


@dataclass(frozen=True, slots=True)
class Write:
    """What is worth storing."""

    min_tokens: int = _key(0, COUNT, "prompts shorter than this are neither stored nor loaded")
    queue: int = _key(512 * MIB, SIZE, "bytes that may wait to be written; the rest is refused")
    per_day: int = _key(0, SIZE, "bytes that may be written to disk in 24 hours; 0: no limit")
    min_chance: float = _key(0.02, CHANCE, "probability of reuse below which disk is not written")


@dataclass(frozen=True, slots=True)
class Plan:
    """When to load instead of computing."""

    policy: str = _key(
        "auto",
        words("auto", "load", "recompute"),
        "auto: load what is faster; load: whatever is found; recompute: nothing",
    )
    margin: float = _key(0.02, NUMBER, "a load must win by this fraction of its own time")
    timeout_s: float = _key(5.0, NUMBER, "seconds after which a load is given up")


@dataclass(frozen=True, slots=True)
class Evict:
    """What leaves when a tier is full."""

    policy: str = _key("worth", words("worth", "lru", "s3fifo", "wild"), "what leaves first")


@dataclass(frozen=True, slots=True)
class Serve:
    """The daemon."""

    socket: str = _key("", PATH, "Unix socket; empty: kvwise.sock in the user's runtime directory")
    metrics: str = _key("127.0.0.1:9761", ADDRESS, "where Prometheus finds metrics; empty: nowhere")
    linger_s: float = _key(5.0, NUMBER, "seconds to stay after the last client, if exiting idle")
    event_log: str = _key("", PATH, "file that records every event; empty: none")
    decision_log: str = _key("", PATH, "file with a line of JSON for each decision; empty: none")


@dataclass(frozen=True, slots=True)
class Client:
    """An engine's side."""

    url: str = _key("", PATH, "socket of the daemon; empty: a daemon of its own, started on demand")
    chunk_tokens: int = _key(0, COUNT, "tokens in one object; 0: chosen from the model")
    load: str = _key(
        "auto",
        words("auto", "sync", "async"),
        "sync: load within the step; async: beside other steps; auto: as fits",
    )
    timeout_s: float = _key(0.25, NUMBER, "seconds that an answer of the daemon may take")
    lossy: str = _key(
        "off", words("off", "fp8", "nvfp4"), "let disk keep KV in fewer bits: changes answers"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set, by section."""

    dram: Dram = field(default_factory=Dram)
    disk: Disk = field(default_factory=Disk)
    write: Write = field(default_factory=Write)
    plan: Plan = field(default_factory=Plan)
    evict: Evict = field(default_factory=Evict)
    serve: Serve = field(default_factory=Serve)
    client: Client = field(default_factory=Client)

    def value(self, name: str) -> object:
        """The value of `section.key`."""
        section, _, key = name.partition(".")
        value: object = getattr(getattr(self, section), key)
        return value

    @property
    def socket_path(self) -> str:
        """Where the daemon of this configuration listens."""
        return self.serve.socket or str(runtime_directory() / "kvwise.sock")


_SECTIONS: dict[str, Any] = {section.name: section.default_factory for section in fields(Config)}


def _all_keys() -> Iterator[Key]:
    """The keys of every section, in the order in which they are written down."""
    for section, kind in _SECTIONS.items():
        for item in fields(kind):
            yield Key(f"{section}.{item.name}", default=item.default, **item.metadata)


KEYS: tuple[Key, ...] = tuple(_all_keys())
"""Every key, in order."""
_BY_NAME = {key.name: key for key in KEYS}
_BY_VARIABLE = {key.variable: key for key in KEYS}
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"  # names a configuration file when none is given


# --- where values come from ----------------------------------------------------------------------


def load(
    path: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """The effective configuration.

    Without `path`, the file that `KVWISE_CONFIG` names is read, if any. `overrides` are nested by
    section or have dotted names; `flags` says by which flag a key of them was given. `environ` is
    the process's environment unless given.

    Raises:
        ConfigError: an unknown key, a value that is not allowed, or keys that contradict.
    """
    variables = os.environ if environ is None else environ
    source = path or variables.get(CONFIG_VARIABLE)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    if source:
        values |= _named(_read_toml(Path(source)), str(source))
        origins |= dict.fromkeys(values, str(source))
    found = _from_environment(variables)
    given = _named(overrides or {}, "options")
    origins |= {name: _BY_NAME[name].variable for name in found}
    origins |= {name: (flags or {}).get(name, "options") for name in given}
    parsed: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for name, value in (values | found | given).items():
        section, _, key = name.partition(".")
        parsed[section][key] = _BY_NAME[name].parse(value, origins[name])
    config = Config(**{name: kind(**parsed[name]) for name, kind in _SECTIONS.items()})
    try:
        _refuse_contradictions(config)
    except ConfigError as error:
        raise ConfigError(_with_origins(str(error), origins)) from error
    return config


def _with_origins(message: str, origins: Mapping[str, str]) -> str:
    """A message with where the keys that it names were set."""
    named = [name for name in origins if re.search(rf"\b{re.escape(name)}\b", message)]
    told = ", ".join(f"{name} is from {origins[name]}" for name in named)
    text, hint, advice = message.partition("; hint:")
    return f"{text} ({told}){hint}{advice}" if told else message


def _read_toml(path: Path) -> dict[str, object]:
    """The content of a TOML file."""
    if path.is_fifo():
        raise ConfigError(f"{path} is a pipe; hint: write the configuration to a file")
    try:
        with path.open("rb") as file:
            data = file.read(MIB + 1)
        if len(data) > MIB:
            raise ValueError("it is longer than 1MiB")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _named(values: Mapping[str, object], source: str) -> dict[str, object]:
    """Values by dotted name, from nested or dotted ones; unknown names are refused."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if name in _SECTIONS:
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{source}: {name} is a section, not a value; hint: write it as a table"
                )
            inside = {f"{name}.{key}": item for key, item in value.items()}
        else:
            inside = {name: value}
        for twice in flat.keys() & inside.keys():
            section, _, key = twice.partition(".")
            raise ConfigError(
                f"{source}: {twice} is given twice, as {twice!r} and as {key!r} in [{section}]; "
                "hint: keep one"
            )
        flat |= inside
    for name in flat:
        if name not in _BY_NAME:
            raise ConfigError(f"{source}: there is no key {name!r}; hint: {_nearest(name)}")
    return flat


def _nearest(name: str) -> str:
    """Which key or section was probably meant."""
    found = difflib.get_close_matches(name, [*_BY_NAME, *_SECTIONS], n=1, cutoff=0.6)
    if not found:
        last = name.rpartition(".")[2]
        found = [key for key in _BY_NAME if key.rpartition(".")[2] == last][:1]
    return f"did you mean {found[0]!r}?" if found else "keys are " + ", ".join(_BY_NAME)


def _from_environment(variables: Mapping[str, str]) -> dict[str, object]:
    """Values by dotted name from `KVWISE_*` variables.

    Tools that work with kvwise have variables of their own, so an unknown one is refused only when
    it begins like a section or looks like a key mistyped.
    """
    values: dict[str, object] = {}
    for variable, value in variables.items():
        if variable in _BY_VARIABLE:
            values[_BY_VARIABLE[variable].name] = value
        elif variable.startswith(ENV_PREFIX) and variable != CONFIG_VARIABLE:
            section = variable.removeprefix(ENV_PREFIX).partition("_")[0].lower()
            cutoff = 0.0 if section in _SECTIONS else 0.85
            close = difflib.get_close_matches(variable, _BY_VARIABLE, n=1, cutoff=cutoff)
            if close:
                raise ConfigError(f"there is no setting {variable}; hint: did you mean {close[0]}?")
    return values


# --- what is refused -----------------------------------------------------------------------------


def _refuse_contradictions(config: Config) -> None:
    """Refuse values that cannot be meant together, or that cannot work anywhere."""
    dram, disk = config.dram, config.disk
    if dram.page % PAGE_ALIGN_BYTES or not 0 < dram.page <= PAGE_BYTES_MAX:
        raise ConfigError(f"dram.page = {dram.page} is not a multiple of 4KiB up to 64MiB")
    if dram.size < DRAM_PAGES_MIN * dram.page:
        raise ConfigError(
            f"dram.size = {format_size(dram.size)} is less than {DRAM_PAGES_MIN} pages of "
            f"{format_size(dram.page)}; hint: raise dram.size or lower dram.page"
        )
    if bool(disk.paths) != bool(disk.size):
        missing, given = ("size", "paths") if disk.paths else ("paths", "size")
        raise ConfigError(
            f"disk.{given} is set without disk.{missing}; hint: set both for a disk tier, "
            "or neither for none"
        )
    _refuse_disk(disk)
    for name in ("plan.timeout_s", "client.timeout_s"):
        if not config.value(name):
            raise ConfigError(f"{name} must be more than 0; hint: leave it out")
    for name in ("serve.socket", "client.url"):
        if len(os.fsencode(str(config.value(name)))) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"{name} is longer than the {SOCKET_PATH_BYTES_MAX} bytes of a socket address; "
                "hint: choose a shorter path"
            )


def _refuse_disk(disk: Disk) -> None:
    """Refuse a disk tier that cannot work."""
    if len(set(map(os.path.realpath, disk.paths))) < len(disk.paths):
        raise ConfigError("disk.paths names a directory twice; hint: name each drive once")
    if not 1 <= disk.threads <= 64:
        raise ConfigError(f"disk.threads = {disk.threads} is not 1 to 64; hint: leave it out")
    for name, least, text in (("segment", 4 * MIB, "4MiB"), ("write_amplification", 1, "1")):
        if (given := getattr(disk, name)) < least:
            raise ConfigError(f"disk.{name} = {given} is less than {text}; hint: leave it out")
    if disk.paths and disk.size < disk.segment * len(disk.paths):
        raise ConfigError(
            f"disk.size = {format_size(disk.size)} is less than one segment of "
            f"{format_size(disk.segment)} for each path; hint: raise it or lower disk.segment"
        )


# --- places and printing -------------------------------------------------------------------------


def runtime_directory() -> Path:
    """Where this user's sockets lie; not in `$TMPDIR`, which an engine may have to itself."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and Path(given).is_dir() and os.access(given, os.W_OK):
        return Path(given) / "kvwise"
    return Path(f"/tmp/kvwise-{os.getuid()}")  # noqa: S108  created 0700, its owner is checked


def environment() -> dict[str, str]:
    """The process's environment without kvwise's settings, for a child that is told them all."""
    return {k: v for k, v in os.environ.items() if k not in _BY_VARIABLE and k != CONFIG_VARIABLE}


def digest(config: Config) -> str:
    """A short name for the daemon that this configuration describes, wherever it listens."""
    text = "\n".join(
        f"{key.name}={config.value(key.name)!r}"
        for key in KEYS
        if not key.name.startswith("client.") and key.name != "serve.socket"
    )
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def render(config: Config) -> str:
    """The configuration as a TOML file that `load` reads back."""
    lines: list[str] = []
    section = ""
    for key in KEYS:
        here, _, name = key.name.partition(".")
        if here != section:
            lines += ([""] if lines else []) + [f"[{here}]"]
            section = here
        value = config.socket_path if key.name == "serve.socket" else config.value(key.name)
        lines.append(f"{name} = {_toml(key, value)}  # {key.text}")
    return "\n".join(lines) + "\n"


def _toml(key: Key, value: object) -> str:
    """One value in TOML, sizes with the largest unit that divides them. JSON is TOML here."""
    if key.kind is SIZE and isinstance(value, int) and value:
        for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if value % unit == 0:
                return f'"{value // unit}{name}"'
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
