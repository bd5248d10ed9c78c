"""The connector's part of vLLM's own metrics (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

COUNTERS: dict[str, tuple[str, str]] = {
    "loaded_tokens": ("tier", "Prompt tokens whose KV was loaded and used, by the tier that it came from."),
    "loaded_bytes": ("tier", "Bytes that loads brought, of all ranks, by the tier that they came from."),
    "load_failed_blocks": ("", "Blocks of loads that failed, of all ranks: the engine computes them again."),
    "refused_tokens": ("", "Prompt tokens that are stored but were not offered: loading takes longer than computing."),
    "saved_blocks": ("result", "Blocks to save, of all ranks: taken, dropped for want of room, or present already."),
}
"""The counters by the keys of `Stats.data`: the label beside vLLM's own, if any, and what is counted."""
LOAD_SECONDS = "load_seconds"


class Stats(KVConnectorStats):
    """What happened since the last report. Sent between processes: `data` holds numbers, lists and maps alone.

    What did not happen has no entry, so that a step without news costs nothing.
    """

    def count(self, key: str, number: int, label: str | None = None) -> None:
        """Add to a counter, if there is anything to add."""
        if number <= 0:
            return
        if label is not None:
            by_label = self.data.setdefault(key, {})
            by_label[label] = by_label.get(label, 0) + number
        else:
            self.data[key] = self.data.get(key, 0) + number

    def count_all(self, key: str, numbers: Mapping[str, int]) -> None:
        """Add to a counter by its labels."""
        for label, number in numbers.items():
            self.count(key, number, label)

    def load_took(self, seconds: float) -> None:
        """Note the time of one load of one rank."""
        if seconds > 0:
            self.data.setdefault(LOAD_SECONDS, []).append(seconds)

    def take(self) -> Stats | None:
        """Return what there is and begin again, None where there is nothing."""
        if not self.data:
            return None
        taken, self.data = Stats(data=self.data), {}
        return taken

    def reset(self) -> None:
        """Forget all."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add what another rank, or another step, reports."""
        for key, value in other.data.items():
            if isinstance(value, dict):
                self.count_all(key, value)
            elif isinstance(value, list):
                self.data.setdefault(key, []).extend(value)
            else:
                self.count(key, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM logs of an interval."""
        out: dict[str, int | float] = {}
        for key, value in self.data.items():
            if isinstance(value, dict):
                out |= {f"{key}_{label}": number for label, number in value.items()}
            elif isinstance(value, list):
                out |= {"loads": len(value), "load_ms_mean": round(fmean(value) * 1000, 2)}
            else:
                out[key] = value
        return out

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """Stats in Prometheus' form, in vLLM's API server. The names begin with `vllm:kvconn_`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            key: self._counter_cls(
                name=f"vllm:kvconn_{key}", documentation=text, labelnames=labelnames + ([label] if label else [])
            )
            for key, (label, text) in COUNTERS.items()
        }
        seconds = self._histogram_cls(
            name=f"vllm:kvconn_{LOAD_SECONDS}",
            documentation="Time of one load of one rank, in seconds, as the daemon measures it.",
            buckets=list(SECONDS),
            labelnames=labelnames,
        )
        self._seconds = {engine: seconds.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what an engine reports. What this version does not know is left out."""
        own = self.per_engine_labelvalues[engine_idx]
        for key, (label, _) in COUNTERS.items():
            value = transfer_stats_data.get(key)
            if not value:
                continue
            if label:
                for name, number in value.items():
                    self._counters[key].labels(*own, name).inc(number)
            else:
                self._counters[key].labels(*own).inc(value)
        for seconds in transfer_stats_data.get(LOAD_SECONDS, ()):
            self._seconds[engine_idx].observe(seconds)
