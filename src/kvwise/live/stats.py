"""Stats: what the store counted, as Prometheus metrics. It counts nothing that the brain counts.

The brain's own counters are read at each scrape, so a metric can never disagree with `status`, and
since they only grow no counter can go back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvwise.config.values import split_address
from kvwise.errors import ConfigError
from kvwise.units import NS_PER_S

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "asked_tokens": ("Prompt tokens of requests asked about, each request once.", ()),
    "decisions": ("Requests by what was decided and why.", ("choice", "why")),
    "storing_tokens": ("Tokens that could not be loaded yet: just being stored.", ()),
    "hit_tokens": ("Tokens loaded instead of computed.", ("tier",)),
    "seconds_saved": ("Seconds that loading saved against computing.", ("tier",)),
    "seconds_lost": ("Seconds that loading cost over computing, and failed loads.", ("tier",)),
    "read_bytes": ("Payload bytes read; from dram: copied to a device.", ("tier",)),
    "written_bytes": ("Bytes written, padding and headers included.", ("tier",)),
    "refused": ("Objects that were not stored, by why.", ("tier", "why")),
    "failures": ("Objects that could not be read or written, by kind.", ("tier", "kind")),
    "dropped": ("Objects that left a tier, by why.", ("tier", "why")),
    "leases_expired": ("Load leases that nobody released in time.", ()),
    "hints_refused": ("Hints to keep blocks that were not followed: too many are kept.", ()),
}
"""Counters of the brain's snapshot: what they mean, and the labels that their keys hold."""

_TIER_LEVELS = {
    "used_bytes": "Bytes that the tier holds, writes under way included.",
    "capacity_bytes": "Bytes that the tier may hold.",
    "objects": "Objects that can be read from the tier.",
    "queued_objects": "Objects that wait to be written to the tier.",
    "queued_bytes": "Bytes that wait to be written to the tier.",
}

_ENDURANCE = {
    "written_per_day_bytes": "Bytes written to the tier per day, as the last day went.",
    "budget_per_day_bytes": "Bytes that may be written to the tier in a day; 0 is no limit.",
    "budget_left_bytes": "Bytes that may be written to the tier at once.",
    "price_s_per_byte": "Seconds that a byte must save to be written to the tier.",
}
"""Levels of each tier that wears, by their names in the snapshot."""


