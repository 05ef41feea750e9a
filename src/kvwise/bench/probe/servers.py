"""Owns the measurement of servers that KV could be kept on: Redis, and object stores by obstore.

Round trips and rates of objects of 2 MiB, over one connection and over several. What is stored is
removed again. kvwise itself keeps nothing on such servers yet.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module, util
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import numpy as np

from kvwise.bench.probe.limits import ROUNDS_WISHED, Allowance, Found, Tell, figure, rounds
from kvwise.bench.probe.redis import Redis, address
from kvwise.bench.rows import Row
from kvwise.bench.yardstick import gbps, pattern
from kvwise.errors import ConfigError
from kvwise.units import MIB

OBJECT_BYTES = 2 * MIB
DEPTH = 8
"""Connections at once."""
OBJECTS = 4
"""Of each connection, written again and again."""
SLICE_S = 0.5
TRIPS = 20

MISSING = "obstore is not installed; hint: pip install obstore"


class Store(Protocol):
    """One connection to a server."""

    def touch(self) -> None:
        """The least that can be asked."""

    def put(self, name: str, value: memoryview) -> None:
        """Store an object."""

    def get(self, name: str) -> int:
        """Fetch an object: how many bytes it has."""

    def remove(self, name: str) -> None:
        """Give an object up."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, by what it is and where.

    Attributes:
        kind: redis or objects.
    """

    kind: str
    url: str

    @property
    def shown(self) -> str:
        """Its address without what is secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def open(self) -> Store:
        """One more connection.

        Raises:
            OSError: it cannot be had.
        """
        return Redis(self.url) if self.kind == "redis" else _Objects(self.url)


def require_place(kind: str, url: str) -> Place:
    """A server that was named.

    Raises:
        ConfigError: the address is none.
    """
    if kind == "redis":
        address(url)
    elif "://" not in url:
        raise ConfigError(f"{url!r:.80} is no address of an object store; hint: s3://BUCKET/PREFIX")
    return Place(kind, url)


def measure_server(place: Place, limit_bytes: int, end_s: float, tell: Tell) -> Found:
    """Round trip and rates of a server, until a moment and within so many bytes written."""
    found = Found()
    if place.kind == "objects" and util.find_spec("obstore") is None:
        found.skipped.append(f"{place.shown}: {MISSING}")
        return found
    tell(f"{place.shown}: connecting")
    try:
        with _Server(place, limit_bytes) as server:
            actions: dict[tuple[str, int], Callable[[], float]] = {("trip", 1): server.trip}
            for way, work in (("write", server.put), ("read", server.get)):
                for depth in (1, DEPTH):
                    actions[way, depth] = partial(server.together, work, depth)
            figures = rounds(actions, end_s, lambda key: tell(f"{place.shown}: {key[0]}"))
            found.rows += _rows(place, figures)
    except (ConfigError, OSError) as error:
        found.skipped.append(f"{place.shown}: {error}")
    if not found.rows and not found.skipped:
        found.skipped.append(f"{place.shown}: no time left; hint: raise --seconds")
    return found


def _rows(place: Place, figures: dict[tuple[str, int], list[float]]) -> Iterator[Row]:
    """A line for each rate, with the round trip."""
    trips = figures.pop(("trip", 1))
    for (way, depth), values in figures.items():
        if any(values):
            row: Row = {"part": "server", "kind": place.kind, "path": place.shown, "way": way}
            row |= {"object_bytes": OBJECT_BYTES, "depth": depth}
            row |= figure([value for value in values if value])
            yield row | {"round_trip_us": round(1e6 * statistics.median(trips), 1)}


