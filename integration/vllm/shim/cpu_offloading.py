"""vLLM's tiered offloading without a GPU, for tests: the "GPU" is the CPU worker's KV memory.

vLLM refuses to offload from a CPU. The connector, host region, manager, tiers and copies' plans are its
own and unmodified; what is replaced is the check of the platform, the events and the copy itself.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu import spec as cpu_spec
from vllm.v1.kv_offload.tiering import spec as tiering_spec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

EMPTY = "test_empty_region"
"""Set in the `kv_transfer_params` of a request, it empties the region: what comes next is from the tiers below.

The request must be shorter than a chunk, and alone: rows that are being copied may not be taken away.
"""


class _Event:
    """An event of a device that has done everything at once."""

    def __init__(self, **_: Any) -> None: ...

    def record(self, _stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


class _Torch:
    """The module torch, with a device."""

    Event = _Event
    accelerator = SimpleNamespace(current_device_index=lambda: 0, synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _OnDevice(torch.Tensor):
    """Memory that says that it is a GPU's."""

    is_cuda = True


def _copy(src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor, **_: Any) -> None:
    for s, d, n in zip(src.tolist(), dst.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(d, s, n)


class CPUTieringSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec for vLLM's CPU build."""

    def get_worker(self, kv_caches: Any) -> Any:
        """Make the worker that copies."""
        if not self._worker:
            gpu_worker.ops = SimpleNamespace(swap_blocks_batch=_copy)
            for module in (gpu_worker, cpu_spec, tiering_spec):  # vLLM 0.31 asks for the device in its specs
                if hasattr(module, "torch"):
                    module.torch = _Torch()
            for cache in kv_caches.tensors:
                cache.tensor = cache.tensor.as_subclass(_OnDevice)
            self._worker = self.create_worker(kv_caches)
        return self._worker

    def get_manager(self) -> Any:
        """Make the manager, which empties its region for a request that says so."""
        made = self._manager is not None
        manager: Any = super().get_manager()
        if not made:
            _let_be_emptied(manager)
        return manager


def _let_be_emptied(manager: Any) -> None:
    """Have a manager empty its region for a request with EMPTY, as soon as nothing is copied."""
    met, step_ended, wanted = manager.on_new_request, manager.on_schedule_end, []

    def on_new_request(context: Any, **kwargs: Any) -> Any:
        if (context.kv_transfer_params or {}).get(EMPTY):
            wanted.append(True)
        return met(context, **kwargs)

    def on_schedule_end(context: Any) -> None:
        step_ended(context)
        storing = any(state.pending_primary_stores for state in manager._req_state.values())
        if wanted and not storing and not manager.has_pending_work():
            wanted.clear()
            manager.primary_tier.reset_cache()

    manager.on_new_request, manager.on_schedule_end = on_new_request, on_schedule_end
