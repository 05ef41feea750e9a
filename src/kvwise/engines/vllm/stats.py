"""Statistics in vLLM's own classes, so that they appear in its log line and on its `/metrics`.

It only carries numbers that `counts` has collected.
"""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvwise.engines.vllm.counts import COUNTERS, SEPARATOR


class KvwiseStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is Any where it is not installed
    """Counters since the last report; `data` maps `name/label` to a value."""

    def reset(self) -> None:
        """Start again from nothing."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KvwiseStats:
        """Add the counters of another rank or step."""
        for key, value in other.data.items():
            self.data[key] = self.data.get(key, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log line shows."""
        return {f"kvwise {key}": round(value, 3) for key, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data


class KvwisePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # as above
    """The same counters for Prometheus, one series for each engine and label."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """Register every counter; series appear when they count."""
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._families = {
            name: self._counter_cls(
                name=f"vllm:kvwise_{name}",
                documentation=text,
                labelnames=[*labelnames, label] if label else list(labelnames),
            )
            for name, (label, text) in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count what was reported; a counter this version does not know is left out."""
        engine = self.per_engine_labelvalues[engine_idx]
        for key, value in transfer_stats_data.items():
            name, _, label = key.partition(SEPARATOR)
            family = self._families.get(name)
            if family is not None and value > 0:
                values = [*engine, label] if COUNTERS[name][0] else engine
                family.labels(*values).inc(value)
