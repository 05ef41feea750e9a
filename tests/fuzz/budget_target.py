"""Write budgets as hostile bytes would have them. It owns no format.

An input is what the file's checksum covers, and gets one; input that begins with the magic is a
file as it is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import ExitStack

from kvwise.core.balance import Balance
from kvwise.core.govern import DEBT_DAYS_MAX, Governor
from kvwise.core.offers import Offer
from kvwise.live.budget import MAGIC, Saved, pack, unpack


def open_budget(_stack: ExitStack) -> Callable[[bytes], None]:
    """Read a budget; what is accepted means the same again, and can be gone on from."""

    def attempt(data: bytes) -> None:
        if not data.startswith(MAGIC):
            data = struct.pack("<8sI", MAGIC, zlib.crc32(data)) + data
        saved = unpack(data)
        assert unpack(pack(saved)) == saved
        governor = Governor(1 << 40)
        governor.restore(0, saved.balance, 60.0)
        assert abs(governor.level_bytes) <= DEBT_DAYS_MAX * governor.per_day
        assert governor.level_bytes <= governor.burst_bytes
        assert 0 <= governor.offer(1, Offer(1e-3, 1 << 19, 5)) <= 5
        governor.wrote(1 << 50)
        assert pack(Saved(0, True, governor.balance()))

    return attempt


def budgets() -> list[bytes]:
    """What a store writes when it is new and after a day."""
    busy = Balance(1e9, 1 << 40, 3e11, 8e4, ((90, 1e9), (130, 2e10)))
    return [
        pack(Saved(unix_ns, closed, balance))[12:]
        for unix_ns, closed, balance in ((0, False, Balance()), (10**18, True, busy))
    ]
