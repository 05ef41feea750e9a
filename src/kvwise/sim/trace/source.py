"""One file of a trace, read within bounds. It knows lines and JSON, and no format.

Whatever a file holds, it leads to a value or to a `TraceError` that says where: no line, document
or nesting is read beyond a bound, and nothing that the file says is trusted before it was checked.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from kvwise.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 16 << 20
EMPTY_LINES_MAX = 1_000_000
DOCUMENT_BYTES_MAX = 1 << 30
READ_BYTES = 1 << 20
TOKENS_MAX = 1 << 24
TIME_S_MAX = 4_000_000_000
SHOWN_CHARS_MAX = 60
T = TypeVar("T")

_BYTE = re.compile(r"\(byte (\d+)\)")
_HALF = re.compile(rb"(\\u[dD][89abAB][0-9a-fA-F]{2})(?:[^\\]|\\[^u])")
"""The escape of the first half of a character, with something else behind it."""

Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
"""A length in tokens, as a file may give it."""

Milliseconds = Annotated[float, Meta(ge=0, le=TIME_S_MAX * 1000)]
Seconds = Annotated[float, Meta(ge=0, le=TIME_S_MAX)]
BlockTokens = Annotated[int, Meta(ge=1, le=1 << 20)]
BlockId = int
"""Any whole number: an id may be a hash of 64 or 128 bits."""

Name = Annotated[str, Meta(max_length=512)]


class Source:
    """A file, plain or compressed with gzip, whatever its name says."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self.path = path

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line that is not empty, with its number from 1."""
        with self._opened() as stream:
            number = empty = 0
            while line := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if len(line) > LINE_BYTES_MAX:
                    self.refuse(f"the line is longer than {LINE_BYTES_MAX >> 20} MiB", number)
                if text := line.strip():
                    yield number, text
                else:
                    empty += 1
                    if empty > EMPTY_LINES_MAX:
                        self.refuse(f"more than {EMPTY_LINES_MAX:,} lines are empty", number)

    def document(self) -> bytearray:
        """The whole content."""
        content = bytearray()
        with self._opened() as stream:
            while part := stream.read(READ_BYTES):
                content += part
                if len(content) > DOCUMENT_BYTES_MAX:
                    most = f"{DOCUMENT_BYTES_MAX >> 20} MiB"
                    self.refuse(f"the file holds more than {most}", hint="split it")
        return content

    def decode(self, decoder: msgspec.json.Decoder[T], text: bytes | bytearray, line: int = 0) -> T:
        """A value from JSON."""
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as error:
            message, _, field = str(error).partition(" - at `")
            name = field.rstrip("`").removeprefix("$").removeprefix(".")
            self.refuse(f"field {name}: {message}" if name else message, line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.refuse(_cause(str(error), text), line or _line(str(error), text))
        except RecursionError:
            self.refuse("JSON is nested too deeply", line)

    def refuse(self, message: str, line: int = 0, *, hint: str = "") -> NoReturn:
        """Refuse the file for what it holds."""
        where = f"{self.path}:{line}" if line else str(self.path)
        raise TraceError(f"{where}: {message}" + (f"; hint: {hint}" if hint else ""))

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes] | gzip.GzipFile]:
        """The content as a stream; what goes wrong on the way is said in our words."""
        if self.path.is_fifo():  # opening one waits for who writes
            self.refuse("a pipe cannot be read twice", hint="write it to a file first")
        try:
            with self.path.open("rb") as raw:
                if not raw.seekable():
                    self.refuse("a pipe cannot be read twice", hint="write it to a file first")
                packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
                raw.seek(0)
                if packed:
                    with gzip.open(raw) as stream:
                        yield stream
                else:
                    yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            message = f"{self.path}: the compressed data is damaged: {error}"
            raise TraceError(f"{message}; hint: fetch the file again") from error
        except OSError as error:
            raise TraceError(f"cannot read {self.path}: {error.strerror or error}") from error


def _cause(message: str, text: bytes | bytearray) -> str:
    """What is wrong with JSON: half a character near its end is not the end of the text."""
    half = _HALF.search(text) if "truncated" in message else None
    if half is None:
        return message
    return f"a text has half a character: {half[1].decode()} needs the escape of its other half"


def _line(message: str, text: bytes | bytearray) -> int:
    """The line of a document at which a decoder stopped, from 1; 0 where it does not say."""
    at = _BYTE.search(message)
    return 1 + text.count(b"\n", 0, int(at[1])) if at else 0


def shown(text: object) -> str:
    """Something from a file as a message may show it: short, and nothing a terminal would obey."""
    whole = repr(text)
    return whole if len(whole) <= SHOWN_CHARS_MAX else f"{whole[: SHOWN_CHARS_MAX - 3]}..."
