"""Errors, one small family that says whose fault it is. It handles nothing; it only names."""

from __future__ import annotations

from enum import Enum


class FailureKind(Enum):
    """Why a transfer or a verb failed. A true miss and an I/O fault are never the same answer."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    IO = "io"
    TIMEOUT = "timeout"
    FULL = "full"
    CLOSED = "closed"


class KvwiseError(Exception):
    """Base of every error kvwise raises on purpose."""


class ConfigError(KvwiseError):
    """Your configuration is wrong: the message says which key and what to do."""


class FrameError(KvwiseError):
    """Those bytes are not a frame this version can read."""


class TraceError(KvwiseError):
    """That file is not a trace this version can read: the message names file, line and field."""


class ProtocolError(KvwiseError):
    """The peer on the socket sent something that is not our protocol."""


class TierError(KvwiseError):
    """A tier could not do what it was asked.

    Attributes:
        kind: what happened, see `FailureKind`.
        retryable: whether the same call may succeed later without a change.
    """

    def __init__(self, kind: FailureKind, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable


class CacheUnavailable(KvwiseError):
    """The daemon did not answer within the deadline, or the connection is gone: recompute."""


class EngineError(KvwiseError):
    """The host engine cannot be served safely; the message says why and what to change."""


class BugError(KvwiseError):
    """An internal promise was broken. Report it with the event log."""
