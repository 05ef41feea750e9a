"""Settings of simulated machines, read from TOML. It knows shapes and bounds, and no meaning.

Every refusal names the key, as `section.key`, and what was expected there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

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


def understand(values: object, kind: type[T], source: str) -> T:
    """Values as a structure; texts of sizes become numbers.

    Raises:
        ConfigError: something is unknown, missing, of another type or out of bounds.
    """
    try:
        return msgspec.convert(_sized(values, ""), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_spoken(str(error))}; {_HINT}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _sized(values: object, name: str) -> object:
    """The same values, with the sizes among them as numbers of bytes."""
    if isinstance(values, dict):
        return {key: _sized(value, f"{name}.{key}".lstrip(".")) for key, value in values.items()}
    if isinstance(values, list):
        return [_sized(value, name) for value in values]
    if isinstance(values, str) and name.endswith(_SIZES):
        try:
            return parse_size(values)
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"{name}: {error}") from error
    return values


def _spoken(text: str) -> str:
    """What the converter says, with the key first."""
    found = re.fullmatch(r"(.*?) - at `\$\.?(.*)`", text)
    if not found:
        missing = re.fullmatch(r"Object (missing required field `(.+)`)", text)
        if missing:
            return f"{missing[1]}, which is a section and begins with [{missing[2]}]"
        return text[:1].lower() + text[1:]
    said, key = found[1], found[2]
    return f"{key}: {said[:1].lower()}{said[1:]}"
