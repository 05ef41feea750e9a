"""What the numbers of a payload are and whose: kinds of element and their place in tensors.

It owns names and sizes. It reads no payload and knows no codec.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How an element of KV is written."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    E4M3 = "e4m3"
    E5M2 = "e5m2"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return 8 * self.bytes

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return _BYTES[self]


_BYTES = {Kind.BF16: 2, Kind.FP16: 2, Kind.FP32: 4, Kind.E4M3: 1, Kind.E5M2: 1}

KINDS = tuple(Kind)
"""The number of a kind in stored bytes is its place here, so none is ever moved."""


@dataclass(frozen=True, slots=True)
class Elements:
    """The geometry of a payload: tensors one behind the other, all of one shape.

    A tensor is one layer's K or V in one block of the engine. Element i of it belongs to head
    `i // run_elements % heads`.

    Attributes:
        kind: how each element is written.
        tensor_elements: contiguous elements of one tensor.
        heads: KV heads in a tensor.
        run_elements: neighbours that belong to one head before the next head's begin.
    """

    kind: Kind
    tensor_elements: int
    heads: int
    run_elements: int