class Latencies:
    """How long things took, as histograms in a registry of their own."""

    def __init__(self, tier_names: tuple[str, ...]) -> None:
        """Nothing measured yet."""
        self.registry = CollectorRegistry()
        self._loads = Histogram(
            "kvwise_load_seconds",
            "Time from the start of a load until its last byte was on the device.",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        reads = Histogram(
            "kvwise_read_seconds",
            "Time to read one object into the arena, its share of a batch.",
            ("tier",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._reads = [reads.labels(name) for name in tier_names]

    def load(self, waited_ns: int) -> None:
        """A client waited so long for a load."""
        self._loads.observe(max(0, waited_ns) / NS_PER_S)

    def read(self, tier: int, elapsed_ns: int) -> None:
        """An object was read from a tier."""
        self._reads[tier].observe(max(0, elapsed_ns) / NS_PER_S)


class SnapshotCollector(Collector):
    """Turns a snapshot into metrics at the moment of a scrape."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]]) -> None:
        """`snapshot` gives what `Node.status` describes."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Every metric but the histograms."""
        snapshot = self._snapshot()
        yield from _counters(snapshot["counters"])
        yield from _levels(snapshot["levels"])
        yield from _endurance(snapshot["endurance"], snapshot["drive_life_years"])
        yield from _costs(snapshot["costs"])
        yield from _coding(snapshot["coding"])
        yield from _estimates(snapshot["estimates"])
        down = GaugeMetricFamily(
            "kvwise_tier_down", "Places of the tier given up until a restart.", labels=("tier",)
        )
        for tier, why in snapshot["down"].items():
            down.add_metric((tier,), len(why))
        yield down
        resident = snapshot["arena"]["resident_bytes"]
        yield GaugeMetricFamily("kvwise_arena_resident_bytes", "Memory in use.", value=resident)


def _counters(counters: Mapping[str, Any]) -> Iterator[Metric]:
    """The counters, with the parts of their keys as labels."""
    for name, (text, labels) in _COUNTERS.items():
        family = CounterMetricFamily(f"kvwise_{name}", text, labels=labels)
        values = counters[name] if labels else {"": counters[name]}
        for key, value in values.items():
            family.add_metric(key.split("|") if labels else (), value)
        yield family


def _levels(levels: Mapping[str, Any]) -> Iterator[Metric]:
    """The levels as gauges."""
    for name, text in (
        ("blocks", "Objects known, on whatever tier."),
        ("index_bytes", "Memory of the index."),
        ("clients", "Engines attached."),
        ("pins", "Holds on objects by leases and jobs; 0 when nothing is under way."),
        ("pages_free", "Arena pages that hold nothing."),
        ("hint_pinned_bytes", "Bytes of the arena that are kept because callers asked for it."),
    ):
        yield GaugeMetricFamily(f"kvwise_{name}", text, value=levels[name])
    for name, text in (("leases", "Leases under way."), ("jobs", "Jobs under way.")):
        gauge = GaugeMetricFamily(f"kvwise_{name}", text, labels=("kind",))
        for kind, value in levels[name].items():
            gauge.add_metric((kind,), value)
        yield gauge
    for name, text in _TIER_LEVELS.items():
        gauge = GaugeMetricFamily(f"kvwise_tier_{name}", text, labels=("tier",))
        for tier, values in levels["tiers"].items():
            gauge.add_metric((tier,), values[name])
        yield gauge


def _endurance(tiers: Mapping[str, Any], lives: Mapping[str, float]) -> Iterator[Metric]:
    """Budgets of the tiers that wear, and how long they last."""
    written = CounterMetricFamily(
        "kvwise_lifetime_written_bytes",
        "Bytes written in all lives of the store.",
        labels=("tier",),
    )
    for tier, values in tiers.items():
        written.add_metric((tier,), values["written_bytes"])
    yield written
    for name, text in _ENDURANCE.items():
        gauge = GaugeMetricFamily(f"kvwise_{name}", text, labels=("tier",))
        for tier, values in tiers.items():
            gauge.add_metric((tier,), values[name])
        yield gauge
    life = GaugeMetricFamily(
        "kvwise_drive_life_years",
        "Years that the drives last at the pace of the last day, where disk.dwpd is set.",
        labels=("tier",),
    )
    for tier, years in lives.items():
        life.add_metric((tier,), years)
    yield life


def _costs(costs: Mapping[str, Any]) -> Iterator[Metric]:
    """What the brain believes about speed."""
    rate = GaugeMetricFamily("kvwise_read_rate_bytes", "Read rate, bytes/s.", labels=("tier",))
    for tier, value in costs["read_bytes_per_s"].items():
        rate.add_metric((tier,), value)
    yield rate
    token = GaugeMetricFamily(
        "kvwise_token_seconds", "Time to compute one token.", labels=("namespace",)
    )
    for label, values in costs["namespaces"].items():
        token.add_metric((label,), values["token_s"])
    yield token


def _coding(coding: Mapping[str, Any]) -> Iterator[Metric]:
    """How objects are written to the tiers, why, and the rates that this rests on."""
    used = GaugeMetricFamily(
        "kvwise_codec_used",
        "1 for the codec that objects are written with, and why.",
        labels=("tier", "namespace", "codec", "why"),
    )
    gain = GaugeMetricFamily(
        "kvwise_codec_gain",
        "Part of the time of a load that the codec saves; below 0 it costs.",
        labels=("tier", "namespace"),
    )
    share = GaugeMetricFamily(
        "kvwise_codec_share",
        "What a codec leaves of an object.",
        labels=("tier", "namespace", "codec"),
    )
    for tier, spaces in coding["choices"].items():
        for label, one in spaces.items():
            used.add_metric((tier, label, one["coding"], one["why"]), 1)
            gain.add_metric((tier, label), one["gain"])
            for codec, value in one["shares"].items():
                share.add_metric((tier, label, codec), value)
    yield from (used, gain, share)
    rate = GaugeMetricFamily(
        "kvwise_codec_rate_bytes", "Payload bytes/s of one thread.", labels=("work", "codec")
    )
    link = GaugeMetricFamily(
        "kvwise_link_rate_bytes", "Bytes/s of a tier's medium.", labels=("work", "tier")
    )
    for work, family in (("encode", rate), ("decode", rate), ("read", link), ("write", link)):
        for name, value in coding[f"{work}_bytes_per_s"].items():
            family.add_metric((work, name), value)
    yield from (rate, link)
    switches = CounterMetricFamily(
        "kvwise_codec_switches", "Times a tier began to use a codec.", labels=("tier", "codec")
    )
    for key, count in coding["switches"].items():
        switches.add_metric(key.split("|"), count)
    yield switches


def _estimates(estimates: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    """How good the brain's estimates of loads were."""
    for name, text in (
        ("error", "Mean of |estimated - actual| / actual over loads that ended well."),
        ("bias", "Mean of (estimated - actual) / actual; above 0 loads were faster."),
    ):
        gauge = GaugeMetricFamily(f"kvwise_load_estimate_{name}", text, labels=("tier",))
        for tier, values in estimates.items():
            gauge.add_metric((tier,), values[name])
        yield gauge


class MetricsServer:
    """Answers scrapes over HTTP. Read only; who can reach the address can read it."""

    def __init__(
        self, address: str, latencies: Latencies, snapshot: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Listen on `host:port`.

        Raises:
            ConfigError: the address cannot be used.
        """
        host, port = split_address(address)
        latencies.registry.register(SnapshotCollector(snapshot))
        try:
            self._server, self._thread = start_http_server(port, host, latencies.registry)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise ConfigError(
                f"serve.metrics = {address!r} cannot be used: {error.strerror}; hint: "
                + ("choose another port, or leave it empty" if taken else "write host:port")
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
