"""Settings of simulated machines, read from TOML. It knows shapes and bounds, and no meaning.

Every refusal names all keys that are wrong, as `section.key`, and what was expected there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from kvwise.errors import ConfigError
from kvwise.units import parse_size

_FILE_BYTES_MAX = 1 << 20
_SIZES = ("size", "_bytes", "_bytes_per_token", "_bytes_per_s", "_bytes_per_day")
"""Keys that end so may be written as text with a unit."""

_HINT = "hint: docs/simulator.md has an example"

SECONDS_MAX = 3_600.0
"""No step, latency or other single thing takes longer."""

Count = Annotated[int, Meta(ge=1, le=1 << 40)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 60)]
Rate = Annotated[float, Meta(ge=1, le=1e18)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Share = Annotated[float, Meta(ge=0.001, le=1)]

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, object]:
    """The content of a file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise ConfigError(f"{path} has more than {_FILE_BYTES_MAX} bytes; {_HINT}")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; {_HINT}") from error


class Misfit(ConfigError):
    """Settings that cannot be.

    Attributes:
        faults: everything that is wrong, each with its key first.
    """

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        """One fault is a line, several are a list."""
        self.faults = tuple(faults)
        one, *more = self.faults
        listed = "".join(f"\n  {fault}" for fault in self.faults)
        super().__init__(f"{source}:{listed}\n{_HINT}" if more else f"{source}: {one}; {_HINT}")


def understand(values: Mapping[str, object], kind: type[T], source: str) -> T:
    """Values as a structure; texts of sizes become numbers.

    Raises:
        Misfit: something is unknown, missing, of another type or out of bounds.
    """
    faults = [*faults_of(values, kind)]
    if faults:
        raise Misfit(source, faults)
    return msgspec.convert(_sized(values, ""), kind)


def faults_of(values: Mapping[str, object], kind: type[Any], inside: str = "") -> Iterator[str]:
    """Everything that keeps values from being a structure, each fault with its key first.

    `inside` is the section that they are of, with a dot at its end.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in [key for key in values if key not in fields]:
        near = get_close_matches(key, fields, n=1)
        meant = f"; is it {inside}{near[0]}?" if near else f", but {', '.join(fields)}"
        yield f"{inside}{key}: there is no such key{meant}"
    for key, field in fields.items():
        section = _section(field.type)
        if key in values and section is None:
            yield from _misread(values[key], field.type, f"{inside}{key}")
        elif key in values:
            value = values[key]
            if section is not None and isinstance(value, dict):
                yield from faults_of(value, section, f"{inside}{key}.")
            else:
                yield f"{inside}{key}: it is a section, which begins with [{key}]"
        elif field.required:
            begins = "" if section is None else f"; it is a section, which begins with [{key}]"
            yield f"{inside}{key}: it is missing{begins}"


def _section(kind: object) -> type[Struct] | None:
    """The structure that a field holds, or None where it holds a value."""
    kinds = (kind, *get_args(kind))
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, Struct)), None)


def _misread(value: object, kind: object, name: str) -> Iterator[str]:
    """Why a value cannot be what it should be, if it cannot."""
    try:
        msgspec.convert(_sized(value, name), kind)
    except msgspec.ValidationError as error:  # a ValueError too
        said, _, place = str(error).partition(" - at `$")
        yield f"{name}{place.rstrip('`')}: {said[:1].lower()}{said[1:]}"
    except (ValueError, OverflowError) as error:
        yield f"{name}: {error}"


def _sized(value: object, name: str) -> object:
    """The same, with the sizes in it as numbers of bytes.

    Raises:
        ValueError, OverflowError: the text of a size is none.
    """
    if isinstance(value, Mapping):
        return {key: _sized(one, key) for key, one in value.items()}
    return parse_size(value) if isinstance(value, str) and name.endswith(_SIZES) else value
