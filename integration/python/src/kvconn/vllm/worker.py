"""The connector's side in a vLLM worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kvconn.client import FinishedLoad, WorkerClient
from kvconn.identity.files import FileId
from kvconn.vllm import memory
from kvconn.vllm.manifest import keeps_windows
from kvconn.vllm.metadata import Reported, StepMetadata
from kvconn.vllm.stats import Stats

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig


class WorkerSide:
    """Hands the daemon a rank's KV memory, and loads and saves as the leader planned. For one thread."""

    def __init__(self, client: WorkerClient, kv_cache_config: KVCacheConfig, logger: logging.Logger) -> None:
        self._client = client
        self._config = kv_cache_config
        self._logger = logger
        self._memory: memory.SharedMemory | None = None
        self._begun: StepMetadata | None = None
        # Elsewhere vLLM learns which blocks failed, and keeps those before them.
        self._by_request = keeps_windows(kv_cache_config)
        self._invalid: set[int] = set()
        self._touched = False
        self.stats = Stats()
        self._reported = Reported()

    def allocation_context(self) -> AbstractContextManager[Any]:
        """Return the context in which the KV memory is allocated where the daemon can map it."""

        def allocated(shared: memory.SharedMemory) -> None:
            self._memory = shared

        return memory.AllocationMode(allocated)

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Register the KV memory. Raises LayoutError where it is not as the engine says."""
        storage = memory.backing_storage(kv_caches)
        layouts = memory.group_layouts(self._config, kv_caches)
        if self._memory is not None and self._memory.holds(storage):
            fd = self._memory.fd
        else:
            self._logger.info("kvconn: moving %d bytes of KV memory into shared memory", storage.nbytes())
            fd = memory.move_to_shared_memory(storage)
        self._client.register([fd], layouts)

    def begin(self, metadata: StepMetadata) -> None:
        """Start a step's loads, once, however often it is called for the step."""
        if self._begun is metadata:
            return
        self._begun = metadata
        self._client.load(b"", metadata.lost)
        self._client.load(metadata.payload, metadata.loads)

    def save(self, metadata: StepMetadata) -> None:
        """Copy the blocks that the step filled out of the KV memory."""
        self._begun = None
        touched = next((file.path for file in metadata.untouched if not _is_untouched(file)), None)
        if touched is None:
            self._saved(metadata)
        elif not self._touched:
            self._touched = True
            self._logger.warning("kvconn: a step is not saved: %s is not the file that the scheduler saw", touched)

    def _saved(self, metadata: StepMetadata) -> None:
        if not metadata.payload:
            return
        result = self._client.save(metadata.payload)
        self.stats.count_all("saved_blocks", result._asdict())
        if metadata.number:
            self._reported.saves[metadata.number] = result

    def ended_loads(self) -> tuple[set[str], set[str]]:
        """Return the requests whose loads have ended, each once, and those of them that have failed as a whole.

        Other failures are left to take_invalid.
        """
        done: set[str] = set()
        failed: set[str] = set()
        if self._client.busy:
            ended = self._client.poll()
            for load in ended:
                done.add(load.request)
                if not load.failed_blocks:
                    continue
                if self._by_request:
                    failed.add(load.request)
                else:
                    self._invalid.update(load.failed_blocks)
            self._note(ended)
        return done, failed

    def _note(self, ended: Sequence[FinishedLoad]) -> None:
        """Note what loads brought. No load waits for a figure that fails."""
        try:
            for load in ended:
                self._brought(load)
        except Exception:
            self._logger.exception("kvconn: what loads brought is not counted")

    def _brought(self, load: FinishedLoad) -> None:
        self.stats.load_took(load.seconds)
        self.stats.count("load_failed_blocks", len(load.failed_blocks))
        for tier, got in load.tiers.items():
            self.stats.count("loaded_bytes", got.bytes, tier)
        if load.tiers:
            self._reported.loads[load.request] = {tier: got.blocks for tier, got in load.tiers.items()}

    def take_reported(self) -> Reported | None:
        """Return what the scheduler's side is to know of the step beside how loads ended."""
        if not self._reported:
            return None
        reported, self._reported = self._reported, Reported()
        return reported

    def take_invalid(self) -> set[int]:
        """Return the blocks whose loads failed among those that ended_loads returned."""
        invalid, self._invalid = self._invalid, set()
        return invalid


def _is_untouched(file: FileId) -> bool:
    try:
        return FileId.of(file.path) == file
    except OSError:
        return False
