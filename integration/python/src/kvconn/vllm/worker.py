"""The connector's side in a vLLM worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from kvconn.client import FinishedLoad, SaveResult, WorkerClient
from kvconn.cuda import DeviceMemory
from kvconn.cuda.regions import Range
from kvconn.engine_memory import EngineMemoryError
from kvconn.identity.files import FileId
from kvconn.vllm import device, memory
from kvconn.vllm.later import SavesUnderWay
from kvconn.vllm.manifest import keeps_windows
from kvconn.vllm.metadata import Reported, StepMetadata
from kvconn.vllm.stats import Stats

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


class WorkerSide:
    """Hands the daemon a rank's KV memory, and loads and saves as the leader planned. For one thread."""

    def __init__(
        self, client: WorkerClient, kv_cache_config: KVCacheConfig, logger: logging.Logger, on_device: bool = False
    ) -> None:
        """With `on_device` the KV memory is a GPU's."""
        self._client = client
        self._config = kv_cache_config
        self._logger = logger
        self._memory: memory.SharedMemory | None = None
        self._begun: StepMetadata | None = None
        self._later = SavesUnderWay(client) if on_device else None
        """The saves, where they end after their step."""
        self._registered: Callable[[], None] = lambda: None
        self._taken_back = False
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
        self._registered = lambda: self.register(kv_caches)
        self._taken_back = False
        if self._later is None:
            self._register_host(kv_caches)
        else:
            self._register_device(kv_caches)

    def unregister(self, timeout: float) -> None:
        """Take the KV memory back, before the engine frees it.

        No copy begins any more when this returns, and the daemon's connection is closed. A copy that goes on after
        the timeout cannot be stopped from here: the daemon ends it, or its copier, once it sees that.
        """
        self._taken_back = True
        if not self._client.unregister(timeout):
            self._logger.error(
                "kvconn: kvconnd still copies from or to the KV memory after %g s. Its connection is closed; the memory"
                " may be in use until the copy has ended, or kvconnd is restarted",
                timeout,
            )

    def restore(self) -> None:
        """Register the memory of the last registration again, if it was taken back."""
        if self._taken_back:
            self._registered()

    def _register_device(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        storages = device.storages(kv_caches)
        layouts = device.group_layouts(self._config, kv_caches, storages)
        try:
            self._client.register_memory(self._device_memory(storages, kv_caches), layouts)
        except EngineMemoryError as err:
            self._logger.warning("kvconn: KV is neither loaded nor saved: %s", err)

    def _device_memory(self, storages: Sequence[Range], kv_caches: Mapping[str, torch.Tensor]) -> DeviceMemory:
        on = next(iter(kv_caches.values())).device
        return DeviceMemory([storages], on.index or 0, lambda: torch.cuda.current_stream(on).cuda_stream)

    def _register_host(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
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
        if self._later is not None:
            self._later.overwritten(metadata.given)
            self._later.name(metadata.saves)
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
        if self._later is not None:
            if metadata.saves:
                self._later.start(metadata.number, metadata.payload, metadata.saves)
            return
        self._note_saved(metadata.number, self._client.save(metadata.payload))

    def _note_saved(self, number: int, result: SaveResult) -> None:
        self.stats.count_all("saved_blocks", result._asdict())
        if number:
            self._reported.saves[number] = result

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

    def ended_saves(self, finished: Iterable[str]) -> set[str]:
        """Return the requests that have ended, these among them, and that no save holds any more, each once.

        To be called after ended_loads.
        """
        if self._later is None:
            return set()
        for number, stored in self._later.stored():
            self._note_saved(number, SaveResult(stored.taken, stored.dropped, stored.present))
        return self._later.finished(finished)

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
