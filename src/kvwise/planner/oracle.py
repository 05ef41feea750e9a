"""How long a prompt takes to compute: what knows it, and times that were measured, from a file.

A file is a table, `tokens,seconds` with `cached_tokens` if need be, a line for each prompt that was
timed. Between its lengths times follow a curve that never falls (Fritsch and Carlson, 1980); beyond
them the law a + b*n + g*n*n/2 that fits them best, joined to the nearest of them. Nothing is
measured here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from kvwise.errors import ConfigError
from kvwise.planner.fields import read_bounded
from kvwise.planner.hardware import Gpu
from kvwise.planner.prefill import ERROR_MEDIAN, ERROR_MOST, require_growing_kv
from kvwise.planner.shapes import Model
from kvwise.sim.replay.profile import fit

ROOFLINE, TABLES = "roofline", "aiconfigurator"
WORDS = (ROOFLINE, TABLES)
"""What is said instead of a file."""

COLUMNS = ("tokens", "seconds")
CACHED = "cached_tokens"
TOKENS_MAX, SECONDS_MAX = 1 << 30, 1e6
FILE_BYTES_MAX = 1 << 22
LEFT_OUT_MIN = 4
"""Lengths that a file must have, so that leaving one out says something."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Who told how long computing takes, and how far to trust it.

    Attributes:
        by: the roofline, a package, or a file.
        error_median, error_most: against times that it was not told; None where nobody knows.
        said: the same in a sentence, and which lengths are beyond what was measured.
    """

    by: str
    error_median: float | None
    error_most: float | None
    said: str

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


class Oracle(Protocol):
    """Knows how long prompts of a model take on so many GPUs of a kind."""

    @property
    def model(self) -> Model:
        """What computes."""
        ...

    @property
    def gpu(self) -> Gpu:
        """On which."""
        ...

    @property
    def ranks(self) -> int:
        """On how many of them."""
        ...

    def seconds(self, tokens: int) -> float:
        """To compute a prompt of so many tokens, alone."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt that was timed; `line` is where it stands."""

    tokens: int
    seconds: float
    cached_tokens: int = 0
    line: int = 0


