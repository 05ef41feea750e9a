"""Queue: writes that wait for an idle moment. Over its bound in bytes it drops, and says so.

A dropped write is only a lost chance. Reads go before writes: the brain takes from this queue only
while no load is under way.
"""

from __future__ import annotations

from collections import deque


class DeferredWrites:
    """Keys waiting to be written to one tier, first come first served."""

    def __init__(self, bytes_max: int) -> None:
        """An empty queue that holds at most `bytes_max` bytes of objects."""
        self.bytes_max = bytes_max
        self.waiting_bytes = 0
        self._keys: deque[tuple[bytes, int]] = deque()
        self._members: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._members

    def push(self, key: bytes, size_bytes: int) -> bool:
        """Queue a key; False when that would exceed the bound. A key is queued once."""
        if key in self._members:
            return True
        if self.waiting_bytes + size_bytes > self.bytes_max:
            return False
        self._keys.append((key, size_bytes))
        self._members.add(key)
        self.waiting_bytes += size_bytes
        return True

    def front(self) -> bytes:
        """The key that has waited longest, left in place.

        Raises:
            IndexError: nothing waits.
        """
        return self._keys[0][0]

    def pop(self) -> bytes:
        """The key that has waited longest.

        Raises:
            IndexError: nothing waits.
        """
        key, size_bytes = self._keys.popleft()
        self._members.discard(key)
        self.waiting_bytes -= size_bytes
        return key
