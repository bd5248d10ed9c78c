"""vLLM's own memory allocator, the binary of its wheel, as vLLM's Python uses it for sleep mode."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from pathlib import Path

import torch


class Pool:
    """A pool of memory that can be given back and taken again at the same addresses."""

    def __init__(self, folder: str) -> None:
        (library,) = Path(folder, "vllm").glob("cumem_allocator*.so")
        sys.path.insert(0, str(library.parent))
        torch.cuda.init()
        import cumem_allocator

        self._binary = cumem_allocator
        self._handles: dict[int, tuple[int, int, int, int]] = {}
        self._taken, self._given = self._take, self._give  # the binary keeps no reference
        cumem_allocator.init_module(self._taken, self._given)
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "my_malloc", "my_free")
        self._pool = torch.cuda.memory.MemPool(self._allocator._allocator)
        self._stack = ExitStack()

    def __enter__(self) -> Pool:
        self._stack.enter_context(torch.cuda.memory.use_mem_pool(self._pool))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sleep(self) -> None:
        """Give the memory back and keep its addresses."""
        torch.cuda.synchronize()
        for handle in self._handles.values():
            self._binary.python_unmap_and_release(*handle)

    def wake(self) -> None:
        """Take other memory at the same addresses."""
        for handle in self._handles.values():
            self._binary.python_create_and_map(*handle)

    def close(self) -> None:
        """End the pool before the allocator that it calls. Its tensors have to be gone."""
        del self._pool
        gc.collect()

    def _take(self, handle: tuple[int, int, int, int]) -> None:
        self._handles[handle[2]] = handle

    def _give(self, address: int) -> tuple[int, int, int, int]:
        return self._handles.pop(address)
