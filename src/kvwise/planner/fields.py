"""The fields of a model's configuration. What is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvwise.errors import ConfigError
from kvwise.units import format_size

LAYERS_MAX = 10_000
NUMBER_MAX = 1 << 31
"""No width, count or window is larger."""


class Fields:
    """The fields of a configuration, with errors that name what is missing."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self._values = values

    def get(self, field: str) -> object:
        """A field as it is, None where it is missing."""
        return self._values.get(field)

    def number(
        self, field: str, default: int | None = None, *, least: int = 1, most: int = NUMBER_MAX
    ) -> int:
        """A field that must be a whole number, from 1 unless `least` says otherwise.

        Raises:
            ConfigError: it is missing, or is none.
        """
        value = self._values.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            said = "is missing" if value is None else f"is {value!r:.40}, not {least} to {most}"
            raise self.error(f"{field} {said}")
        return value

    def layers(self) -> int:
        """How many layers there are.

        Raises:
            ConfigError: it does not say, or that cannot be.
        """
        return self.number("num_hidden_layers", most=LAYERS_MAX)

    def names(self, field: str) -> list[Any]:
        """A field that must be a list.

        Raises:
            ConfigError: it is missing, or is none.
        """
        value = self._values.get(field)
        if not isinstance(value, list) or not 1 <= len(value) <= LAYERS_MAX:
            raise self.error(f"{field} is missing or is no list of layers")
        return value

    def inner(self, field: str) -> Fields:
        """A field that must be an object.

        Raises:
            ConfigError: it is missing, or is none.
        """
        value = self._values.get(field)
        if not isinstance(value, dict):
            raise self.error(f"{field} is missing or is no object")
        return Fields(f"{self.name}: {field}", value)

    def changed(self, values: Mapping[str, object]) -> Fields:
        """The same with some fields changed."""
        return Fields(self.name, {**self._values, **values})

    def error(self, what: str) -> ConfigError:
        """What is wrong with it, for raising."""
        return ConfigError(f"{self.name}: {what}")


def read_bounded(path: Path, size_bytes: int) -> bytes:
    """What is in a file, if it is one and not larger.

    Raises:
        ConfigError: it is no regular file, or is larger.
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no regular file")
    with path.open("rb") as file:
        found = file.read(size_bytes + 1)
    if len(found) > size_bytes:
        raise ConfigError(f"{path} is larger than {format_size(size_bytes)}")
    return found
