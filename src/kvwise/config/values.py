"""Values: how what stands in a configuration is read, and what an error offers instead.

It knows no keys, and looks nothing up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvwise.units import parse_size

COUNT_MAX = 1 << 53  # 8 PiB; a float still tells it from its neighbours
NUMBER_MAX = 1e9  # 30 years, if it is seconds


def _size(value: object) -> int:
    """Bytes, from a whole number or a text with a unit."""
    return _count(parse_size(value) if isinstance(value, str) else value)


def _count(value: object) -> int:
    """A whole number that is not negative."""
    number = _number(value, COUNT_MAX)
    if number != int(number):
        raise ValueError("not a whole number")
    return int(number)


def _number(value: object, most: float = NUMBER_MAX) -> float:
    """A number that is not negative, and that can be counted in nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("not a number")
    number = float(value)
    if not 0 <= number <= most:
        raise ValueError("negative, too large or not a number")
    return number


def _text(value: object) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _path(value: object) -> str:
    """An absolute path, or nothing."""
    text = _text(value)
    if b"\0" in text.encode():  # what does not encode is a ValueError as well
        raise ValueError("not a path")
    return str(Path(text).expanduser().absolute()) if text else ""


def _paths(value: object) -> tuple[str, ...]:
    """Absolute paths, from a list or a text with colons."""
    if isinstance(value, str):
        value = [part for part in value.split(os.pathsep) if part]
    if not isinstance(value, list | tuple) or "" in value:
        raise TypeError("not a list of paths")
    return tuple(_path(item) for item in value)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`; brackets around an IPv6 host are removed.

    Raises:
        ValueError: no host, or the port is not a number from 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("not host:port")
    host.encode("idna")  # a name that cannot be looked up is a ValueError here, not later
    return host.strip("[]"), int(port)


def _address(value: object) -> str:
    """`host:port`, or nothing."""
    if text := _text(value):
        split_address(text)
    return text


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read, and what may be written, as an error message offers it."""

    read: Callable[[object], object]
    allowed: str


SIZE = Kind(_size, "a size such as 4GiB, 512MiB or a number of bytes, at most 8PiB")
COUNT = Kind(_count, f"a whole number from 0 to {COUNT_MAX}")
NUMBER = Kind(_number, f"a number from 0 to {NUMBER_MAX:.0f}")
CHANCE = Kind(lambda value: _number(value, 1.0), "a number from 0 to 1")
PATH = Kind(_path, "a path")
PATHS = Kind(_paths, "a list of paths (in the environment: separated by colons)")
ADDRESS = Kind(_address, "host:port, or empty for none")


def words(*allowed: str) -> Kind:
    """One of these words."""

    def read(value: object) -> str:
        """The word, if it is one of them."""
        if value not in allowed:
            raise ValueError("not one of the words")
        return _text(value)

    return Kind(read, " | ".join(allowed))
