"""What the directories of the disk tier are like, found by using them. It leaves nothing behind.

Each configured path gives three findings: the folder itself, the room on its filesystem against the
cap, and how it can be read and written.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from kvwise.cli.checks import Case, Finding, Grade
from kvwise.errors import ConfigError
from kvwise.host import Host
from kvwise.tiers.directio import Io, probe
from kvwise.units import GIB, MIB, format_size

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs"}
MOUNTS = tuple(map(Path, ("/mnt", "/media", "/run/media")))
"""Where drives are mounted."""


def check_disk(case: Case) -> Iterator[Finding]:
    """Every finding about the disk tier; one that says so when there is none."""
    if not case.config.disk.paths:
        advice = "set disk.paths and disk.size to keep what does not fit into memory"
        yield Finding("disk", Grade.OK, f"no disk tier configured; {advice}")
        return
    for text in case.config.disk.paths:
        path = Path(text)
        folder = check_folder(path, case.host)
        yield folder
        if folder.grade is not Grade.FAIL:
            yield check_space(path, case)
            yield check_access(path, case.config.disk.io)


def check_folder(path: Path, host: Host) -> Finding:
    """The directory exists or can be made, is ours, and lies on a real local disk."""
    name, place = "disk folder", nearest(path)
    kind = filesystem(place, host)
    if path.exists() and not path.is_dir():
        return Finding(name, Grade.FAIL, f"{path} is not a directory", "choose another path")
    if not os.statvfs(place).f_blocks:
        seen = f"{path} is on {kind}, which keeps no files"
        return Finding(name, Grade.FAIL, seen, "choose another path")
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        advice = "as root: `mount -o remount,rw` where it is mounted, or choose another path"
        return Finding(name, Grade.FAIL, f"{place} is on a read-only filesystem", advice)
    if not os.access(place, os.W_OK | os.X_OK):
        advice = f"as root: `install -d -m 700 -o {os.getuid()} {path}`"
        return Finding(name, Grade.FAIL, f"{place} cannot be written by this user", advice)
    seen = f"{path} on {kind}" if place == path else f"{path} will be created, on {kind}"
    if kind in IN_MEMORY:
        advice = "that is memory, not a disk: give the bytes to dram.size, or choose another path"
        return Finding(name, Grade.WARN, seen, advice)
    if kind in REMOTE:
        advice = "kvwise locks the directory for one host; a local drive is faster and safer"
        return Finding(name, Grade.WARN, seen, advice)
    if kind == "overlay":
        advice = "that is the container's own layer: mount a volume there"
        return Finding(name, Grade.WARN, seen, advice)
    if place != path and may_be_unmounted(path, place, host.root):
        advice = (
            f"mount the drive first, if {path} is to be on one: `findmnt -T {place}` shows what is "
            f"there now; if not, `mkdir -p {path.parent}`"
        )
        return Finding(name, Grade.WARN, f"{seen}, the filesystem of /", advice)
    if place == path and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        advice = f"{made_private(path)}: what is cached tells what was asked"
        return Finding(name, Grade.WARN, f"{seen}, open to other users", advice)
    return Finding(name, Grade.OK, seen)


def may_be_unmounted(path: Path, place: Path, root: Path) -> bool:
    """Whether a missing folder would lie on the filesystem of /, though it looks like a drive's."""
    if place.stat().st_dev != root.stat().st_dev:
        return False
    return place != path.parent or any(path.is_relative_to(mounts) for mounts in MOUNTS)


def made_private(path: Path) -> str:
    """How to have a folder that others cannot read: this one, unless it is theirs too."""
    found = path.stat()
    if found.st_mode & stat.S_ISVTX or found.st_uid != os.getuid() or path == Path("/"):
        return f"choose a folder of its own, such as {path / 'kvwise'}"
    return f"`chmod 700 {path}`"


def check_space(path: Path, case: Case) -> Finding:
    """The cap fits on the filesystem, beside the bytes that must stay free."""
    disk, name = case.config.disk, "disk space"
    paths = disk.paths
    place = nearest(path)
    device = place.stat().st_dev
    here = [p for p in map(Path, paths) if nearest(p).stat().st_dev == device]
    share = disk.size // len(paths) * len(here)
    found = os.statvfs(place)
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    held = sum(bytes_held(p) for p in here)
    seen = (
        f"{format_size(share)} of disk.size go to the filesystem of {path}: "
        f"{format_size(total)}, {format_size(free)} free, {format_size(held)} held already"
    )
    if share + disk.min_free <= min(total, free + held):
        return Finding(name, Grade.OK, seen)
    room = max(0, min(total, free + held) - disk.min_free) * len(paths) // len(here)
    most = floored(room)
    lower = f"lower disk.size to {exact(most)} or less"
    if most < disk.segment * len(paths):
        lower = f"take {path} out of disk.paths: there is no room for one segment"
    if share + disk.min_free > total:
        return Finding(name, Grade.FAIL, seen, lower)
    advice = (
        f"free some space, or {lower}: kvwise will stop at "
        f"disk.min_free = {format_size(disk.min_free)}, before the cap"
    )
    return Finding(name, Grade.WARN, seen, advice)


def floored(size_bytes: int) -> int:
    """A size that can be written down with few digits and is no larger."""
    unit = GIB if size_bytes >= 100 * GIB else MIB
    return size_bytes // unit * unit


def exact(size_bytes: int) -> str:
    """A whole number of MiB or GiB, as a configuration takes it."""
    return f"{size_bytes // MIB}MiB" if size_bytes % GIB else f"{size_bytes // GIB}GiB"


def check_access(path: Path, io: str) -> Finding:
    """Files there can be written, read and punched, past the page cache where possible.

    Nothing is assumed from the name of the filesystem: blocks of a throw-away file are really
    written, read back, given back, and looked for.
    """
    name = "disk access"
    with ExitStack() as stack:
        folder = path
        if not path.exists():
            made = tempfile.TemporaryDirectory(prefix=".kvwise-doctor-", dir=nearest(path))
            folder = Path(stack.enter_context(made))
        try:
            found, tried = probe(folder, Io(io))
        except ConfigError as error:
            advice = "choose a directory on ext4 or XFS, or set disk.io = auto"
            return Finding(name, Grade.FAIL, str(error), advice)
    if not tried:
        advice = "free some space: until then kvwise serves what is there and writes nothing"
        return Finding(name, Grade.WARN, f"{path}: no room to try {found.value} I/O", advice)
    seen = f"{path}: {found.value} I/O in 4 KiB blocks, holes give space back"
    if found is Io.BUFFERED and io == Io.AUTO.value:
        advice = "without direct I/O the page cache holds every object a second time"
        return Finding(name, Grade.WARN, seen, advice)
    return Finding(name, Grade.OK, seen)


def nearest(path: Path) -> Path:
    """The path itself, or the closest of its parents that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def bytes_held(path: Path) -> int:
    """Bytes on disk of the files directly in a directory; 0 when it is not there or not ours."""
    try:
        return sum(512 * entry.stat().st_blocks for entry in os.scandir(path) if entry.is_file())
    except OSError:
        return 0


def filesystem(place: Path, host: Host) -> str:
    """The type of the filesystem that holds a directory, as the kernel's mount table names it."""
    best, kind = -1, "an unknown filesystem"
    real = place.resolve()
    for line in host.read("/proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(mount.split()[4].encode().decode("unicode_escape"))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), source.split()[0]
    return kind
