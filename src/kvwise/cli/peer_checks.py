"""Whether engines of this host give equal names to equal blocks. It asks and stops none of them.

kvwise's keys go on from vLLM's block hashes, and those start from PYTHONHASHSEED where it is set:
engines whose seeds or algorithms differ share nothing, and nobody tells them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kvwise.cli.checks import Case, Check, Finding, Grade
from kvwise.host import Host, names_in

SEED = "PYTHONHASHSEED"
ALGORITHM_OPTION = "--prefix-caching-hash-algo"
ALGORITHM_USUAL = "sha256"
SHOWN_MAX = 4
"""Engines that are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine that runs here, and what its block hashes start from.

    Attributes:
        seed: empty where it has none, `?` where it may not be looked at.
        algorithm: what its hashes are made by.
    """

    pid: int
    seed: str
    algorithm: str

    @property
    def text(self) -> str:
        """As a person would say it."""
        return f"process {self.pid}: {self.algorithm}, seed {self.seed or 'not set'}"


def peers(host: Host) -> Iterator[Peer]:
    """The vLLM servers among the processes of a host."""
    for name in names_in(host, "/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        words = host.read(f"/proc/{name}/cmdline").split("\0")
        if not _is_server(words):
            continue
        environment = host.read(f"/proc/{name}/environ")
        seed = _value(environment.split("\0"), SEED) if environment else "?"
        yield Peer(int(name), seed, _option(words) or ALGORITHM_USUAL)


def check_hash_seed(case: Case) -> Finding:
    """Engines started from here would start their hashes as engines elsewhere do."""
    name, seed = "hash seed", case.environ.get(SEED)
    if not seed:
        seen = f"{SEED} is not set here: sha256 hashes of vLLM start alike in all engines"
        return Finding(name, Grade.OK, seen)
    seen = f"{SEED} = {seed!r} here: vLLM's hashes start from it, and engines that have another"
    advice = f"`unset {SEED}` for every engine, or give all engines of all hosts the same"
    return Finding(name, Grade.WARN, f"{seen}, or none, share nothing with those that do", advice)


def check_peers(case: Case) -> Finding:
    """Engines that run here already have the same algorithm and the same seed."""
    name, found = "engines here", sorted(peers(case.host), key=lambda peer: peer.pid)
    if not found:
        return Finding(name, Grade.OK, "no vLLM server runs here now")
    told = "; ".join(peer.text for peer in found[:SHOWN_MAX])
    if len(found) > SHOWN_MAX:
        told += f"; {len(found) - SHOWN_MAX} more"
    if any(not peer.algorithm.startswith(ALGORITHM_USUAL) for peer in found):
        advice = f"start all with `{ALGORITHM_OPTION} {ALGORITHM_USUAL}`: others are refused"
        return Finding(name, Grade.FAIL, told, advice)
    known = {(peer.seed, peer.algorithm) for peer in found if peer.seed != "?"}
    if len(known) > 1:
        advice = f"start all with one `{ALGORITHM_OPTION}` and one {SEED}, or none: they share none"
        return Finding(name, Grade.WARN, told, advice)
    return Finding(name, Grade.OK, told)


def _is_server(words: list[str]) -> bool:
    """Whether a command line is that of a server of vLLM."""
    if any(word.startswith("vllm.entrypoints.") for word in words):
        return True
    names = [word.rpartition("/")[2] for word in words]
    return ("vllm", "serve") in pairwise(names)


def _value(environment: list[str], name: str) -> str:
    """A variable of an environment; empty where it is not set."""
    found = [line.partition("=")[2] for line in environment if line.startswith(f"{name}=")]
    return found[0] if found else ""


def _option(words: list[str]) -> str:
    """The algorithm that a command line names, or nothing."""
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        if word == ALGORITHM_OPTION:
            return behind
        if word.startswith(f"{ALGORITHM_OPTION}="):
            return word.partition("=")[2]
    return ""


PEER_CHECKS: tuple[Check, ...] = (check_hash_seed, check_peers)
"""In the order in which they are shown."""
