"""Where each peer's environment is, and how it is made: pinned packages, one environment each.

Their pins contradict each other and ours, so none of them shares one. It measures nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from kvwise.bench.places import cache_root, fill_once, finished
from kvwise.bench.progress import Progress
from kvwise.bench.provision import install_pins
from kvwise.units import GIB, MIB

MISSING_LIBRARY = "cannot open shared object file"
"""What the loader says of a library that the system lacks."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A cache to compare with.

    Attributes:
        name: as on the command line.
        title: as people know it.
        need_bytes: disk space that installing it takes, pip's downloads included.
        takes_bytes: disk space that it takes for good.
        libraries: packages of the system that it wants, as a Debian user would install them.
    """

    name: str
    title: str
    need_bytes: int
    takes_bytes: int
    libraries: str = ""

    @property
    def lock(self) -> Path:
        """The file that pins its packages."""
        return Path(__file__).with_name(f"{self.name}.lock")

    @property
    def folder(self) -> Path:
        """Its environment: one for each lock file and Python version."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
        digest = blake2b(self.lock.read_bytes() + b"\0" + version, digest_size=6).hexdigest()
        return cache_root() / "peers" / f"{self.name}-{digest}"

    @property
    def version(self) -> str:
        """The pinned version of the package that gives the peer its name."""
        pins = (line.partition("==") for line in self.lock.read_text().splitlines())
        return next(version for name, _, version in pins if name.startswith(self.name))

    def absent(self, given: Mapping[str, Path]) -> str:
        """Why it cannot be started, with what to do about it; empty when it can."""
        if self.name in given or finished(self.folder):
            return ""
        return (
            f"{self.title} is not installed; hint: kvwise bench peers --peer {self.name} "
            f"--install, or --python {self.name}=/path/to/python"
        )

    def python(self, given: Mapping[str, Path]) -> Path:
        """The interpreter to run it with."""
        return given.get(self.name, self.folder / "bin" / "python")

    def install(self, progress: Progress) -> None:
        """Make its environment unless that was done before.

        Raises:
            SetupError: it could not be done; the message says what to do.
        """
        if not finished(self.folder):
            fill_once(
                self.folder,
                self.need_bytes,
                progress,
                lambda place: install_pins(place, self.lock, progress),
            )
            progress.done(f"installed {self.title} {self.version} in {self.folder}")

    def explain(self, last_words: str) -> str:
        """Why it does not run, from its last words, with a hint where one is known."""
        if self.libraries and MISSING_LIBRARY in last_words:
            return f"{last_words}\nhint: apt-get install --no-install-recommends {self.libraries}"
        return last_words


PEERS = {
    peer.name: peer
    for peer in (
        Peer("lmcache", "LMCache", 4 * GIB, 1639 * MIB),
        Peer(
            "mooncake",
            "Mooncake Store",
            1 * GIB,
            307 * MIB,
            "libnuma1 libibverbs1 librdmacm1 libcurl4 libjsoncpp25 libgoogle-glog0v6 "
            "libgflags2.2 liburing2",
        ),
        Peer("nixl", "NIXL", 3 * GIB, 1229 * MIB),
    )
}
"""Every peer by its name."""
