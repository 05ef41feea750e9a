"""The NVFP4 codec: lossy, 4.5 bits for each element. It is never used unless somebody asks for it.

Sixteen neighbours are a block with a scale of its own. With g the scale of the tensor, which is its
greatest magnitude divided by 6 * 448, rounded up to 16 significant bits and at least 2**-100:

    the block's scale is b, the nearest code of E4M3 to (its greatest magnitude) / (6 g)
    an element becomes the nearest code of E2M1 to element / (b g), the greatest beyond that

ties to the even code. E2M1 has 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. A tensor's data are
its blocks' scales, a byte each, and its codes, two to a byte, the first in the lower half. The
layout around them is in `scaled`; the form is 2, heads are 1 and a run is a block.

What comes back differs from an element x, in a block whose greatest magnitude is m, by no more than

    |x| / 5 + m / 22 + g / 170

and, for FP16, half its least denormal (2**-25) more. The last term is less than 2**-18 of the
tensor's greatest magnitude; in a block far below that, of less than 2**-14, it is what counts.
Zeros keep their signs. Tensors with elements that are not finite come back as they were.

Numba does the work (`nvfp4_cpu`), outside of the GIL.
"""

from __future__ import annotations

from dataclasses import replace

from kvwise.codecs.elements import Elements
from kvwise.codecs.scaled import Loops, Scaled, Shape
from kvwise.errors import ConfigError, FrameError

E2M1_FORM = 2
"""The form's number in headers."""

BLOCK_ELEMENTS = 16
"""Neighbours that share a scale."""


class Nvfp4(Scaled):
    """Elements in four bits, with a scale for each sixteen."""

    id = 3
    name = "nvfp4"

    def __init__(self, elements: Elements) -> None:
        """Payloads of `elements` are written down.

        Raises:
            ConfigError: such elements cannot be, or tensors are not whole blocks.
            ImportError: Numba is not installed, or does not go with what is.
        """
        self.require(elements)
        from kvwise.codecs import nvfp4_cpu

        block = BLOCK_ELEMENTS

        def loops(shape: Shape) -> Loops:
            heads, run = shape.elements.heads, shape.elements.run_elements
            if (shape.form, heads, run) != (E2M1_FORM, 1, block):
                raise FrameError(f"form {shape.form} in runs of {run} is not NVFP4's")
            return nvfp4_cpu.loops(shape.elements.kind)

        blocks = replace(elements, heads=1, run_elements=block)
        super().__init__(Shape(E2M1_FORM, blocks), loops)

    @staticmethod
    def require(elements: Elements) -> None:
        """See that elements are whole blocks of what can have scales.

        Raises:
            ConfigError: they are not.
        """
        if elements.tensor_elements % BLOCK_ELEMENTS:
            raise ConfigError(
                f"a tensor of {elements.tensor_elements} elements is no whole number of blocks; "
                f"hint: NVFP4 takes {BLOCK_ELEMENTS} elements at a time, fp8 takes any number"
            )
        Scaled.require(elements)
