"""The FP8 codec: lossy, one byte for each element. It is never used unless somebody asks for it.

An element becomes the nearest code of E4M3 or E5M2 to element / scale, ties to the even code; codes
of a tensor follow in the order of its elements. A scale is the greatest magnitude that shares it
divided by the greatest of the form (448, 57,344), rounded up to 16 significant bits and at least
2**-100. Scales are one for each tensor, or one for each head of it. The layout around them is in
`scaled`, forms are 0 (E4M3) and 1 (E5M2).

What comes back differs from an element x that has the scale s by no more than

    E4M3   2**-4 |x| + 2**-10 s     s is 1/448 of the greatest magnitude or little more
    E5M2   2**-3 |x| + 2**-17 s     s is 1/57,344 of it

and, for FP16, half its least denormal (2**-25) more. Zeros keep their signs. Tensors with elements
that are not finite come back as they were. A payload that came back once comes back the same again,
unless its elements are 32 bits, which may differ in their last one.

Numba does the work (`fp8_cpu`), outside of the GIL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.scaled import Loops, Scaled, Shape
from kvwise.errors import ConfigError, FrameError

FP8_FORMS = {0: Kind.E4M3, 1: Kind.E5M2}
"""Forms of code by their numbers in headers."""

Scale = Literal["tensor", "head"]


class Fp8(Scaled):
    """Elements in eight bits; whatever form and scales are written, all are read."""

    id = 2

    def __init__(self, elements: Elements, form: Kind = Kind.E4M3, scale: Scale = "tensor") -> None:
        """Payloads of `elements` are written in `form`, with a scale for each tensor or head.

        Raises:
            ConfigError: such elements or such a form cannot be.
            ImportError: Numba is not installed, or does not go with what is.
        """
        if form not in FP8_FORMS.values():
            raise ConfigError(f"{form.value} is no form of FP8; hint: e4m3 or e5m2")
        self.require(elements)
        if scale == "tensor":
            elements = replace(elements, heads=1, run_elements=elements.tensor_elements)
        number = next(number for number, one in FP8_FORMS.items() if one is form)
        from kvwise.codecs import floats_cpu, fp8_cpu

        forms = {0: floats_cpu.E4M3, 1: floats_cpu.E5M2}

        def loops(shape: Shape) -> Loops:
            if shape.form not in forms:
                raise FrameError(f"form {shape.form} is none of FP8")
            return fp8_cpu.loops(shape.elements.kind, forms[shape.form])

        super().__init__(Shape(number, elements), loops)
        self.name = f"fp8-{form.value}-{scale}"
