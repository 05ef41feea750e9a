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


def in_shared_memory(pid: int) -> set[str]:
    """Files in /dev/shm that a process maps or has open; other processes' are not its doing."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    for opened in (folder / "fd").iterdir():
        try:
            names.add(str(opened.readlink()))
        except FileNotFoundError:
            continue
    return {
        name for name in names if name.startswith("/dev/shm/") and not name.endswith(" (deleted)")
    }
