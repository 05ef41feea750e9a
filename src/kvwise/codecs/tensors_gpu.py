"""What codecs on a GPU share: tensors of bytes, and launches. It holds no memory and no kernel.

It needs torch and Triton, as everything that imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from triton.errors import TritonError

from kvwise.errors import EngineError

ALIGNED_BYTES = 8


@contextmanager
def launching(tensor: torch.Tensor) -> Iterator[None]:
    """Kernels within are for the device of that tensor, on its current stream.

    Raises:
        EngineError: one could not be compiled or launched on this device.
    """
    try:
        with torch.cuda.device_of(tensor):
            yield
    except TritonError as error:
        raise EngineError(f"a codec's kernel cannot run on this GPU: {error}") from error


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether words can be read from it in place."""
    return not (tensor.data_ptr() % ALIGNED_BYTES or tensor.storage_offset() % ALIGNED_BYTES)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes where words can be read, copied unless they lie like that."""
    return tensor if is_aligned(tensor) else tensor.clone()


def fetched(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Bytes of a device on the host, once everything before on its stream is done."""
    return cast("NDArray[np.uint8]", tensor.cpu().numpy())


def sent(values: bytes | NDArray[np.int64], like: torch.Tensor) -> torch.Tensor:
    """Bytes or numbers of the host on the device of another tensor."""
    raw = np.frombuffer(values, dtype=np.uint8) if isinstance(values, bytes) else values
    return torch.from_numpy(raw.copy()).to(like.device)
