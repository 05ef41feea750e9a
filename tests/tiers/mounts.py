"""Filesystems for tests that need one of their own. Where root may not mount, tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(home: Path, *options: str) -> Iterator[Path]:
    """A filesystem on a directory, which is made if need be, for as long as the block lasts."""
    home.mkdir(exist_ok=True)
    argv = ["mount", *options, str(home)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield home
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def ext4_image(image: Path, size_bytes: int) -> Path:
    """A file that holds an empty ext4."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    image.touch()
    os.truncate(image, size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", str(image)], check=True)
    return image
