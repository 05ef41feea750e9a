"""What levels cost in a month, from the catalogue's prices. It decides nothing.

What is bought is paid over so many months; power and room are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from kvwise.errors import ConfigError
from kvwise.planner.hardware import Hardware, Price

MONTH_H = 730.0
MONTH_S = MONTH_H * 3_600

OBJECT_BYTES = 8 << 20
"""What one request to an object store carries: small objects would cost more than they save."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one site, in US dollars; `write_off` is in months."""

    gpu_hour: Price
    dram_gb: Price
    drive_tb: Price
    nic: Price
    object_gb_month: Price
    object_put_million: Price
    object_get_million: Price
    write_off: Price

    @classmethod
    def of(cls, known: Hardware, gpu: str, drive: str) -> Prices:
        """Those for a GPU and a kind of drive, or where there are none, of their kind.

        Raises:
            ConfigError: the catalogue lacks one that every plan needs.
        """
        parts = {"gpu_hour": gpu, "drive_tb": drive}
        found: dict[str, Price] = {}
        for one in fields(cls):
            name = one.name.replace("_", "-")
            own = known.prices.get(f"{name}-{parts.get(one.name, '')}")
            price = own or known.prices.get(name)
            if price is None:
                raise ConfigError(f"there is no price.{name}; hint: give it with --hardware")
            found[one.name] = price
        if not found["write_off"].amount:
            raise ConfigError("price.write-off is 0; hint: give months")
        return cls(**found)

    def each(self) -> Iterator[Price]:
        """All of them."""
        for one in fields(self):
            price: Price = getattr(self, one.name)
            yield price

    def engines(self, count: float, gpus: int) -> float:
        """USD a month for engines of so many GPUs each."""
        return count * gpus * self.gpu_hour.amount * MONTH_H

    def memory(self, size_bytes: float) -> float:
        """USD a month for memory."""
        return size_bytes / 1e9 * self.dram_gb.amount / self.write_off.amount

    def drives(self, size_bytes: float) -> float:
        """USD a month for drives."""
        return size_bytes / 1e12 * self.drive_tb.amount / self.write_off.amount

    def adapters(self, count: int) -> float:
        """USD a month for network adapters."""
        return count * self.nic.amount / self.write_off.amount

    def objects(self, held_bytes: float, put_per_s: float, get_per_s: float) -> float:
        """USD a month to hold so much in an object store, at rates of bytes written and read."""
        requests = MONTH_S / OBJECT_BYTES / 1e6
        return (
            held_bytes / 1e9 * self.object_gb_month.amount
            + put_per_s * requests * self.object_put_million.amount
            + get_per_s * requests * self.object_get_million.amount
        )
