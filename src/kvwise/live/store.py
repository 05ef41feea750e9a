"""The store in this process: the same verbs as a client, without a socket. It decides nothing."""

from __future__ import annotations

from typing import Any, Self

from kvwise.config import Config
from kvwise.core.words import Decision, Namespace
from kvwise.errors import CacheUnavailable
from kvwise.live.leases import split_lease
from kvwise.live.messages import Ask, Grant, Plan, Step
from kvwise.live.node import Node
from kvwise.live.session import Session

CLOSE_FLUSH_S = 10.0
"""How long closing waits for deferred writes."""


class Store:
    """A `Cache` that owns its node. Use `open`; every method may be called from any thread."""

    def __init__(self, node: Node, session: Session) -> None:
        """Take over both."""
        self._node = node
        self._session = session
        self._open = True

    @classmethod
    def open(cls, config: Config, *, engine: str = "embedded") -> Self:
        """Open a store for one engine in this process.

        Raises:
            ConfigError: something cannot be had as configured.
            TierError: the disk tier cannot be opened.
        """
        node = Node(config)
        return cls(node, Session(node, engine))

    def join(self, namespace: Namespace) -> None:
        """Open a namespace; idempotent."""
        self._live().join(namespace)

    def ask(self, ask: Ask) -> Plan:
        """Plan a request."""
        return self._live().ask(ask)

    def want(self, lease: int, chunks: int) -> Grant:
        """Start a planned load."""
        return self._live().want(lease, chunks)

    def step(self, step: Step) -> list[Grant]:
        """Say everything of one engine step."""
        return self._live().step(step)

    def explain(self, limit: int = 20) -> list[Decision]:
        """The last decisions, newest last."""
        return self._live().explain(limit)

    def status(self) -> dict[str, Any]:
        """Counters and levels."""
        return self._live().status()

    def clear(self, space: bytes = b"") -> None:
        """Drop what is not in use."""
        self._live().clear(space)

    def flush(self, timeout_s: float) -> bool:
        """Wait until deferred writes are done; False when time ran out."""
        self._live()
        return self._node.pump.flush(timeout_s)

    def progress(self, lease: int) -> tuple[int, bool]:
        """(chunks of the lease that are in the arena, whether it failed or ended)."""
        epoch, number = split_lease(lease)
        if not self._open or epoch != self._node.epoch:
            return 0, True
        return self._node.arena.progress_read(number)

    @property
    def page_bytes(self) -> int:
        """Bytes of one arena page."""
        return self._node.arena.shape.page_bytes

    @property
    def pages(self) -> memoryview:
        """The arena's pages."""
        return self._node.arena.pages

    @property
    def address(self) -> int:
        """Address of `pages` in this process."""
        return self._node.arena.address

    def check(self) -> None:
        """Verify the brain's invariants.

        Raises:
            AssertionError: one is broken.
        """
        self._node.pump.check()

    def close(self) -> None:
        """Write what is deferred and close; idempotent."""
        if self._open:
            self._open = False
            self._session.close()
            self._node.close(CLOSE_FLUSH_S)

    def _live(self) -> Session:
        """The session.

        Raises:
            CacheUnavailable: the store was closed.
        """
        if not self._open:
            raise CacheUnavailable("the store is closed")
        return self._session
