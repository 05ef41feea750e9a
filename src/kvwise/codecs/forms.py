"""Forms: the codec for each way to write a payload down, made when it is first needed.

A codec is compiled when it is made: many seconds the first time on a machine, one later. So `make`
or `warm` come first, on a thread that nobody waits for (`live/codecs`); whoever reads is told at
once what is not there yet, and whoever writes may be given `plain`. Without Numba there is no
other. It chooses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec

from kvwise.codecs.base import Buffers, Codec, scratch, total_bytes
from kvwise.codecs.exponent import Exponent, Mode, mode_of
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.codecs.plain import PLAIN
from kvwise.codecs.scaled import kind_of
from kvwise.core.elements import LOSSY, Coding, Elements, Form, Kind
from kvwise.errors import FailureKind, FrameError, TierError
from kvwise.units import round_up

WARM_BYTES = 64 * 1024
"""Payload that a new codec is tried on before it is used."""

WARM = Elements(Kind.BF16, WARM_BYTES // 2, 1, WARM_BYTES // 2)

INSTALL = "pip install 'kvwise[codecs]'"
"""What brings the codecs where they are missing."""

_MODES: dict[Coding, Mode] = {Coding.FIXED: "fixed", Coding.DENSE: "dense"}
_BY_MODE = {mode: coding for coding, mode in _MODES.items()}
_NO_NUMBA = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a Numba says that is missing or does not go with what else is installed."""

_LOSSY: dict[int, Coding] = {Fp8.id: Coding.FP8, Nvfp4.id: Coding.NVFP4}


def at_hand() -> tuple[Coding, ...]:
    """Codings that can be used here: none without a Numba that can be loaded."""
    try:
        import_module("numba")
    except _NO_NUMBA:
        return ()
    return installed()


def installed() -> tuple[Coding, ...]:
    """Codings for which all is installed: Numba is looked for and not loaded, and may be broken."""
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
    """Codecs that were made so far, for writing by form and for reading by number; thread-safe.

    Nothing is compiled while its lock is held.

    Attributes:
        failure: why no more codecs can be made; empty while they can.
    """

    def __init__(self, first: Codec = PLAIN, *, on_demand: bool = True) -> None:
        """Nothing is made yet.

        Args:
            first: writes what has no form of its own.
            on_demand: whether a codec is made where it is first needed to write; else `first`
                writes what codecs are not ready for.
        """
        self._first = first
        self._on_demand = on_demand
        self._lock = threading.Lock()
        self._writers: dict[tuple[Coding, Elements | None], Codec] = {}
        self._readers: dict[int, Codec] = {PLAIN.id: PLAIN, first.id: first}
        self._makers: dict[int, Callable[[], Codec]] = {}
        self._found: set[int] = set()
        self._kinds: set[tuple[int, Kind]] = set()
        self.failure = ""
        if installed():
            self._makers[Exponent.id] = lambda: _warm(Exponent("fixed", Kind.BF16), WARM)
            self._makers[Fp8.id] = lambda: _warm(Fp8(WARM), WARM)
            self._makers[Nvfp4.id] = lambda: _warm(Nvfp4(WARM), WARM)

    def warm(self, codings: Iterable[Coding], elements: Elements = WARM) -> None:
        """Make and compile what these need, for such elements.

        Raises:
            ImportError: Numba does not go with what else is installed.
        """
        for coding in codings:
            number = self._writer(Form(coding, elements)).id
            self.make(number)
            with self._lock:
                self._kinds.add((number, elements.kind))

    def make(self, number: int) -> None:
        """Make and compile the codec that reads a number.

        Raises:
            ImportError: Numba does not go with what else is installed.
        """
        if number not in self._readers:
            made = self._makers[number]()
            with self._lock:
                self._readers.setdefault(number, made)
                self._kinds.add((number, WARM.kind))

    def find(self, numbers: Iterable[int]) -> None:
        """Note that there are frames of these numbers."""
        with self._lock:
            self._found.update(numbers)

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of which there are frames, but not yet a codec that was made."""
        with self._lock:
            return tuple(sorted(self._found & self._makers.keys() - self._readers.keys()))

    @property
    def numbers(self) -> frozenset[int]:
        """Numbers of all codecs that can be read."""
        return frozenset(self._readers) | frozenset(self._makers)

    def writer(self, form: Form) -> Codec:
        """The codec that writes a form."""
        if form.coding is Coding.PLAIN or not (self._on_demand or self._is_ready(form)):
            return self._first
        return self._writer(form)

    def _is_ready(self, form: Form) -> bool:
        """Whether a form can be written without compiling anything."""
        if form.coding.lossless:
            return Exponent.id in self._readers
        number = next(number for number, one in _LOSSY.items() if one is form.coding)
        return form.elements is not None and (number, form.elements.kind) in self._kinds

    def _writer(self, form: Form) -> Codec:
        """The codec that writes a form which is not plain, made if need be."""
        key = form.coding, form.elements
        known = self._writers.get(key)
        if known is not None:
            return known
        made = _warm(_made(form), form.elements or WARM)
        with self._lock:
            return self._writers.setdefault(key, made)

    def reader(self, number: int) -> Codec:
        """The codec of a number in frames, without waiting for it to be compiled.

        Raises:
            FrameError: there is none here.
            TierError: it is not ready yet (TIMEOUT), or never will be (MISSING).
        """
        known = self._readers.get(number)
        if known is not None:
            return known
        if number not in self._makers:
            raise FrameError(f"codec {number} is not known here")
        raise self._unready(number)

    def require(self, number: int, stored: Buffers) -> None:
        """See that nothing has to be compiled to decode these bytes, which hold what was written.

        Whoever gave a codec of their own answers for that one.

        Raises:
            TierError: loops for their kind of element are not there, as in `reader`.
        """
        asked = number in _LOSSY and number != self._first.id
        kind = kind_of(stored) if asked else None
        if kind is not None and (number, kind) not in self._kinds:
            raise self._unready(number)

    def _unready(self, number: int) -> TierError:
        """What is said where a codec is not ready."""
        if self.failure:
            return TierError(FailureKind.MISSING, f"there is no codec {number}: {self.failure}")
        return TierError(FailureKind.TIMEOUT, f"codec {number} is not ready", retryable=True)


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
