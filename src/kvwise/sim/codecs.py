"""Codecs as size models: what they leave of KV, and how long a thread takes. They hold no bytes.

Fitted to KV of SmolLM2 in BF16, one thread of the machine of docs/benchmarks.md; frames included.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwise.core.elements import Coding
from kvwise.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class CodecLaw:
    """One codec.

    Attributes:
        share: what it leaves of a payload.
        encode_bytes_per_s, decode_bytes_per_s: payload that a thread gets through.
    """

    share: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float

    def encode_ns(self, raw_bytes: int) -> int:
        """How long writing a payload down takes."""
        return int(raw_bytes / self.encode_bytes_per_s * NS_PER_S)

    def decode_ns(self, raw_bytes: int) -> int:
        """How long restoring it takes."""
        return int(raw_bytes / self.decode_bytes_per_s * NS_PER_S)


LAWS = {
    Coding.FIXED: CodecLaw(1 / 1.331, 3.4e9, 7.7e9),
    Coding.DENSE: CodecLaw(1 / 1.433, 2.3e9, 4.3e9),
}
"""Of every coding that the simulator knows."""
