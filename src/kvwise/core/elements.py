"""What the numbers of a payload are and whose, and the ways to write them down. Names only.

It owns kinds of element, their place in tensors, and the names of codings. It reads no payload.
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


class Coding(Enum):
    """How a payload is written down on a tier."""

    PLAIN = "plain"
    FIXED = "fixed"
    DENSE = "dense"
    FP8 = "fp8"
    NVFP4 = "nvfp4"

    @property
    def lossless(self) -> bool:
        """Whether the very bytes come back."""
        return self not in LOSSY


LOSSY = (Coding.FP8, Coding.NVFP4)
"""Codings that change numbers: only for a namespace whose engine asked for them."""


@dataclass(frozen=True, slots=True)
class Form:
    """What is to be made of a payload before it is written.

    Attributes:
        coding: how it is written down.
        elements: what it holds; None only for what stays as it is.
        trial: whether what was encoded is decoded once at once, to see how long that takes.
    """

    coding: Coding = Coding.PLAIN
    elements: Elements | None = None
    trial: bool = False


AS_IS = Form()
