"""Owns the files that a verb writes: what may be replaced, and that each is whole or not there.

It knows no content.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from kvwise.errors import ConfigError

Target = tuple[str, Path]
"""A file that is to be written, after the option that named it."""


def require_targets(
    targets: Sequence[Target], inputs: Iterable[Path], *, may_replace: bool
) -> None:
    """Refuse files that would be lost, or could not be written, before anything else is done.

    Args:
        targets: what is to be written.
        inputs: what is read; no target may be one of these, nor a file in such a folder.
        may_replace: whether other files may be written over.

    Raises:
        ConfigError: a target is read, named twice, there already, or cannot be written.
    """
    read = [file for path in inputs for file in _files(path)]
    named: dict[Path, str] = {}
    for option, path in targets:
        if any(path.exists() and path.samefile(one) for one in read):
            raise ConfigError(
                f"{option} would write over {path}, which is read; hint: name another"
            )
        where = path.resolve()
        if where in named:
            raise ConfigError(f"{named[where]} and {option} both write {path}; hint: name another")
        named[where] = option
        require_target(path, may_replace=may_replace, option=option)


def require_target(path: Path, *, may_replace: bool, option: str = "--out") -> None:
    """Refuse a file that could not be written at the end, before anything is measured.

    Raises:
        ConfigError: it exists and may not be replaced, is no file, or its folder takes none.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; hint: {option} names a file to write")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no regular file; hint: {option} names a file to write")
    if path.exists() and not may_replace:
        raise ConfigError(f"{path} is there already; hint: --force writes over it")
    require_folder(path.resolve().parent, path)


def require_folder(folder: Path, path: Path) -> None:
    """Refuse a folder that takes no file, by making one there that has no name.

    Raises:
        ConfigError: there is no such folder, or it takes none.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"cannot write {path}: there is no folder {folder}; hint: `mkdir -p {folder}`"
        )
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; hint: name another") from error


def write_whole(files: Mapping[Path, str]) -> None:
    """Write all these files, each whole, or none of them.

    Raises:
        ConfigError: one of them cannot be written; the message names it.
    """
    path = Path()
    try:
        with ExitStack() as stack:
            for path, text in files.items():
                file = stack.enter_context(whole(path))
                file.write(_encoded(text))
                file.flush()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which is there when the block ends well, and else as it was before.

    Where it is a link, it is the file that the link names.
    """
    target = path.resolve()
    part = target.with_name(f".kvwise-{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _files(path: Path) -> Iterator[Path]:
    """A file, or those in a folder; nothing where there is none."""
    if path.is_dir():
        yield from (one for one in path.iterdir() if one.is_file())
    elif path.exists():
        yield path


def _encoded(text: str) -> bytes:
    """A text as a file has it: names of files that are no text come out as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")
