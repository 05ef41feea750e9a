"""Forms: the codec for each way to write a payload down, made when it is first needed.

A codec is compiled when it is made: many seconds the first time on a machine, one later. So `warm`
comes before anybody waits or measures. Without Numba there is none but `plain`. It chooses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec

from kvwise.codecs.base import Buffers, Codec, scratch, total_bytes
from kvwise.codecs.exponent import Exponent, Mode, mode_of
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.codecs.plain import PLAIN
from kvwise.core.elements import LOSSY, Coding, Elements, Form, Kind
from kvwise.errors import FrameError
from kvwise.units import round_up

WARM_BYTES = 64 * 1024
"""Payload that a new codec is tried on before it is used."""

WARM = Elements(Kind.BF16, WARM_BYTES // 2, 1, WARM_BYTES // 2)

INSTALL = "pip install 'kvwise[codecs]'"
"""What brings the codecs where they are missing."""

_MODES: dict[Coding, Mode] = {Coding.FIXED: "fixed", Coding.DENSE: "dense"}
_BY_MODE = {mode: coding for coding, mode in _MODES.items()}
_LOSSY: dict[int, Coding] = {Fp8.id: Coding.FP8, Nvfp4.id: Coding.NVFP4}


def at_hand() -> tuple[Coding, ...]:
    """Codings that can be used here: none without Numba, which is looked for and not loaded."""
    return (*_MODES, *LOSSY) if find_spec("numba") is not None else ()


def require(coding: Coding, elements: Elements | None) -> None:
    """See that elements can be written down in a coding that changes them.

    Raises:
        ConfigError: they cannot; the message says why.
    """
    if elements is not None and coding is Coding.FP8:
        Fp8.require(elements)
    if elements is not None and coding is Coding.NVFP4:
        Nvfp4.require(elements)


class Codecs:
    """Codecs that were made so far, for writing by form and for reading by number; thread-safe."""

    def __init__(self, first: Codec = PLAIN) -> None:
        """`first` writes what has no form of its own."""
        self._first = first
        self._lock = threading.Lock()
        self._writers: dict[tuple[Coding, Elements | None], Codec] = {}
        self._readers: dict[int, Codec] = {PLAIN.id: PLAIN, first.id: first}
        self._makers: dict[int, Callable[[], Codec]] = {}
        if find_spec("numba") is not None:
            self._makers[Exponent.id] = lambda: _warm(Exponent("fixed", Kind.BF16), WARM)
            self._makers[Fp8.id] = lambda: _warm(Fp8(WARM), WARM)
            self._makers[Nvfp4.id] = lambda: _warm(Nvfp4(WARM), WARM)

    def warm(self, codings: Iterable[Coding], elements: Elements = WARM) -> None:
        """Make and compile what these need, for such elements.

        Raises:
            ImportError: Numba does not go with what else is installed.
        """
        for coding in codings:
            self.reader(self.writer(Form(coding, elements)).id)

    @property
    def numbers(self) -> frozenset[int]:
        """Numbers of all codecs that can be read."""
        return frozenset(self._readers) | frozenset(self._makers)

    def writer(self, form: Form) -> Codec:
        """The codec that writes a form."""
        if form.coding is Coding.PLAIN:
            return self._first
        key = form.coding, form.elements
        with self._lock:
            if key not in self._writers:
                self._writers[key] = _warm(_made(form), form.elements or WARM)
            return self._writers[key]

    def reader(self, number: int) -> Codec:
        """The codec of a number in frames.

        Raises:
            FrameError: there is none here.
        """
        known = self._readers.get(number)
        if known is not None:
            return known
        with self._lock:
            maker = self._makers.get(number)
            if maker is None:
                raise FrameError(f"codec {number} is not known here")
            if number not in self._readers:
                self._readers[number] = maker()
            return self._readers[number]


def coding_of(number: int, stored: Buffers) -> Coding:
    """The coding of stored bytes that were decoded well, for whoever times them."""
    if number == Exponent.id and (mode := mode_of(stored)) is not None:
        return _BY_MODE[mode]
    return _LOSSY.get(number, Coding.PLAIN)


def _made(form: Form) -> Codec:
    """A codec, compiled on first use."""
    elements = form.elements or WARM
    if form.coding.lossless:
        return Exponent(_MODES[form.coding], elements.kind)
    return Fp8(elements, scale="head") if form.coding is Coding.FP8 else Nvfp4(elements)


def _warm(codec: Codec, elements: Elements) -> Codec:
    """Have a codec compile what it needs for such elements, both ways."""
    tensor_bytes = elements.tensor_elements * elements.kind.bytes
    size_bytes = round_up(WARM_BYTES, tensor_bytes)
    payload = scratch(size_bytes)
    stored = codec.encode([payload])
    if total_bytes(stored) < size_bytes:
        codec.decode(stored, [scratch(size_bytes)])
    return codec
