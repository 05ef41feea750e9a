"""Owns `host.toml`: what was measured, as entries that `kvwise plan --hardware` reads.

It measures nothing. What has no place in an entry stands beside it as a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date

from kvwise.bench.probe.disk import OBJECT_BYTES, SMALL_BYTES, TIER_DEPTH
from kvwise.bench.probe.servers import DEPTH
from kvwise.bench.rows import Row, Rows
from kvwise.planner.hardware import HOST_MEMORY, OVER_LINK, PROBED
from kvwise.units import format_size

RATE_MIN = 0.001
"""The least that a rate can be in such a file."""

READ = ("read", OBJECT_BYTES, TIER_DEPTH)
WRITE = ("write", OBJECT_BYTES, 1)
"""What the entry of a drive is made of: way, bytes of a block, depth."""


def entries(found: Rows, today: date, *, dwpd: float = 0.0) -> str:
    """The text of the file; `dwpd` is what the drives are rated for, 0 where nobody said."""
    machine = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    lines = [
        f"# Measured by kvwise probe, {found.started}, on: {_line(machine)}",
        "# Use it with: kvwise plan --hardware THIS-FILE, and --drive NAME for a disk below.",
        "# Rates are decimal: 1 GB/s is 10^9 bytes a second.",
    ]
    for part in (_memory, _gpu, _disks, _servers, _others):
        lines += part(found.rows, f'as_of = {today}\nsource = "{PROBED}"\nmark = "measured"', dwpd)
    lines += ["", *(f"# not measured: {_line(text)}" for text in found.skipped)]
    lines += [f"# note: {_line(text)}" for text in found.notes]
    return "\n".join(lines) + "\n"


def _memory(rows: Sequence[Row], origin: str, _: float) -> Iterator[str]:
    """Memory as a tier: the slowest node by one thread, as copies of a worker go."""
    nodes = [row for row in rows if row["part"] == "memory" and row["threads"] == 1]
    if not nodes:
        return
    slowest = min(nodes, key=lambda row: float(row["gbps"]))
    yield from (
        "",
        f"[tier.{HOST_MEMORY}]",
        'about = "this host\'s memory, copied by one thread within a NUMA node"',
        f"read_gb_per_s = {_rate(slowest)}",
        f"write_gb_per_s = {_rate(slowest)}",
        "per_gpu = true",
        origin,
    )
    for row in rows:
        if row["part"] == "memory":
            yield f"# node {row['node']}, threads {row['threads']}: {_range(row)}"


def _gpu(rows: Sequence[Row], origin: str, _: float) -> Iterator[str]:
    """The GPU, if everything about it was measured, and the way to it in place of the usual one."""
    by_way = {row["way"]: row for row in rows if row["part"] == "gpu"}
    if len(by_way) < 4:
        return
    name = by_way["products"]["name"]
    yield from (
        "",
        "[gpu.host-gpu]  # " + name,
        f"hbm_gb = {by_way['products']['memory_bytes'] / 1e9:.1f}",
        f"hbm_gb_per_s = {_rate(by_way['within'])}",
        f"bf16_tflops = {max(RATE_MIN, by_way['products']['gbps'] / 1e3):.4g}",
        f"host_link_gb_per_s = {_rate(by_way['to device'])}",
        origin,
        "",
        f"[tier.{OVER_LINK}]",
        'about = "this host\'s memory over its own link, for each GPU"',
        f"read_gb_per_s = {_rate(by_way['to device'])}",
        f"write_gb_per_s = {_rate(by_way['to host'])}",
        "per_gpu = true",
        origin,
    )


def drive_names(rows: Sequence[Row]) -> dict[str, str]:
    """The names of directories as drives; only those of which enough was measured have one."""
    folders = list(dict.fromkeys(row["path"] for row in rows if row["part"] == "disk"))
    names = {}
    for number, folder in enumerate(folders, 1):
        if READ in (cells := _cells(rows, folder)) and WRITE in cells:
            names[folder] = f"host-disk{'' if number == 1 else f'-{number}'}"
    return names


def _cells(rows: Sequence[Row], folder: str) -> dict[tuple[str, int, int], Row]:
    """What was measured of a directory."""
    return {
        (row["way"], row["block_bytes"], row["depth"]): row
        for row in rows
        if row["part"] == "disk" and row["path"] == folder
    }


def _disks(rows: Sequence[Row], origin: str, dwpd: float) -> Iterator[str]:
    """Each directory as a drive: as the disk tier reads and writes it."""
    for folder, name in drive_names(rows).items():
        cells = _cells(rows, folder)
        read, written = cells[READ], cells[WRITE]
        small = cells.get(("read", SMALL_BYTES, 1))
        yield from (
            "",
            f"[tier.{name}]",
            "about = " + _quoted(f"{folder}, {read['io']} I/O"),
            f"read_gb_per_s = {_rate(read)}",
            f"write_gb_per_s = {_rate(written)}",
        )
        if small is not None:
            yield f"latency_us = {small['latency_us']}"
        yield (
            f"dwpd = {dwpd:g}"
            if dwpd
            else "# dwpd = 1  # drive writes a day: nobody can measure it, see the data sheet; "
            "without it writing counts as free"
        )
        yield origin
        for (way, block_bytes, depth), row in cells.items():
            beside = f", {row['written_gbps']:g} written meanwhile" if way == "mixed" else ""
            yield f"# {way}, {format_size(block_bytes)}, depth {depth}: {_range(row)}{beside}"


def _servers(rows: Sequence[Row], origin: str, _: float) -> Iterator[str]:
    """Each server as a tier of which a host has one, over several connections."""
    of = [row for row in rows if row["part"] == "server" and row["depth"] == DEPTH]
    reads = {row["path"]: row for row in of if row["way"] == "read"}
    writes = {row["path"]: row for row in of if row["way"] == "write"}
    for number, path in enumerate([path for path in reads if path in writes], 1):
        yield from (
            "",
            f"[tier.host-{reads[path]['kind']}{'' if number == 1 else f'-{number}'}]",
            "about = " + _quoted(f"{path}, {DEPTH} connections"),
            f"read_gb_per_s = {_rate(reads[path])}",
            f"write_gb_per_s = {_rate(writes[path])}",
            f"latency_us = {reads[path]['round_trip_us']}",
            origin,
        )
        for row in rows:
            if row["part"] == "server" and row["path"] == path:
                yield f"# {row['way']}, depth {row['depth']}: {_range(row)}"


def _others(rows: Sequence[Row], _: str, __: float) -> Iterator[str]:
    """What no entry has a place for."""
    for row in rows:
        if row["part"] == "loopback":
            yield f"\n# loopback: {_range(row)}, round trip {row['round_trip_us']} us"
        elif row["part"] == "codec":
            yield (
                f"# codec {row['codec']} ({row['mode']}), {row['data']}: ratio {row['ratio']}, "
                f"encode {row['encode_gbps']}, decode {row['decode_gbps']} GB/s, one thread"
            )


def _line(text: str) -> str:
    """A text that stays within its line, whatever the name of a folder holds."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return printable.encode("utf-8", "replace").decode("utf-8")


def _quoted(text: str) -> str:
    """A text as TOML writes it; without control characters, JSON is TOML here."""
    return json.dumps(_line(text), ensure_ascii=False)


def _rate(row: Row) -> str:
    """A rate that such a file may hold."""
    return f"{max(RATE_MIN, float(row['gbps'])):.4g}"


def _range(row: Row) -> str:
    """A rate with its range."""
    return f"{row['gbps']:g} GB/s ({row['gbps_low']:g} to {row['gbps_high']:g})"
