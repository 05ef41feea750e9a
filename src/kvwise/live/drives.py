"""Drives: what lies under the disk tier's directories, what it is rated for, and how worn it is.

It reads the kernel's files and asks `smartctl`, which may be missing or not permitted; then it says
why it knows nothing. It changes nothing and limits nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvwise.config import Config
from kvwise.core.govern import YEAR_DAYS
from kvwise.host import Host

RATED_YEARS = 5
"""Data sheets give writes per day over the warranty, which is five years on nearly all of them."""

SMART_S = 5.0
"""How long `smartctl` may take for one drive."""

_SMARTCTL = "/usr/sbin/smartctl"  # is not in every user's PATH
_SECTOR_BYTES = 512
_NVME_UNIT_BYTES = 512_000
_UNSAFE = re.compile(r"[^A-Za-z0-9!_.-]")
_DEPTH_MAX = 8


@dataclass(frozen=True, slots=True)
class Drive:
    """A whole drive, not a partition.

    Attributes:
        name: as in /dev.
        size_bytes: what the kernel says it holds.
        spins: whether it is a hard disk, which does not wear by writing.
        virtual: whether it stands for something that this machine does not see.
    """

    name: str
    size_bytes: int
    spins: bool
    virtual: bool


@dataclass(frozen=True, slots=True)
class Health:
    """What a drive says of itself; 0 where it says nothing.

    Attributes:
        capacity_bytes: what it holds.
        used_percent: of its rated life; may exceed 100.
        written_bytes: by this machine and all before it.
        why: the reason if it says nothing at all.
    """

    model: str = ""
    capacity_bytes: int = 0
    used_percent: int = 0
    written_bytes: int = 0
    why: str = ""

    def left_bytes(self, rated: float) -> float:
        """Bytes that may still be written of those it is `rated` for, 0 if that is not known.

        Without a rating what was written so far tells it, once that is 1 % of its life.
        """
        if not rated and self.used_percent > 0:
            rated = self.written_bytes * 100 / self.used_percent
        return max(0.0, rated * (1 - self.used_percent / 100))


# --- which drives --------------------------------------------------------------------------------


def drives_under(paths: Sequence[str], host: Host) -> tuple[Drive, ...]:
    """The drives that hold these directories, each once; none that cannot be found."""
    found: dict[str, Drive] = {}
    for path in paths:
        place = next(p for p in (Path(path), *Path(path).parents) if p.exists())
        device = place.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        if not os.major(device):
            number = _source_number(number, host)
        for drive in _whole(host.root / "sys/dev/block" / number, host):
            found[drive.name] = drive
    return tuple(found.values())


def _source_number(number: str, host: Host) -> str:
    """The device of a filesystem that has a number of its own, as btrfs does."""
    for line in host.read("/proc/self/mountinfo").splitlines():
        mount, _, rest = line.partition(" - ")
        fields, source = mount.split(), rest.split()[1:2]
        if fields[2:3] == [number] and source and source[0].startswith("/dev/"):
            try:
                device = Path(source[0]).stat().st_rdev
            except OSError:
                return ""
            return f"{os.major(device)}:{os.minor(device)}"
    return ""


def _whole(entry: Path, host: Host, depth: int = 0) -> Iterator[Drive]:
    """The drives under a block device: its own, or those that it is made of."""
    if depth > _DEPTH_MAX or entry.name in {"", "block"} or not entry.exists():
        return
    folder = entry.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    parts = sorted((folder / "slaves").iterdir()) if (folder / "slaves").is_dir() else []
    for part in parts:
        yield from _whole(part, host, depth + 1)
    if not parts:
        base = "/" + str(folder.relative_to(host.root.resolve()))
        sectors = host.read(f"{base}/size")
        yield Drive(
            name=folder.name.replace("!", "/"),
            size_bytes=int(sectors) * _SECTOR_BYTES if sectors.isdigit() else 0,
            spins=host.read(f"{base}/queue/rotational") == "1",
            virtual="/virtual/" in base or "/virtio" in base,
        )


# --- what they are rated for ---------------------------------------------------------------------


def capacity_bytes(paths: Sequence[str], host: Host) -> int:
    """What the drives under the directories hold; their filesystems, where drives are not seen."""
    known = sum(drive.size_bytes for drive in drives_under(paths, host))
    if known:
        return known
    filesystems = {}
    for path in paths:
        place = next(p for p in (Path(path), *Path(path).parents) if p.exists())
        status = os.statvfs(place)
        filesystems[place.stat().st_dev] = status.f_frsize * status.f_blocks
    return sum(filesystems.values())


def rated_bytes(config: Config, host: Host | None = None) -> float:
    """Bytes that may be written to the drives over their rated life; 0 if that is not known."""
    disk = config.disk
    if not disk.dwpd or not disk.paths:
        return 0.0
    return capacity_bytes(disk.paths, host or Host()) * disk.dwpd * RATED_YEARS * YEAR_DAYS


def daily_bytes(config: Config, host: Host | None = None) -> int:
    """Bytes that may be written to the disk tier in a day; 0 is no limit."""
    rated = rated_bytes(config, host) / (RATED_YEARS * YEAR_DAYS) / config.disk.write_amplification
    least = max(1, int(rated)) if rated else 0  # a rating of nearly nothing is a limit, not none
    limits = [limit for limit in (least, config.write.per_day) if limit]
    return min(limits, default=0)


# --- how worn they are ---------------------------------------------------------------------------


def health_of(drive: Drive, command: str = "") -> Health:
    """What a drive says of its health, asked by `command` or by the `smartctl` that is found."""
    if drive.virtual:
        return Health(why="a virtual drive tells nothing of what is below it")
    if _UNSAFE.search(drive.name.replace("/", "_")):
        return Health(why=f"a drive called {drive.name!r} is not asked")
    tool = command or shutil.which("smartctl") or _SMARTCTL
    try:
        done = subprocess.run(
            [tool, "-j", "-a", f"/dev/{drive.name}"],
            capture_output=True,
            timeout=SMART_S,
            check=False,
        )
    except FileNotFoundError:
        return Health(why="smartctl is not installed (package smartmontools)")
    except subprocess.TimeoutExpired:
        return Health(why=f"smartctl gave no answer within {SMART_S:.0f} s")
    except OSError as error:
        return Health(why=f"smartctl cannot be run: {error.strerror}")
    return read_health(done.stdout)


def read_health(output: bytes) -> Health:
    """The health in what `smartctl -j -a` printed."""
    try:
        said = msgspec.json.decode(output, type=_Said)
    except (msgspec.MsgspecError, RecursionError):
        return Health(why="smartctl printed something that is no report")
    nvme, ata = said.nvme_smart_health_information_log, said.ata_smart_attributes
    used = said.endurance_used.current_percent if said.endurance_used else -1
    written = 0
    if nvme is not None:
        used = nvme.percentage_used if used < 0 else used
        written = nvme.data_units_written * _NVME_UNIT_BYTES
    elif ata is not None:
        rows = [row for row in ata.table if row.name == "Total_LBAs_Written"]
        written = sum(row.raw.value for row in rows[:1]) * (said.logical_block_size or 512)
    elif used < 0:
        return Health(why=_reason(said.smartctl.messages))
    return Health(
        model=said.model_name,
        capacity_bytes=said.user_capacity.bytes if said.user_capacity else 0,
        used_percent=max(0, used),
        written_bytes=written,
    )


def _reason(messages: list[_Message]) -> str:
    """Why there is no health."""
    texts = [message.string for message in messages if message.string]
    return f"smartctl: {texts[0]}" if texts else "the drive tells nothing of its health"


class _Message(msgspec.Struct):
    string: str = ""


class _Smartctl(msgspec.Struct):
    messages: list[_Message] = []


class _Capacity(msgspec.Struct):
    bytes: int = 0


class _NvmeLog(msgspec.Struct):
    percentage_used: int = 0
    data_units_written: int = 0


class _Raw(msgspec.Struct):
    value: int = 0


class _Attribute(msgspec.Struct):
    name: str = ""
    raw: _Raw = msgspec.field(default_factory=_Raw)


class _Attributes(msgspec.Struct):
    table: list[_Attribute] = []


class _Endurance(msgspec.Struct):
    current_percent: int = -1


class _Said(msgspec.Struct):
    """The parts of smartctl's report that are looked at."""

    smartctl: _Smartctl = msgspec.field(default_factory=_Smartctl)
    model_name: str = ""
    user_capacity: _Capacity | None = None
    logical_block_size: int = 0
    nvme_smart_health_information_log: _NvmeLog | None = None
    ata_smart_attributes: _Attributes | None = None
    endurance_used: _Endurance | None = None