class Times:
    """A curve through times that were measured."""

    def __init__(self, source: str, rows: Iterable[Row]) -> None:
        """Several times of one length count as their median.

        Raises:
            ConfigError: there are too few lengths, or longer prompts that take no longer.
        """
        self.source = source
        found = list(rows)
        whole: dict[int, list[Row]] = {}
        for row in found:
            if not row.cached_tokens:
                whole.setdefault(row.tokens, []).append(row)
        self.knots = [(n, median(row.seconds for row in whole[n])) for n in sorted(whole)]
        if len(self.knots) < len(COLUMNS):
            lengths = f"there is {len(self.knots)}" if self.knots else "there is none"
            cached = sum(1 for row in found if row.cached_tokens)
            raise ConfigError(
                f"{source}: at least two lengths are needed of prompts without cached tokens, and "
                f"{lengths}, beside {cached} with {CACHED}; hint: time whole prompts too, with "
                f"{CACHED} 0; tokens are those that are computed after the cached ones"
            )
        for (short, low), (long, high) in pairwise(self.knots):
            if high <= low:
                line = whole[long][0].line
                where = f"{source}, line {line}" if line else source
                raise ConfigError(
                    f"{where}: seconds: {long} tokens take {high:g}, "
                    f"and {short} take {low:g}; hint: time both more often, or leave one out"
                )
        self._x = np.array([tokens for tokens, _ in self.knots], dtype=float)
        self._y = np.array([seconds for _, seconds in self.knots])
        self._slopes = _slopes(self._x, self._y)
        self._law = _law(self.knots)
        self._after = self._factor([row for row in found if row.cached_tokens])

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """To compute so many tokens after those that are cached."""
        if tokens <= 0:
            return 0.0
        if not cached:
            return self._whole(tokens)
        return self._after * self._rest(tokens, cached)

    def smooth(self, tokens: float) -> float:
        """Of a whole prompt by the law alone, which evens out what single lengths are off by."""
        return _by(self._law, tokens)

    def estimate(self, longest_tokens: int) -> Estimate:
        """What this is worth for prompts up to this length."""
        low, high = self.knots[0][0], self.knots[-1][0]
        said = f"Computing is as {self.source} says at {len(self.knots)} lengths"
        errors = self.left_out()
        if errors:
            said += (
                f"; each of them can be told from the others with an error of "
                f"{median(errors):.1%}, {max(errors):.0%} at most"
            )
        said += f"; outside {low:,} to {high:,} tokens the law that fits best goes on from there"
        if longest_tokens > high:
            said += f", and the longest prompt has {longest_tokens:,}"
        middle, most = (median(errors), max(errors)) if errors else (None, None)
        return Estimate(self.source, middle, most, f"{said}.")

    def left_out(self) -> list[float]:
        """How wrong the others are about each length between the first and the last."""
        if len(self.knots) < LEFT_OUT_MIN:
            return []
        errors = []
        for at in range(1, len(self.knots) - 1):
            tokens, seconds = self.knots[at]
            others = [Row(n, s) for n, s in self.knots if n != tokens]
            errors.append(abs(Times(self.source, others).seconds(tokens) / seconds - 1))
        return errors

    def _whole(self, tokens: float) -> float:
        """Of a whole prompt."""
        x, y = self._x, self._y
        if tokens < x[0] or tokens > x[-1]:
            near = 0 if tokens < x[0] else -1
            return float(y[near] * _by(self._law, tokens) / _by(self._law, float(x[near])))
        at = min(int(np.searchsorted(x, tokens, side="right")) - 1, len(x) - 2)
        width = x[at + 1] - x[at]
        t = (tokens - x[at]) / width
        begin, end = self._slopes[at] * width, self._slopes[at + 1] * width
        rise = y[at + 1] - y[at]
        return float(
            y[at] + t * (begin + t * (3 * rise - 2 * begin - end + t * (begin + end - 2 * rise)))
        )

    def _rest(self, tokens: int, cached: int) -> float:
        """What a whole prompt takes longer than its beginning, and what any step takes."""
        return self._whole(cached + tokens) - self._whole(cached) + self._law[0]

    def _factor(self, rows: Sequence[Row]) -> float:
        """What times after cached tokens are, as a part of what whole prompts make one expect."""
        parts = [row.seconds / self._rest(row.tokens, row.cached_tokens) for row in rows]
        return median(parts) if parts else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Times that were measured, of a model on so many GPUs of a kind."""

    times: Times
    model: Model
    gpu: Gpu
    ranks: int

    def __post_init__(self) -> None:
        """Refuse what has nothing to load."""
        require_growing_kv(self.model)

    def seconds(self, tokens: int) -> float:
        """Seconds to compute a prompt of so many tokens, alone."""
        return self.times.seconds(tokens)


def estimate_of(oracle: Oracle, longest_tokens: int) -> Estimate:
    """How far to trust an oracle, for prompts up to this length."""
    if isinstance(oracle, Measured):
        return oracle.times.estimate(longest_tokens)
    said = (
        f"Computing is estimated, {ERROR_MEDIAN:.0%} wrong in the middle where it could be "
        "checked; --recompute FILE takes times that you have measured."
    )
    return Estimate(ROOFLINE, ERROR_MEDIAN, ERROR_MOST, said)


def read_times(path: Path) -> Times:
    """The times in a file.

    Raises:
        ConfigError: it cannot be read, or a line cannot be; the message names line and field.
    """
    try:
        text = read_bounded(path, FILE_BYTES_MAX).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; hint: --recompute is {', '.join(WORDS)} or a "
            f"CSV file with the columns {', '.join(COLUMNS)}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is no text: {error}") from error
    kept = [(n, line) for n, line in enumerate(text.splitlines(), 1) if _means(line)]
    if not kept:
        raise ConfigError(f"{path} is empty; hint: its first line is {','.join(COLUMNS)}")
    (first, header), *lines = kept
    names = [name.strip().lower() for name in next(csv.reader([header]))]
    _check_names(f"{path}, line {first}", names)
    return Times(str(path), [_row(str(path), number, names, line) for number, line in lines])


def times_text(times: Times, notes: Sequence[str]) -> str:
    """Times as `read_times` has them again from a file, with notes on where they are from."""
    lines = [f"# {''.join(one if one.isprintable() else ' ' for one in note)}" for note in notes]
    lines += [",".join(COLUMNS), *(f"{tokens},{seconds:.6f}" for tokens, seconds in times.knots)]
    return "\n".join(lines) + "\n"


def _means(line: str) -> bool:
    """Whether a line is neither empty nor a note."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _check_names(where: str, names: Sequence[str]) -> None:
    """Refuse columns that are missing, unknown or there twice."""
    for mark, said in ((";", "semicolons"), ("\t", "tabs")):
        if any(mark in name for name in names):
            raise ConfigError(f"{where}: {said} part the columns; hint: write commas")
    for name in COLUMNS:
        if name not in names:
            raise ConfigError(
                f"{where}: there is no column {name!r}; hint: the first line is "
                f"{','.join(COLUMNS)}, with {CACHED} if need be"
            )
    foreign = set(names) - {*COLUMNS, CACHED}
    if foreign or len(set(names)) < len(names):
        odd = min(foreign) if foreign else max(names, key=names.count)
        raise ConfigError(
            f"{where}: column {odd!r} is unknown or there twice; hint: there is "
            f"{', '.join((*COLUMNS, CACHED))}"
        )


