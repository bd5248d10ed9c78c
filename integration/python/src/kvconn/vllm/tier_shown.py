"""What vLLM shows of the tier: figures on its own metrics, and KV events of what the tier keeps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from vllm.v1.kv_offload.base import Medium, OffloadingEvent

from kvconn.client import FinishedLoad, StoredPut
from kvconn.vllm.believed import Believed
from kvconn.vllm.harmless import harmless
from kvconn.vllm.stats import COUNTERS, LOAD_SECONDS, SECONDS

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingHistogramMetadata
except ImportError:  # a release that counts in another way shows nothing of it
    OffloadingConnectorStats = None

_COUNTED = ("loaded_bytes", "load_failed_blocks", "saved_blocks")
"""The figures of the direct connector that a tier knows too. A tier does not see what is used of a load."""
_MAX_TIMES = 1024
"""Times of loads that are kept for vLLM to take. It takes them in each step, unless it shows no statistics."""
_FIELDS = {f.name for f in fields(OffloadingEvent)}

MAX_ANNOUNCED, MAX_DESCRIBED = 1 << 16, 1 << 13
"""Chunks that followers believe in at one time; where events describe themselves vLLM keeps the tokens of each."""


def definitions() -> dict[str, Any]:
    """Return what vLLM needs to make metrics of the figures."""
    if OffloadingConnectorStats is None:
        return {}
    known: dict[str, Any] = {
        _name(key): OffloadingCounterMetadata(documentation=text, labelnames=(label,) if label else ())
        for key, (label, text) in COUNTERS.items()
        if key in _COUNTED
    }
    known[_name(LOAD_SECONDS)] = OffloadingHistogramMetadata(
        documentation="Time of one load, in seconds, as the daemon measures it.", buckets=SECONDS
    )
    return known


def _name(key: str) -> str:
    return f"vllm:kvconn_{key}"


class TierShown:
    """Counts what ends, and announces chunks that were saved or found, as `Announcer` does. For one thread.

    It takes back what a look-up does not find, what none has found for a time, what is too much, and
    everything when the daemon is gone.
    """

    def __init__(
        self,
        logger: logging.Logger,
        follows: Any = None,
        locality: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`follows` is vLLM's configuration of KV events, None where there are none."""
        self.enabled = True
        self.shown = "figures and KV events of the tier"
        self.logger = logger
        self.announces = bool(getattr(follows, "enable_kv_cache_events", False))
        most = MAX_DESCRIBED if getattr(follows, "self_describing_kv_events", False) else MAX_ANNOUNCED
        self._locality = locality
        self._session = 0
        self._believed = Believed[bytes](most, clock)
        self._events: list[Any] = []
        self._stats: Any = None
        self._times = 0

    @harmless()
    def loaded(self, load: FinishedLoad) -> None:
        """Count a load that has ended."""
        if (stats := self._counting()) is None:
            return
        for tier, brought in load.tiers.items():
            stats.increase_counter(_name("loaded_bytes"), brought.bytes, (tier,))
        if load.failed_blocks:
            stats.increase_counter(_name("load_failed_blocks"), len(load.failed_blocks))
        if load.seconds > 0 and self._times < _MAX_TIMES:
            self._times += 1
            stats.observe_histogram(_name(LOAD_SECONDS), load.seconds)

    @harmless()
    def saved(self, put: StoredPut, keys: Sequence[bytes]) -> None:
        """Count a save that has ended, and announce its chunks if all are kept."""
        if (stats := self._counting()) is not None:
            for result in ("taken", "dropped", "present"):
                if number := getattr(put, result):
                    stats.increase_counter(_name("saved_blocks"), number, (result,))
        if put.dropped == 0 and put.taken + put.present >= len(keys):
            self._announce(keys)

    @harmless()
    def looked_up(self, key: bytes, offered: bool) -> None:
        """Note that the daemon offers a chunk, or does not."""
        if offered:
            self._announce([key])
        else:
            self._remove([key])

    @harmless()
    def connected(self, session: int) -> None:
        """Note over which connection the daemon is reached. With another one nothing is certain any more."""
        if session != self._session:
            self._session = session
            self._remove(self._believed.everything())

    @harmless()
    def withdraw(self) -> None:
        """Take back everything: the engine loads nothing any more."""
        self._remove(self._believed.everything())

    @harmless()
    def take_stats(self) -> Any:
        """Return what was counted since the last call, None where there is nothing."""
        taken, self._stats, self._times = self._stats, None, 0
        return taken

    @harmless(())
    def take_events(self) -> Iterable[Any]:
        """Return the events since the last call."""
        self._remove(self._believed.expired())
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def _counting(self) -> Any:
        if self._stats is None and OffloadingConnectorStats is not None:
            self._stats = OffloadingConnectorStats()
        return self._stats

    def _announce(self, keys: Sequence[bytes]) -> None:
        if not self.announces:
            return
        if new := self._believed.believe(keys):
            self._events.append(self._event(new, removed=False))
        self._remove(self._believed.too_many())

    def _remove(self, keys: Sequence[bytes]) -> None:
        if gone := self._believed.forget(keys):
            self._events.append(self._event(gone, removed=True))

    def _event(self, keys: list[bytes], removed: bool) -> Any:
        """Make an event with those of the fields that this version of vLLM has."""
        described = {
            "keys": keys,
            "medium": Medium.STORAGE,
            "removed": removed,
            "locality": self._locality,
            "ownership": "kvconn",
            "removal_expected": not removed,
        }
        return OffloadingEvent(**{name: value for name, value in described.items() if name in _FIELDS})