class _Server:
    """Connections to a server, and the objects that they put there."""

    def __init__(self, place: Place, limit_bytes: int) -> None:
        """Nothing is connected yet."""
        self._place = place
        self._allowance = self._portion = Allowance(limit_bytes)
        self._figure_bytes = max(DEPTH * OBJECT_BYTES, limit_bytes // (2 * ROUNDS_WISHED))
        self._stem = f"kvwise-probe-{secrets.token_hex(8)}"
        self._stores: list[Store] = []
        self._written: list[list[str]] = [[] for _ in range(DEPTH)]
        self._pool = ThreadPoolExecutor(DEPTH)

    def __enter__(self) -> Self:
        try:
            for _ in range(DEPTH):
                self._stores.append(self._place.open())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for store, names in zip(self._stores, self._written, strict=True):
            for name in names:
                with suppress(OSError):  # it went away itself, and Redis forgets in a minute
                    store.remove(name)
        self._close()

    def _close(self) -> None:
        """End all connections."""
        for store in self._stores:
            store.close()

    def trip(self) -> float:
        """Seconds of the least question, the median of some."""
        laps = []
        for _ in range(TRIPS):
            started = time.perf_counter()
            self._stores[0].touch()
            laps.append(time.perf_counter() - started)
        return statistics.median(laps)

    def together(self, work: Callable[[int, int], int], depth: int) -> float:
        """GB/s of so many connections at once that do the same for a while."""
        self._portion = self._allowance.lend(self._figure_bytes)
        parts = [self._pool.submit(self._loop, work, number) for number in range(depth)]
        rate = sum(part.result() for part in parts)
        self._allowance.give_back(self._portion)
        return rate

    def _loop(self, work: Callable[[int, int], int], number: int) -> float:
        """The rate of one connection; 0 where it may not or cannot do anything."""
        moved, laps, started = 0, 0, time.perf_counter()
        while True:
            done = work(number, laps)
            moved, laps, took_s = moved + done, laps + 1, time.perf_counter() - started
            if took_s >= SLICE_S or not done:
                return gbps(moved, took_s)

    def put(self, number: int, lap: int) -> int:
        """Store an object; its bytes, none once no more may be written."""
        if not self._portion.take(OBJECT_BYTES):
            return 0
        value = pattern(OBJECT_BYTES // 8, number * OBJECTS + lap % OBJECTS + 1)
        name = f"{self._stem}-{number}-{lap % OBJECTS}"
        if name not in self._written[number]:
            self._written[number].append(name)
        self._stores[number].put(name, value.data.cast("B"))
        return OBJECT_BYTES

    def get(self, number: int, lap: int) -> int:
        """Fetch an object that this connection stored: its bytes."""
        names = self._written[number]
        if not names:
            return 0
        size_bytes = self._stores[number].get(names[lap % len(names)])
        if size_bytes != OBJECT_BYTES:
            raise OSError(f"an object of {OBJECT_BYTES} bytes came back with {size_bytes}")
        return size_bytes


class _Objects:
    """An object store through obstore, which reads keys and endpoints from the environment."""

    def __init__(self, url: str) -> None:
        """Name the store; it is asked nothing yet."""
        self._obstore = import_module("obstore")
        self._error: type[Exception] = import_module("obstore.exceptions").BaseError
        self._store = self._told(partial(import_module("obstore.store").from_url, url))

    def touch(self) -> None:
        """List nothing."""
        self._told(lambda: list(self._obstore.list(self._store, prefix="kvwise-probe-none")))

    def put(self, name: str, value: memoryview) -> None:
        """Store an object in one piece."""
        self._told(lambda: self._obstore.put(self._store, name, bytes(value), use_multipart=False))

    def get(self, name: str) -> int:
        """Fetch an object: how many bytes it has."""
        data = self._told(lambda: self._obstore.get(self._store, name).bytes())
        return int(np.frombuffer(data, np.uint8).size)

    def remove(self, name: str) -> None:
        """Give an object up."""
        self._told(lambda: self._obstore.delete(self._store, name))

    def close(self) -> None:
        """Nothing is held."""

    def _told(self, action: Callable[[], Any]) -> Any:
        """What an action gives; its failures as the errors of any connection.

        Raises:
            OSError: the store failed.
        """
        try:
            return action()
        except (self._error, ValueError, TypeError) as error:
            text = " ".join(str(error).split())
            raise OSError(text[:300]) from error