def _row(source: str, number: int, names: Sequence[str], line: str) -> Row:
    """One line."""
    where = f"{source}, line {number}"
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise ConfigError(f"{where} is no line of a table: {error}") from error
    if len(cells) != len(names):
        raise ConfigError(f"{where}: {len(cells)} fields, and the first line has {len(names)}")
    values = dict(zip(names, cells, strict=True))
    return Row(
        tokens=_count(where, "tokens", values["tokens"], least=1),
        seconds=_seconds(where, values["seconds"]),
        cached_tokens=_count(where, CACHED, values.get(CACHED, "0"), least=0),
        line=number,
    )


def _count(where: str, name: str, text: str, *, least: int) -> int:
    """A number of tokens."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= len(str(TOKENS_MAX))):
        raise ConfigError(f"{where}: {name}: {text!r:.40} is no whole number")
    if not least <= int(stripped) <= TOKENS_MAX:
        raise ConfigError(f"{where}: {name}: {text!r:.40} is not between {least} and {TOKENS_MAX}")
    return int(stripped)


def _seconds(where: str, text: str) -> float:
    """A time."""
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError(f"{where}: seconds: {text!r:.40} is no number") from None
    if not (isfinite(seconds) and 0 < seconds <= SECONDS_MAX):
        raise ConfigError(f"{where}: seconds: {text!r:.40} is not above 0, or too large")
    return seconds


def _slopes(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> list[float]:
    """Slopes at the knots with which no curve between two of them falls."""
    widths, rises = np.diff(x).tolist(), (np.diff(y) / np.diff(x)).tolist()
    if len(rises) == 1:
        return [rises[0], rises[0]]
    inner = []
    for (left, right), (low, high) in zip(pairwise(widths), pairwise(rises), strict=True):
        before, after = 2 * right + left, right + 2 * left
        inner.append((before + after) / (before / low + after / high))
    first = _end(widths[0], widths[1], rises[0], rises[1])
    last = _end(widths[-1], widths[-2], rises[-1], rises[-2])
    return [first, *inner, last]


def _end(width: float, next_width: float, rise: float, next_rise: float) -> float:
    """The slope at an end, as a parabola through three knots has it, where that does not fall."""
    slope = ((2 * width + next_width) * rise - width * next_rise) / (width + next_width)
    return min(max(slope, 0.0), 3 * rise)


def _law(knots: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """a, b and g of the law that fits best; a straight line from nothing where none does."""
    try:
        return fit(knots)
    except ConfigError:
        tokens, seconds = knots[-1]
        return 0.0, seconds / tokens, 0.0


def _by(law: tuple[float, float, float], tokens: float) -> float:
    """What the law says."""
    fixed, each, pair = law
    return fixed + each * tokens + pair * tokens * tokens / 2
