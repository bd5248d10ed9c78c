"""An engine's side of a GPU for tests: allocations and streams of a CUDA driver, by ctypes."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kvconn.cuda.regions import Range

SOURCES = Path(__file__).resolve().parents[2] / "gpu" / "fakecuda"
GRANULE = 2 << 20
NONE, POSIX, FABRIC = 0, 1, 8
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3


def library(directory: Path) -> Path:
    """Return the driver that the tests run on: the stand-in, unless KVCONN_CUDA_LIBRARY names another."""
    if named := os.environ.get("KVCONN_CUDA_LIBRARY"):
        return Path(named)
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("the stand-in for the CUDA driver is in C: install gcc to run its tests")
    built = directory / "libcuda.so.1"
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(built)]
    subprocess.run([compiler, *flags, *sorted(str(p) for p in SOURCES.rglob("*.c")), "-lpthread"], check=True)
    return built


class Cuda:
    """A driver whose device 0 is current on the thread that has made it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pages: list[mmap.mmap] = []
        self._library = ctypes.CDLL(str(path))
        self.call("cuInit", 0)
        self.use()

    def use(self) -> None:
        """Make the device current on this thread."""
        self.call("cuCtxSetCurrent", self.get("cuDevicePrimaryCtxRetain", 0))

    def call(self, entry: str, *args: object) -> None:
        converted = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in args]
        code = getattr(self._library, entry)(*converted)
        assert code == 0, f"{entry} answered {code}"

    def get(self, entry: str, *args: object) -> int:
        out = ctypes.c_uint64()
        self.call(entry, ctypes.byref(out), *args)
        return out.value

    def alloc(self, size: int) -> Range:
        """Return memory of cuMemAlloc."""
        return Range(self.get("cuMemAlloc_v2", size), size)

    def free(self, memory: Range) -> None:
        self.call("cuMemFree_v2", memory.address)

    def virtual(self, parts: int = 1, handle_types: int = POSIX, part_bytes: int = GRANULE) -> Range:
        """Return memory of cuMemCreate: one reservation, and allocations end to end in it."""
        size = parts * part_bytes
        at = self.get("cuMemAddressReserve", size, 0, 0, 0)
        properties = struct.pack("<iiiiQ8x", _PINNED, handle_types, _DEVICE, 0, 0)
        for i in range(parts):
            handle = self.get("cuMemCreate", part_bytes, ctypes.create_string_buffer(properties, 32), 0)
            self.call("cuMemMap", at + i * part_bytes, part_bytes, 0, handle, 0)
            self.call("cuMemRelease", handle)
        access = ctypes.create_string_buffer(struct.pack("<iii", _DEVICE, 0, _READ_WRITE), 12)
        self.call("cuMemSetAccess", at, size, access, 1)
        return Range(at, size)

    def unmap(self, memory: Range) -> None:
        """Free what `virtual` has returned."""
        self.call("cuMemUnmap", memory.address, memory.size)
        self.call("cuMemAddressFree", memory.address, memory.size)

    def write(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", address, ctypes.create_string_buffer(data, len(data)), len(data))

    def read(self, address: int, size: int) -> bytes:
        out = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", out, address, size)
        return out.raw

    def stream(self) -> int:
        return self.get("cuStreamCreate", 1)

    def fill_later(self, address: int, byte: int, size: int, stream: int) -> None:
        """Queue a write of bytes on a stream."""
        self.call("cuMemsetD8Async", address, byte, size, stream)

    def synchronize(self, stream: int) -> None:
        self.call("cuStreamSynchronize", stream)

    def hold(self, stream: int) -> Callable[[], None]:
        """Let a stream go no further until the function that is returned is called."""
        page = mmap.mmap(-1, 4096)
        self._pages.append(page)  # registered until the process ends
        at = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self.call("cuMemHostRegister_v2", at, 4096, 3)
        self.call("cuStreamWaitValue32_v2", stream, self.get("cuMemHostGetDevicePointer_v2", at, 0), 1, 0)
        return lambda: page.__setitem__(0, 1)
