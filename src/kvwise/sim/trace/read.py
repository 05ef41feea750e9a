"""Reads a trace: which files, which format, and who reads it. It parses no request itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from kvwise.errors import TraceError
from kvwise.sim.trace.assembly import Assembly, Options, Report
from kvwise.sim.trace.mooncake import read_bailian, read_delta, read_mooncake
from kvwise.sim.trace.ragpulse import read_ragpulse
from kvwise.sim.trace.records import Trace
from kvwise.sim.trace.sharegpt import read_served, read_sharegpt
from kvwise.sim.trace.source import Source
from kvwise.sim.trace.tables import AZURE_COLUMNS, BURST_COLUMNS, cells, read_azure, read_burstgpt
from kvwise.sim.trace.weka import read_weka

SUFFIXES: Final = {".json", ".jsonl", ".csv"}
"""What the files of a trace are called in a folder, apart from `.gz` at the end."""

PLAN: Final = {"decisions", "bill", "engine_flags"}
"""Fields of what `kvwise plan` writes, which may lie in a folder of traces by mistake."""

Reader = Callable[[Sequence[Source], Assembly], None]
Keys = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: who reads it, and what it is in a few words."""

    read: Reader
    about: str


FORMATS: Final = {
    "mooncake": Format(read_mooncake, "JSON lines, whole prompts as ids of 512-token blocks"),
    "mooncake-delta": Format(read_delta, "JSON lines, what each turn adds to its session"),
    "weka": Format(read_weka, "one JSON object a file, sessions of coding agents"),
    "ragpulse": Format(read_ragpulse, "JSON lines, prompts as lists of components"),
    "bailian": Format(read_bailian, "JSON lines, chats that go on with others"),
    "azure": Format(read_azure, "CSV, arrivals by date and lengths; no blocks"),
    "burstgpt": Format(read_burstgpt, "CSV, arrivals in seconds and lengths; no blocks"),
    "sharegpt": Format(read_sharegpt, "a JSON list of conversations as text"),
    "served": Format(read_served, "JSON lines, prompts as token ids"),
}
"""Every format by its name."""


def read(paths: Sequence[Path], options: Options, report: Report) -> Trace:
    """Read files, or the files of folders, as one trace.

    Raises:
        TraceError: they cannot be read or are no trace; the message says where and why.
    """
    sources = [Source(path) for path in _once(_files(paths))]
    name = options.format or _common_format(sources)
    assembly = Assembly(options, report)
    try:
        FORMATS[name].read(sources, assembly)
    except TraceError as error:
        if not options.format:
            error.add_note(f"the content looks like {name}; --format says otherwise")
        raise
    return assembly.finish(name)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, those of a folder in the order of their names."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [
            file
            for file in sorted(path.iterdir())
            if file.is_file() and (SUFFIXES & set(file.suffixes[-2:]))
        ]
        if not found:
            wanted = ", ".join(sorted(SUFFIXES))
            raise TraceError(f"no file in {path} is called {wanted}, with or without .gz")
        yield from found


def _once(paths: Iterator[Path]) -> Iterator[Path]:
    """The same files, if none of them is there twice: that would be twice the requests."""
    seen = dict[Path, Path]()
    for path in paths:
        real = path.resolve()
        if real in seen:
            raise TraceError(
                f"{path} is given twice, also as {seen[real]}; hint: name each file once, and not "
                "beside its folder"
            )
        seen[real] = path
        yield path


def _common_format(sources: Sequence[Source]) -> str:
    """The one format that all files have."""
    names = [detect(source) for source in sources]
    for source, name in zip(sources, names, strict=True):
        if name != names[0]:
            source.refuse(
                f"this is {name}, and {sources[0].path} is {names[0]}",
                hint="one trace has one format",
            )
    return names[0]


def detect(source: Source) -> str:
    """The format of a file, from its content."""
    line, text = next(source.lines(), (0, b""))
    if text.startswith(b"["):
        return "sharegpt"
    if text.startswith(b"{"):
        keys = _keys(source, line, text)
        if keys.keys() >= PLAN:
            source.refuse(
                "this is a plan that kvwise wrote, and no trace",
                hint="name the files of the trace, or keep plans in another folder",
            )
        name = _by_keys(keys)
    else:
        names = {cell.strip() for cell in cells(source, line, text)}
        name = "azure" if names >= set(AZURE_COLUMNS) else ""
        name = "burstgpt" if names >= set(BURST_COLUMNS) else name
    if not name:
        source.refuse(
            "no format that is known here" if text else "the file is empty",
            line,
            hint=f"formats are {', '.join(FORMATS)}; --format names one",
        )
    return name


def _keys(source: Source, line: int, text: bytes) -> Keys:
    """The fields of the first line, or of the whole document where that only begins there.

    Raises:
        TraceError: neither is an object. Where the next line begins another one, it is the first
            that is damaged.
    """
    decoder = msgspec.json.Decoder(Keys)
    if not _is_cut(text):
        return source.decode(decoder, text, line)
    following = next(islice(source.lines(), 1, None), (0, b"{"))[1]
    document = source.document()
    if following.startswith(b"{") and not _is_object(document):
        return source.decode(decoder, text, line)
    return source.decode(decoder, document)


def _is_cut(text: bytes) -> bool:
    """Whether a line is good JSON that goes on."""
    try:
        msgspec.json.decode(text, type=Keys)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def _is_object(document: bytearray) -> bool:
    """Whether a document is one JSON object."""
    try:
        msgspec.json.decode(document, type=Keys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _by_keys(keys: Keys) -> str:
    """The format of an object with these fields; empty when there is none."""
    if "token_length" in keys:
        return "ragpulse"
    if "requests" in keys and "block_size" in keys:
        return "weka"
    if "input_toks" in keys:
        return "served"
    if "hash_ids" not in keys:
        return ""
    if bytes(keys["hash_ids"]).startswith(b"{"):
        return "ragpulse"
    if "chat_id" in keys:
        return "bailian"
    return "mooncake-delta" if keys.keys() & {"delay", "group_id"} else "mooncake"
