"""Looking at processes that may end while they are looked at."""

from __future__ import annotations

from pathlib import Path


def state(pid: int) -> str:
    """What a process does (`T` when it is stopped), or nothing when it has ended."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or before it was read
        return ""
    return "" if found in ("Z", "X") else found


def is_gone(pid: int) -> bool:
    """Whether a process has ended, collected or not."""
    return not state(pid)
