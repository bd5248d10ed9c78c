"""KV memory that the daemon can map: where it is allocated, and how blocks lie in it."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from kvconn.client import GroupLayout, Run
from kvconn.memfd import sealed_memfd
from kvconn.vllm import populate
from kvconn.vllm.layout import LayoutError
from kvconn.vllm.manifest import layer_spec

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


class SharedMemory:
    """Zeroed memory with a descriptor, mapped into this process as a tensor of int8.

    Memory and descriptor live as long as the tensor's storage, or this object.
    """

    def __init__(self, size: int) -> None:
        self.fd = sealed_memfd("kvconn-kv", size)
        try:
            self._map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        with contextlib.suppress(OSError):  # an optimisation: not every kernel has it for shared memory
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._map, dtype=torch.int8)
        self.populating = populate.in_background(self.tensor)

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a tensor's storage is this memory."""
        return storage.data_ptr() == self.tensor.data_ptr() and storage.nbytes() == self.tensor.nbytes


class AllocationMode(TorchFunctionMode):
    """While active, the engine's allocation of its KV memory goes to shared memory.

    vLLM allocates all of it by one `torch.zeros(size, dtype=int8)`; every other call passes.
    """

    def __init__(self, allocated: Callable[[SharedMemory], None]) -> None:
        super().__init__()
        self._allocated = allocated

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer the one allocation."""
        kwargs = kwargs or {}
        size = _kv_allocation_size(func, args, kwargs)
        tensor = None if size is None else self._allocate(size)
        return func(*args, **kwargs) if tensor is None else tensor

    def _allocate(self, size: int) -> torch.Tensor | None:
        """Return memory of that size in bytes, None where the engine is to allocate it itself."""
        try:
            memory = SharedMemory(size)
        except (OSError, ValueError):  # register_kv_caches finds other memory and moves it
            return None
        self._allocated(memory)
        return memory.tensor


def _kv_allocation_size(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    device = torch.device(kwargs.get("device") or "cpu")
    if func is not torch.zeros or kwargs.get("dtype") is not torch.int8 or device.type != "cpu":
        return None
    if len(args) == 1 and isinstance(args[0], int) and args[0] > 0 and set(kwargs) <= {"dtype", "device"}:
        return args[0]
    return None


def backing_storage(kv_caches: Mapping[str, torch.Tensor]) -> torch.UntypedStorage:
    """Return the one storage that all layers' tensors are views of."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in kv_caches.values()}
    if len(storages) != 1:
        raise LayoutError(f"KV memory is {len(storages)} allocations, want one")
    (storage,) = storages.values()
    if storage.device.type != "cpu":
        raise LayoutError(f"KV memory is on {storage.device}, this connector needs it in host memory")
    return storage


def move_to_shared_memory(storage: torch.UntypedStorage) -> int:
    """Move a storage into shared memory in place, with all views of it, and return the descriptor.

    The way out where the allocation could not be placed; the memory exists twice for a moment.
    """
    fd, _ = storage._share_fd_cpu_()  # the storage's own, closed with it
    return os.dup(fd)


def group_layouts(kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, torch.Tensor]) -> list[GroupLayout]:
    """Return how the blocks of each KV cache group lie in the memory.

    By the engine's configuration, checked against its tensors. Groups alias the same bytes: a block
    id belongs to one of them at a time, and says where its bytes are only together with the group.
    """
    layouts: list[GroupLayout] = []
    for group in kv_cache_config.kv_cache_groups:
        runs: list[Run] = []
        for placed in kv_cache_config.kv_cache_tensors:
            runs += _runs_in(placed, group, kv_caches, kv_cache_config.num_blocks)
        layouts.append(GroupLayout(kv_cache_config.num_blocks if runs else 0, runs))
    if not any(layout.runs for layout in layouts):
        raise LayoutError("the model has no KV cache")
    return layouts


def _runs_in(placed: Any, group: Any, kv_caches: Mapping[str, torch.Tensor], blocks: int) -> list[Run]:
    """Return the runs of a group's layers in one placement, neighbours in one."""
    if getattr(placed, "host_resident", False):
        raise LayoutError("host-resident KV tensors are not known to this connector")
    members = set(group.layer_names)
    runs: list[Run] = []
    following = -1  # index of the layer that would continue the last run
    for i, layer in enumerate(placed.layers):
        if layer not in members:
            continue
        page = int(layer_spec(group.kv_cache_spec, layer).page_size_bytes)
        offset = placed.offset + i * placed.layer_stride
        _check_layer(kv_caches[layer], layer, offset, placed.block_stride, page, blocks)
        if i == following and runs[-1].size == page:
            runs[-1] = runs[-1]._replace(layers=runs[-1].layers + 1)
        else:
            runs.append(Run(0, offset, 1, placed.layer_stride, placed.block_stride, page))
        following = i + 1
    return runs


def _check_layer(t: torch.Tensor, layer: str, offset: int, block_stride: int, page: int, blocks: int) -> None:
    """Check that block b of a layer is the `page` bytes at `offset + b * block_stride`."""
    item = t.element_size()
    if t.data_ptr() - t.untyped_storage().data_ptr() != offset:
        raise LayoutError(f"{layer} starts at another byte than {offset}")
    # An attention kernel with smaller blocks sees each block as several.
    split, rest = divmod(t.shape[0], blocks)
    if rest or split < 1 or split * t.stride(0) * item != block_stride:
        raise LayoutError(
            f"{layer}: {tuple(t.shape)} with strides {t.stride()} is not {blocks} of {block_stride} bytes"
        )
    span = sum((n - 1) * s for n, s in zip(t.shape[1:], t.stride()[1:], strict=True)) + 1
    elements = t[0].numel()
    if split * elements * item != page or span != elements or (split > 1 and t.stride(0) != elements):
        raise LayoutError(f"{layer}: a block is no single run of {page} bytes")
