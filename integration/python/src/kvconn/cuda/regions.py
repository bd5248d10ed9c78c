"""Which allocations of CUDA a tensor's memory lies in, and how another process gets them.

Memory of cuMemAlloc, torch's caching allocator, has a handle of 64 bytes. Memory of cuMemCreate, torch's expandable
segments and vLLM's cumem, has descriptors, one for each allocation, and one tensor may lie in thousands of them.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvconn.cuda.driver import (
    HANDLE_FABRIC,
    HANDLE_POSIX,
    INVALID_HANDLE,
    INVALID_VALUE,
    IPC_HANDLE_BYTES,
    MEMORY_TYPE_DEVICE,
    NOT_FOUND,
    NOT_SUPPORTED,
    POINTER_DEVICE_ORDINAL,
    POINTER_IPC_CAPABLE,
    POINTER_IS_MANAGED,
    POINTER_MEMORY_TYPE,
    POINTER_MEMPOOL,
    AllocationProperties,
    Driver,
    DriverError,
)
from kvconn.engine_memory import EngineMemoryError

MAX_PARTS = 8192
"""Allocations of a region, and exports of a registration. The daemon's limits, too."""


class NotShareable(EngineMemoryError):
    """CUDA cannot share the memory with another process. The text says why, and the remedy."""


class Range(NamedTuple):
    """Bytes of device memory, by the engine's address."""

    address: int
    size: int


@dataclass(frozen=True)
class Part:
    """An allocation that begins at `base`, and the bytes of a region that lie in it.

    `handle` is that of memory of cuMemAlloc, None for memory of cuMemCreate, which is exported.
    """

    base: int
    size: int
    offset: int
    allocation_size: int
    handle: bytes | None

    def described(self, number: int) -> dict[str, Any]:
        """Return what the daemon is told of it; `number` is that of its descriptor."""
        told: dict[str, Any] = {"bytes": self.size, "offset": self.offset, "allocation_bytes": self.allocation_size}
        if self.handle is None:
            told["export"] = number
        else:
            told["handle"] = base64.b64encode(self.handle).decode()
        return told


def find(driver: Driver, region: Sequence[Range], device: int) -> list[Part]:
    """Return the allocations of a device that a region's ranges lie in, in order. Its context must be current.

    Raises NotShareable or DriverError.
    """
    parts: list[Part] = []
    for first, size in region:
        if size <= 0:
            raise EngineMemoryError(f"KV memory of {size} bytes")
        at, end = first, first + size
        while at < end:
            parts.append(_part(driver, at, end, device))
            at += parts[-1].size
            if len(parts) > MAX_PARTS:
                raise too_many()
    if len({part.handle is None for part in parts}) != 1:
        raise NotShareable("the KV memory is of cuMemAlloc and of cuMemCreate: have one allocator for it")
    return parts


def too_many() -> NotShareable:
    """Return the error for memory in too many allocations."""
    return NotShareable(
        f"the KV memory lies in more than {MAX_PARTS} allocations: use larger ones"
        " (without expandable_segments in PYTORCH_CUDA_ALLOC_CONF each tensor is one)"
    )


def export(driver: Driver, part: Part) -> int:
    """Return a descriptor of memory of cuMemCreate, which the caller closes. The context must be current."""
    with _retained(driver, part.base) as allocation:
        if allocation is None:
            raise NotShareable(f"at {part.base:#x} there is other memory than before")
        fd = ctypes.c_int(-1)
        driver.call("cuMemExportToShareableHandle", ctypes.byref(fd), allocation, HANDLE_POSIX, 0)
        return fd.value


def _part(driver: Driver, at: int, end: int, device: int) -> Part:
    """Return the allocation at an address, and what lies in it up to an end."""
    base, size, ordinal = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int(-1)
    try:
        driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), at)
        driver.call("cuPointerGetAttribute", ctypes.byref(ordinal), POINTER_DEVICE_ORDINAL, at)
    except DriverError as err:
        raise NotShareable(f"at {at:#x} there is no memory of CUDA: {err}") from err
    if ordinal.value != device:
        raise NotShareable(f"the KV memory at {at:#x} is on GPU {ordinal.value}, and that of the rank is {device}")
    first = base.value
    return Part(first, min(end, first + size.value) - at, at - first, size.value, _handle(driver, first))


def _handle(driver: Driver, base: int) -> bytes | None:
    """Return the handle of memory of cuMemAlloc, None for memory that can be exported."""
    with _retained(driver, base) as allocation:
        if allocation is None:
            return _ipc_handle(driver, base)
        properties = AllocationProperties()
        driver.call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(properties), allocation)
        if not properties.handle_types & HANDLE_POSIX:
            raise NotShareable(_not_posix(properties.handle_types))
        return None


_NO_ALLOCATION = (INVALID_VALUE, INVALID_HANDLE, NOT_FOUND, NOT_SUPPORTED)
"""What a driver may answer for memory that is not of cuMemCreate. The rest are failures."""


@contextlib.contextmanager
def _retained(driver: Driver, base: int) -> Iterator[int | None]:
    """Yield the handle of memory of cuMemCreate, None for other memory."""
    out = ctypes.c_uint64()
    try:
        driver.call("cuMemRetainAllocationHandle", ctypes.byref(out), base)
    except DriverError as err:
        if err.code not in _NO_ALLOCATION:
            raise
        yield None
        return
    try:
        yield out.value
    finally:
        driver.call("cuMemRelease", out.value)


def _not_posix(types: int) -> str:
    if types & HANDLE_FABRIC:
        return (
            "the KV memory can be shared by fabric handles only, which kvconn does not use: hide the IMEX channels"
            " (/dev/nvidia-caps-imex-channels) from the engine, then its allocator asks for POSIX handles"
        )
    return (
        "the KV memory was allocated without a handle that can be shared: for vLLM start without sleep mode"
        " (cumem asks for such handles only where the GPU supports RDMA with virtual memory); for other allocators of"
        " cuMemCreate ask for POSIX handles"
    )


def _ipc_handle(driver: Driver, base: int) -> bytes:
    if _pointer(driver, POINTER_IS_MANAGED, base):
        raise NotShareable("the KV memory is managed memory (cudaMallocManaged), which no other process can open")
    if _pointer(driver, POINTER_MEMORY_TYPE, base) not in (0, MEMORY_TYPE_DEVICE):
        raise NotShareable("the KV memory is pinned host memory, not a GPU's")
    if _pointer(driver, POINTER_MEMPOOL, base):
        raise NotShareable(
            "the KV memory is of a pool (cudaMallocAsync), which cannot be shared:"
            " set backend:native in PYTORCH_CUDA_ALLOC_CONF"
        )
    if not _pointer(driver, POINTER_IPC_CAPABLE, base, otherwise=1):
        raise NotShareable("CUDA says that the KV memory cannot be shared (no legacy IPC): WSL and some vGPUs lack it")
    handle = (ctypes.c_ubyte * IPC_HANDLE_BYTES)()
    try:
        driver.call("cuIpcGetMemHandle", handle, base)
    except DriverError as err:
        if err.code in (INVALID_VALUE, NOT_SUPPORTED):
            raise NotShareable(f"CUDA cannot share the KV memory: {err}") from err
        raise
    return bytes(handle)


def _pointer(driver: Driver, attribute: int, address: int, otherwise: int = 0) -> int:
    """Return an attribute of an address, and the value `otherwise` where the driver has none for it."""
    out = ctypes.c_uint64()
    return otherwise if driver.code("cuPointerGetAttribute", ctypes.byref(out), attribute, address) else out.value
