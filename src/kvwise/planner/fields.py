"""The fields of a model's configuration. What is missing or wrong is named; nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwise.errors import ConfigError

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

    def number(self, field: str, default: int | None = None, *, most: int = NUMBER_MAX) -> int:
        """A field that must be a whole number from 1.

        Raises:
            ConfigError: it is missing, or is none.
        """
        value = self._values.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            said = "is missing" if value is None else f"is {value!r:.40}, not 1 to {most}"
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
