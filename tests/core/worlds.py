"""A small deterministic world around a brain: clients, tiers and faults from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvwise.core.brain import Brain
from kvwise.core.keys import ROOT, chain_keys, split_keys
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import (
    Asked,
    Cleared,
    Command,
    Done,
    Drop,
    Ended,
    Event,
    Failed,
    Filled,
    Granted,
    Joined,
    Left,
    Load,
    Namespace,
    Observed,
    Offered,
    Planned,
    Progress,
    Released,
    Space,
    Store,
    Tick,
    TierSpec,
    Wanted,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import FailureKind

PAGE = 4096
CHUNK = 16
LAYOUT = Layout(16, CHUNK, (Group(GroupKind.FULL, (4096, 2048)),))
SPACE = Namespace(b"s" * 16, "tiny", LAYOUT, 1e-3)


def config(pages: int = 40, disk_objects: int = 30, **more: object) -> BrainConfig:
    """A brain with a small arena and a small disk."""
    tiers = (
        TierSpec("dram", pages * PAGE, PAGE, 0, 1e10, 0.0),
        TierSpec("disk", disk_objects * 12288, 4096, 4096, 1e9, 1e-4),
    )
    return BrainConfig(page_bytes=PAGE, tiers=tiers, queue_bytes=200_000, **more)  # type: ignore[arg-type]


@dataclass
class Job:
    """A command under way in the world."""

    command: Load | Store
    left: list[int]


@dataclass
class SmallWorld:
    """Runs random clients against one brain and keeps its own account of every byte.

    `content` says what each arena page holds, `disk` what each location holds; both are names of
    keys, so that any block read where another was written is noticed at once.
    """

    seed: int
    brain: Brain = field(default_factory=lambda: Brain(config()))
    faults: bool = True

    def __post_init__(self) -> None:
        """Draw which faults exist at all for this seed."""
        self.random = random.Random(self.seed)
        self.now_ns = 0
        self.log: list[tuple[Event, list[Command]]] = []
        self.content: dict[int, tuple[bytes, int]] = {}
        self.disk: dict[int, bytes] = {}
        self.jobs: dict[int, Job] = {}
        self.loads: dict[int, dict[str, object]] = {}
        self.fills: list[tuple[int, int, int]] = []
        self.owners: dict[int, int] = {}
        self.location = 0
        self.served = 0
        kinds = [*FailureKind, None, None]
        self.kinds = [k for k in kinds if self.random.random() < 0.5] or [None]
        self.fault_rate = self.random.choice([0.0, 0.05, 0.4]) if self.faults else 0.0
        prompts = [[self.random.randrange(50) for _ in range(160)] for _ in range(4)]
        for stem in list(prompts):
            cut = self.random.randrange(16, 160)
            prompts.append(stem[:cut] + [self.random.randrange(50) for _ in range(120)])
        self.prompts = prompts
        self.feed(Joined(0, 1, SPACE))
        self.feed(Joined(0, 2, SPACE))

    def feed(self, event: Event) -> list[Command]:
        """Hand an event to the brain, keep the log, act on the commands."""
        commands = self.brain.handle(event)
        self.log.append((event, commands))
        for command in commands:
            self._act(command)
        return commands

    def _act(self, command: Command) -> None:
        match command:
            case Load() | Store():
                self.jobs[command.job] = Job(command, list(range(len(command.items))))
                for item in command.items:
                    self._start(command, item.key, item.location, item.pages)
            case Drop(tier=1):
                for location in command.locations:
                    assert location in self.disk
                    del self.disk[location]
            case Ended():
                self.loads.pop(command.lease, None)
            case Progress():
                if command.lease in self.loads:
                    self.loads[command.lease]["ready"] = command.ready
                    self.loads[command.lease]["failed"] = command.failed
            case _:
                pass

    def _start(
        self, command: Load | Store, key: bytes, location: int, pages: tuple[int, ...]
    ) -> None:
        if isinstance(command, Load):
            assert self.disk[location] == key
        else:
            for place, page in enumerate(pages):
                assert self.content[page] == (key, place)

    def step(self) -> None:
        """One random thing happens."""
        self.now_ns += self.random.randrange(1, 50_000_000)
        actions: list[Callable[[], object]] = [
            self.request, self.request, self.finish_job, self.finish_job, self.finish_job,
            self.fill, self.fill, self.read, self.read, self.tick,
        ]  # fmt: skip
        if self.faults:
            actions += [self.rare]
        self.random.choice(actions)()

    def tick(self) -> None:
        """Time passes; the disk reports its room."""
        self.feed(Tick(self.now_ns))
        if self.random.random() < 0.2:
            self.feed(Space(self.now_ns, 1, self.random.choice([0, 50_000, 1 << 30])))
        tokens = self.random.randrange(1, 500)
        self.feed(Observed(self.now_ns, 1, SPACE.digest, tokens, tokens * 100.0, tokens * 1e-3))

    def rare(self) -> None:
        """A client dies, or the cache is cleared."""
        if self.random.random() < 0.2:
            self.feed(Cleared(self.now_ns))
        elif self.random.random() < 0.3:
            client = self.random.choice([1, 2])
            self.feed(Left(self.now_ns, client))
            self.fills = [f for f in self.fills if self.owners[f[0]] != client]
            self.feed(Joined(self.now_ns, client, SPACE))

    def request(self) -> None:
        """A request arrives: ask, want what was promised, and offer the rest."""
        client = self.random.choice([1, 2])
        prompt = self.random.choice(self.prompts)
        keys = chain_keys(SPACE.digest, prompt, CHUNK)
        local = self.random.choice([0, 0, 0, 16, 48])
        name = f"r{len(self.log)}"
        (planned,) = [
            c
            for c in self.feed(
                Asked(self.now_ns, client, name, SPACE.digest, keys, local, len(prompt))
            )
            if isinstance(c, Planned)
        ]
        self.brain.check()
        if planned.lease and self.random.random() < 0.9:
            self._want(client, planned, split_keys(keys))
        if self.random.random() < 0.8:
            self._offer(client, name, keys)

    def _want(self, client: int, planned: Planned, keys: list[bytes]) -> None:
        first = planned.first_chunk
        self.loads[planned.lease] = {"client": client, "ready": 0, "failed": False}
        self.owners[planned.lease] = client
        wanted = self.random.randint(1, planned.chunks)
        commands = self.feed(Wanted(self.now_ns, client, planned.lease, wanted))
        (granted,) = [c for c in commands if isinstance(c, Granted)]
        if planned.lease in self.loads:
            self.loads[planned.lease]["pages"] = granted.pages
            self.loads[planned.lease]["keys"] = keys[first : first + len(granted.chunks)]

    def _offer(self, client: int, name: str, keys: bytes) -> None:
        commands = self.feed(
            Offered(self.now_ns, client, name, SPACE.digest, ROOT, keys, len(keys))
        )
        (granted,) = [c for c in commands if isinstance(c, Granted)]
        each = 2
        for place, chunk in enumerate(granted.chunks):
            for i, page in enumerate(granted.pages[place * each : place * each + each]):
                self.content[page] = (split_keys(keys)[chunk], i)
        if granted.lease:
            self.owners[granted.lease] = client
            self.fills.append((granted.lease, client, len(granted.chunks)))

    def fill(self) -> None:
        """A client reports what it wrote."""
        if self.fills:
            lease, client, count = self.fills.pop(self.random.randrange(len(self.fills)))
            broken = self.random.random() < self.fault_rate
            good = self.random.randint(0, count) if broken else count
            self.feed(Filled(self.now_ns, client, lease, good))

    def finish_job(self) -> None:
        """One item of one job ends, well or badly."""
        if not self.jobs:
            return
        number = self.random.choice(list(self.jobs))
        job = self.jobs[number]
        item = job.left.pop(self.random.randrange(len(job.left)))
        if not job.left:
            del self.jobs[number]
        kind = self.random.choice(self.kinds) if self.random.random() < self.fault_rate else None
        if kind is not None:
            self.feed(Failed(self.now_ns, number, item, kind))
            return
        about = job.command.items[item]
        if isinstance(job.command, Load):
            for place, page in enumerate(about.pages):
                self.content[page] = (about.key, place)
            self.feed(Done(self.now_ns, number, item, elapsed_ns=1_000_000))
            return
        self.location += 1
        self.disk[self.location] = about.key
        self.feed(Done(self.now_ns, number, item, self.location, 12288, 1_000_000))

    def read(self) -> None:
        """A client copies what has arrived, then lets the lease go; every byte must be right."""
        if not self.loads:
            return
        lease = self.random.choice(list(self.loads))
        load = self.loads[lease]
        ready, pages, keys = load["ready"], load["pages"], load["keys"]
        assert isinstance(ready, int)
        assert isinstance(pages, tuple)
        assert isinstance(keys, list)
        for chunk in range(ready):
            for i, page in enumerate(pages[chunk * 2 : chunk * 2 + 2]):
                assert self.content[page] == (keys[chunk], i)
            self.served += 1
        if ready == len(keys) or load["failed"] or self.random.random() < 0.1:
            client = load["client"]
            assert isinstance(client, int)
            failed = ready < len(keys)
            self.feed(Released(self.now_ns, client, lease, 6144 * ready, 10_000, 20_000, failed))

    def settle(self) -> None:
        """Let everything under way end: jobs, fills, leases."""
        while self.jobs or self.fills or self.loads:
            self.now_ns += 1_000_000
            self.finish_job()
            self.fill()
            self.read()
            self.feed(Tick(self.now_ns))
        self.now_ns += 100_000_000_000
        self.feed(Tick(self.now_ns))
