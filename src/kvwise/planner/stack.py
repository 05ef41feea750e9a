"""The daemon's configuration that a plan comes to, as the file that `kvwise serve --config` reads.

It is for one host; all hosts have the same. It starts nothing and looks at no drive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor

from kvwise import config
from kvwise.planner.below import decided
from kvwise.planner.demand import Demand
from kvwise.planner.site import WORN, Decision, Site

FILLED = 0.95
"""Of drives, what a cache may take: filesystems need some, and full ones are slow."""

Stack = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on a host.

    Attributes:
        socket: at which the daemon listens and engines ask; empty for the user's own.
        drives: a directory on each drive; `{}` in one of them stands for the number of a drive.
    """

    socket: str = ""
    drives: Sequence[str] = ("/mnt/nvme{}/kvwise",)

    def directories(self, count: int) -> list[str]:
        """One for each of so many drives: those that are given, or numbered ones."""
        if len(self.drives) == 1 and "{}" in self.drives[0]:
            return [self.drives[0].replace("{}", str(number)) for number in range(count)]
        return list(self.drives)

    @property
    def listens(self) -> str:
        """The path of the socket."""
        return self.socket or config.Config().socket_path


def stack_of(
    site: Site, demand: Demand, decisions: Iterable[Decision], places: Places
) -> Stack | None:
    """Keys by section for one host; None where no level below the GPUs is to be.

    Raises:
        ConfigError: a daemon would refuse it.
    """
    verdicts = {one.boundary: one.verdict for one in decisions}
    site = decided(site, demand, verdicts)
    if not site.dram_bytes:
        return None
    memory_gb = ceil(site.dram_bytes / 1e9)
    stack: Stack = {"dram": {"size": f"{memory_gb}GB"}}
    if site.drives:
        cap_gb = floor(FILLED * site.drives * site.drive_bytes / 1e9)
        stack["disk"] = {
            "paths": places.directories(site.drives),
            "size": f"{cap_gb}GB",
            "dwpd": site.drive.dwpd,
            "write_amplification": WORN,
        }
    stack["serve"] = {"socket": places.listens}
    config.load(overrides=stack, environ={})
    return stack


def toml(stack: Stack, heading: Sequence[str]) -> str:
    """The file, with lines of comment above it."""
    lines = [f"# {_shown(line)}".rstrip() for line in heading]
    for section, keys in stack.items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {_value(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _shown(line: str) -> str:
    """A line that stays one, whatever a name in it holds: what cannot be printed is an escape."""
    parts = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)
    return "".join(parts)


def _value(value: object) -> str:
    """A value in TOML, which JSON is here."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def connector(socket: str) -> Mapping[str, object]:
    """What vLLM is told of the daemon at a socket."""
    return {
        "kv_connector": "KvwiseConnector",
        "kv_connector_module_path": "kvwise.engines.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"client.url": socket},
    }
