"""Owns the measurement of TCP over loopback: what a cache behind a socket of this host would get.

It says nothing of a network. Both ends are threads of this process.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kvwise.bench.probe.limits import Found, Tell, figure, rounds
from kvwise.bench.yardstick import gbps
from kvwise.units import MIB

OBJECT_BYTES = 2 * MIB
SLICE_S = 0.3
CONNECT_S = 5.0
"""How long any call on a socket may take."""
MESSAGE_BYTES = 64
TRIPS = 500


def measure_loopback(end_s: float, tell: Tell) -> Found:
    """Rate and round trip of one connection, until a moment."""
    found = Found()
    try:
        with _connection() as (near, far), ThreadPoolExecutor(1) as pool:
            trips: list[float] = []

            def trip() -> float:
                echo = pool.submit(_echo, far)
                trips.append(_round_trip(near))
                echo.result()
                return trips[-1]

            def rate() -> float:
                reading = pool.submit(_read_all, far)
                started = time.perf_counter()
                moved = _send(near)
                return gbps(moved, reading.result() - started)

            actions: dict[str, Callable[[], float]] = {"round trip": trip, "rate": rate}
            figures = rounds(actions, end_s, lambda name: tell(f"loopback: {name}"))
    except OSError as error:
        found.skipped.append(f"loopback: {error}")
        return found
    if not figures["rate"]:
        found.skipped.append("loopback: no time left; hint: raise --seconds")
        return found
    row = {"part": "loopback", "object_bytes": OBJECT_BYTES, **figure(figures["rate"])}
    found.rows.append({**row, "round_trip_us": round(1e6 * statistics.median(trips), 1)})
    return found


@contextmanager
def _connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CONNECT_S)
        near = socket.create_connection(server.getsockname(), CONNECT_S)
        with near:
            far, _ = server.accept()
            with far:
                for end in (near, far):
                    end.settimeout(CONNECT_S)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield near, far


def _round_trip(near: socket.socket) -> float:
    """Seconds of a small message there and back, the median of many."""
    laps, answer = [], bytearray(MESSAGE_BYTES)
    for _ in range(TRIPS):
        started = time.perf_counter()
        near.sendall(bytes(MESSAGE_BYTES))
        receive(near, memoryview(answer))
        laps.append(time.perf_counter() - started)
    return statistics.median(laps)


def _echo(far: socket.socket) -> None:
    """Send every small message back."""
    message = bytearray(MESSAGE_BYTES)
    for _ in range(TRIPS):
        receive(far, memoryview(message))
        far.sendall(message)


def _send(near: socket.socket) -> int:
    """Send objects for a while, then one that says that it is the last: bytes of all."""
    piece = memoryview(bytearray(b"\1" * OBJECT_BYTES))
    moved, started = 0, time.perf_counter()
    while time.perf_counter() - started < SLICE_S:
        near.sendall(piece)
        moved += OBJECT_BYTES
    near.sendall(bytes(OBJECT_BYTES))
    return moved + OBJECT_BYTES


def _read_all(far: socket.socket) -> float:
    """Take objects until one that begins with a zero: when the last was there."""
    piece = memoryview(bytearray(OBJECT_BYTES))
    while True:
        receive(far, piece)
        if piece[0] == 0:
            return time.perf_counter()


def receive(end: socket.socket, piece: memoryview) -> None:
    """Fill a piece of memory.

    Raises:
        ConnectionError: the other end went away.
    """
    while piece:
        count = end.recv_into(piece)
        if not count:
            raise ConnectionError("the other end closed the connection")
        piece = piece[count:]
