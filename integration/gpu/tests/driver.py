"""A CUDA driver by ctypes, as the tests call it: the fake one, or the real one if FAKECUDA_LIBRARY says so."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, MAP_FAILED = 100, 101, 201, 205
NO_BINARY, PEER_UNSUPPORTED, INVALID_PTX, UNSUPPORTED_PTX = 209, 217, 218, 222
INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS, DESTROYED = 400, 500, 600, 700, 709
ALREADY_REGISTERED, NOT_REGISTERED, NOT_PERMITTED, NOT_SUPPORTED = 712, 713, 800, 801

GRANULE = 2 << 20
PINNED, DEVICE, POSIX_FD, FABRIC = 1, 1, 1, 8
ORDER_STREAM, ORDER_DURING_CALL, ORDER_ANY = 1, 2, 3
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Handle64(ctypes.Structure):
    """64 bytes by value, as cuIpcOpenMemHandle takes them."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


class Refused(Exception):
    """An entry answered with an error."""

    def __init__(self, entry: str, code: int) -> None:
        super().__init__(f"{entry} answered {code}")
        self.code = code


class Driver:
    """The entries of a driver: `cu.cuInit(0)` raises Refused, `cu.code.cuInit(0)` returns the code."""

    def __init__(self, *, device: int | None = 0) -> None:
        self.library = ctypes.CDLL(os.environ["FAKECUDA_LIBRARY"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.code = _Codes(self.library)
        if device is not None:
            self.cuInit(0)
            self.use(device)

    def __getattr__(self, entry: str):
        call = getattr(self.code, entry)

        def checked(*args) -> None:
            code = call(*args)
            if code:
                raise Refused(entry, code)

        return checked

    def use(self, device: int) -> int:
        """Make the primary context of a device current and return it."""
        context = self.get("cuDevicePrimaryCtxRetain", device)
        self.cuCtxSetCurrent(context)
        return context

    def get(self, entry: str, *args, of=ctypes.c_uint64):
        """Call an entry whose first argument is where its answer goes, and return that."""
        out = of()
        getattr(self, entry)(ctypes.byref(out), *args)
        return out.value

    def attribute(self, number: int, device: int = 0) -> int:
        return self.get("cuDeviceGetAttribute", number, device, of=ctypes.c_int)

    def pointer(self, number: int, address: int, of=ctypes.c_uint64):
        return self.get("cuPointerGetAttribute", number, address, of=of)

    def range(self, address: int) -> tuple[int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_uint64()
        self.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address)
        return base.value, size.value

    def alloc(self, size: int) -> int:
        return self.get("cuMemAlloc_v2", size)

    def stream(self, flags: int = 1) -> int:
        return self.get("cuStreamCreate", flags)

    def event(self, flags: int = 2) -> int:
        return self.get("cuEventCreate", flags)

    def hold(self, stream: int):
        """Let a stream go no further until the function that is returned is called."""
        page = host(4096)
        self.cuMemHostRegister_v2(page, 4096, 3)
        self.cuStreamWaitValue64_v2(stream, page, 1, 0)
        return lambda: put(page, b"\1")

    def write(self, address: int, data: bytes) -> None:
        self.cuMemcpyHtoD_v2(address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        out = ctypes.create_string_buffer(size)
        self.cuMemcpyDtoH_v2(out, address, size)
        return out.raw

    def proc(self, name: str, version: int) -> tuple[int, int, int]:
        """The code, the address and the status of cuGetProcAddress."""
        address, status = ctypes.c_uint64(), ctypes.c_int(-1)
        code = self.code.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), version, 0, ctypes.byref(status))
        return code, address.value, status.value

    def properties(self, types: int = POSIX_FD, device: int = 0) -> ctypes.Array:
        return ctypes.create_string_buffer(struct.pack("<iiiiQ8x", PINNED, types, DEVICE, device, 0), 32)

    def create(self, size: int = GRANULE, types: int = POSIX_FD, device: int = 0) -> int:
        return self.get("cuMemCreate", size, self.properties(types, device), 0)

    def reserve(self, size: int) -> int:
        return self.get("cuMemAddressReserve", size, 0, 0, 0)

    def allow(self, address: int, size: int, device: int = 0, flags: int = 3) -> int:
        return self.code.cuMemSetAccess(address, size, struct.pack("<iii", DEVICE, device, flags), 1)

    def export(self, handle: int) -> int:
        return self.get("cuMemExportToShareableHandle", handle, POSIX_FD, 0, of=ctypes.c_int)

    def batch(
        self, copies: list[tuple[int, int, int]], orders: list[int], stream: int, version: int = 12080
    ) -> tuple[int, int]:
        """Submit (dst, src, size) triples, each with its order; return the code and failIdx."""
        count = len(copies)
        columns = [(ctypes.c_uint64 * count)(*column) for column in zip(*copies, strict=True)]
        attributes = b"".join(struct.pack("<iiiiiI", order, 0, 0, 0, 0, 0) for order in orders)
        indexes = (ctypes.c_uint64 * len(orders))(*range(len(orders)))
        failed = ctypes.c_uint64(123)
        if version >= 13000:
            code = self.code.cuMemcpyBatchAsync_v2(*columns, count, attributes, indexes, len(orders), stream)
        else:
            where = ctypes.byref(failed)
            code = self.code.cuMemcpyBatchAsync(*columns, count, attributes, indexes, len(orders), where, stream)
        return code, failed.value


class _Codes:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, entry: str):
        function = getattr(self._library, entry)

        def call(*args) -> int:
            return function(*(ctypes.c_uint64(a & (1 << 64) - 1) if isinstance(a, int) else a for a in args))

        return call


def host(size: int) -> int:
    """Whole pages of memory of this process that nothing else uses; a test never gives them back."""
    address = _libc.mmap(None, size, 3, 0x22, -1, 0)
    assert address not in (None, 2**64 - 1)
    return address


def put(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def stand_in() -> bool:
    """Whether the driver is the stand-in, which counts, and which refuses stale handles that crash a real one."""
    return "KVCONN_CUDA_LIBRARY" not in os.environ


def counted(**wanted: int) -> None:
    """Check counters of this process; a real driver has none."""
    if stand_in():
        have = stats()
        assert {name: have[name] for name in wanted} == wanted


def stats() -> dict[str, int]:
    """The counters of this process."""
    return read_stats(f"{os.environ['FAKECUDA_STATS']}.{os.getpid()}")


def read_stats(path: str | Path) -> dict[str, int]:
    data = Path(path).read_bytes()
    rows = (struct.unpack_from("<24sq", data, at) for at in range(0, len(data), 32))
    return {name.rstrip(b"\0").decode(): value for name, value in rows}


@contextlib.contextmanager
def refused(code: int):
    """Expect the answer `code`."""
    got = 0
    try:
        yield
    except Refused as error:
        got = error.code
    assert got == code, f"{got}, not {code}"
