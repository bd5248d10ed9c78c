"""kvconn's vLLM connector in an engine on a processor whose KV memory is device memory of the stand-in for CUDA.

The stand-in maps that memory a second time, where the processor can reach it. So vLLM computes in memory that kvconnd
reaches by CUDA alone, and everything of the connector but the kernels' own order on a GPU is what it would be there.
FAKECUDA_LIBRARY names the stand-in; with FAKECUDA_DELAY_US the device comes to each call late.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from kvconn.cuda import DeviceMemory
from kvconn.cuda.regions import Range
from kvconn.vllm import memory
from kvconn.vllm.connector import KVConnConnector
from kvconn.vllm.worker import WorkerSide
from vllm.distributed.kv_transfer import get_kv_transfer_group

_WIPED = 0x55
_FOR_THE_DEVICE = 2
"""CU_MEMHOSTREGISTER_DEVICEMAP."""


class Device:
    """A device of the stand-in."""

    def __init__(self) -> None:
        self.library = os.environ["FAKECUDA_LIBRARY"]
        self._calls = ctypes.CDLL(self.library)
        self._calls.fakecuda_view.restype = ctypes.c_void_p
        self._call("cuInit", 0)
        self._call("cuCtxSetCurrent", self._get("cuDevicePrimaryCtxRetain", 0))
        self.stream = self._get("cuStreamCreate", 1)
        self._addresses: dict[int, int] = {}
        self._tensors: list[torch.Tensor] = []
        self._gate: mmap.mmap | None = None
        self._gate_address = 0

    def _call(self, entry: str, *args: Any) -> None:
        code = getattr(self._calls, entry)(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in args))
        if code:
            raise RuntimeError(f"{entry} answered {code}")

    def _get(self, entry: str, *args: Any) -> int:
        out = ctypes.c_uint64()
        self._call(entry, ctypes.byref(out), *args)
        return out.value

    def tensor(self, size: int) -> torch.Tensor:
        """Allocate device memory, and return a tensor of it on the processor."""
        address = self._get("cuMemAlloc_v2", size)
        view = self._calls.fakecuda_view(ctypes.c_uint64(address), ctypes.c_size_t(size))
        self._addresses[view] = address
        tensor = torch.frombuffer((ctypes.c_int8 * size).from_address(view), dtype=torch.int8)
        self._tensors.append(tensor)
        return tensor

    def wipe(self) -> None:
        """Have other bytes in all tensors."""
        for tensor in self._tensors:
            tensor.fill_(_WIPED)

    def hold(self) -> None:
        """Have the stream wait at what is queued next."""
        if self._gate is None:
            self._gate = mmap.mmap(-1, mmap.PAGESIZE)
            at = ctypes.addressof(ctypes.c_char.from_buffer(self._gate))
            self._call("cuMemHostRegister_v2", at, mmap.PAGESIZE, _FOR_THE_DEVICE)
            self._gate_address = self._get("cuMemHostGetDevicePointer_v2", at, 0)
        self._gate[:8] = bytes(8)
        self._call("cuStreamWaitValue64_v2", self.stream, self._gate_address, 1, 0)

    def release(self) -> None:
        """Have the stream go on."""
        if self._gate is not None:
            self._gate[0] = 1

    def address(self, view: int) -> int:
        """Return the device's address of such a tensor's memory."""
        return self._addresses[view]


class DeviceAllocation(memory.AllocationMode):
    """While active, the engine's allocation of its KV memory goes to the device."""

    def __init__(self, device: Device) -> None:
        super().__init__(lambda _: None)
        self._device = device

    def _allocate(self, size: int) -> torch.Tensor:
        return self._device.tensor(size)


class DeviceSide(WorkerSide):
    """A worker whose KV memory lies on the stand-in's device."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._device = Device()

    def allocation_context(self) -> AbstractContextManager[Any]:
        """Return the context in which the KV memory is allocated on the device."""
        return DeviceAllocation(self._device)

    @property
    def device(self) -> Device:
        """The device."""
        return self._device

    def _device_memory(self, storages: Sequence[Range], kv_caches: Mapping[str, torch.Tensor]) -> DeviceMemory:
        ranges = [Range(self._device.address(view), size) for view, size in storages]
        return DeviceMemory([ranges], 0, lambda: self._device.stream, self._device.library)


class DeviceConnector(KVConnConnector):
    """The connector as on a GPU."""

    worker_side = DeviceSide

    @staticmethod
    def _on_device(_: Any) -> bool:
        return True


class Controls:
    """What vLLM's worker does about KV memory when it sleeps and wakes, which it cannot on a processor; a slow device.

    An extension of the worker's class, which vLLM calls by /collective_rpc. The connector takes methods for an exchange
    of weights, unless their names begin as those of vLLM's that are harmless.
    """

    def get_kv_memory_back(self) -> None:
        """Take the KV memory back, and lose what is in it."""
        get_kv_transfer_group().unregister_kv_caches()
        get_kv_transfer_group()._worker.device.wipe()

    def is_kv_memory_registered(self) -> bool:
        """Whether the daemon has the KV memory."""
        return get_kv_transfer_group()._client._registration() is not None

    def check_kv_memory_in(self) -> None:
        """Hand the KV memory over again."""
        get_kv_transfer_group().restore_kv_caches()

    def get_device_held(self) -> None:
        """Have the device come to nothing that is queued from now on: saves do not begin."""
        get_kv_transfer_group()._worker.device.hold()

    def get_device_going(self) -> None:
        """Have the device go on."""
        get_kv_transfer_group()._worker.device.release()
