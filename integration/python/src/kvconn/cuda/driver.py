"""The CUDA driver, as the engine's process has loaded it: the few calls that its side makes.

Prototypes are those of cuda.h 12.4 to 13.5. The context set by the engine on its threads stays as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from kvconn.engine_memory import EngineMemoryError

LIBRARY = "libcuda.so.1"

INVALID_VALUE, INVALID_HANDLE, NOT_FOUND, NOT_READY, NOT_SUPPORTED = 1, 400, 500, 600, 801
HANDLE_POSIX, HANDLE_FABRIC = 1, 8
ATTRIBUTE_STREAM_MEM_OPS_64 = 122
POINTER_MEMORY_TYPE, POINTER_DEVICE_ORDINAL, POINTER_IPC_CAPABLE = 2, 9, 10
POINTER_IS_MANAGED, POINTER_MEMPOOL = 8, 17
MEMORY_TYPE_DEVICE = 2
IPC_HANDLE_BYTES = 64
_CAPTURE_RELAXED = 2
_EVENT_DISABLE_TIMING = 2
_HOST_REGISTER_PORTABLE, _HOST_REGISTER_DEVICEMAP = 1, 2

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_int, _uint, _u64, _size = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t
_pointer = ctypes.c_void_p
_PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [_uint],
    "cuGetErrorName": [_int, ctypes.POINTER(ctypes.c_char_p)],
    "cuDeviceGet": [_pointer, _int],
    "cuDeviceGetUuid_v2": [_pointer, _int],
    "cuDeviceGetAttribute": [_pointer, _int, _int],
    "cuDevicePrimaryCtxRetain": [_pointer, _int],
    "cuCtxPushCurrent_v2": [_pointer],
    "cuCtxPopCurrent_v2": [_pointer],
    "cuThreadExchangeStreamCaptureMode": [_pointer],
    "cuMemGetAddressRange_v2": [_pointer, _pointer, _u64],
    "cuPointerGetAttribute": [_pointer, _int, _u64],
    "cuIpcGetMemHandle": [_pointer, _u64],
    "cuMemRetainAllocationHandle": [_pointer, _u64],
    "cuMemGetAllocationPropertiesFromHandle": [_pointer, _u64],
    "cuMemExportToShareableHandle": [_pointer, _u64, _int, _u64],
    "cuMemRelease": [_u64],
    "cuMemHostRegister_v2": [_u64, _size, _uint],
    "cuMemHostUnregister": [_u64],
    "cuMemHostGetDevicePointer_v2": [_pointer, _u64, _uint],
    "cuStreamWriteValue64_v2": [_u64, _u64, _u64, _uint],
    "cuLaunchHostFunc": [_u64, HostFunction, _pointer],
    "cuEventCreate": [_pointer, _uint],
    "cuEventRecord": [_u64, _u64],
    "cuEventQuery": [_u64],
    "cuEventDestroy_v2": [_u64],
    "cuStreamIsCapturing": [_u64, _pointer],
    "cuStreamWaitEvent": [_u64, _u64, _uint],
}


class DriverError(EngineMemoryError):
    """The driver has answered a call with an error."""

    def __init__(self, entry: str, code: int, name: str) -> None:
        super().__init__(f"the CUDA driver answers {entry} with {name or code}")
        self.entry, self.code = entry, code


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", _int),
        ("handle_types", _int),
        ("location_type", _int),
        ("device", _int),
        ("win32", _pointer),
        ("flags", ctypes.c_ubyte * 8),
    )


class Driver:
    """The driver's library. For any thread."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            loaded = ctypes.CDLL(library)
            self._entries: dict[str, Callable[..., int]] = {}
            for name, arguments in _PROTOTYPES.items():
                entry = getattr(loaded, name)
                entry.restype, entry.argtypes = _int, arguments
                self._entries[name] = entry
        except (OSError, AttributeError) as err:
            raise EngineMemoryError(f"no CUDA driver of 12.4 or newer: {err}") from err
        self.call("cuInit", 0)

    def code(self, entry: str, *args: Any) -> int:
        """Call an entry, and return what it answers."""
        return self._entries[entry](*args)

    def call(self, entry: str, *args: Any) -> None:
        """Call an entry. Raises DriverError."""
        code = self.code(entry, *args)
        if code:
            raise DriverError(entry, code, self._name(code))

    def get(self, entry: str, *args: Any, of: Any = _u64) -> int:
        """Call an entry whose first argument is where its answer goes, and return that."""
        out = of()
        self.call(entry, ctypes.byref(out), *args)
        return int(out.value or 0)

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._entries["cuGetErrorName"](code, ctypes.byref(text))
        return (text.value or b"").decode(errors="replace")


class Device:
    """A GPU, and its primary context, which is the engine's. For any thread."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self._device = driver.get("cuDeviceGet", ordinal, of=_int)
        raw = (ctypes.c_ubyte * 16)()
        driver.call("cuDeviceGetUuid_v2", raw, self._device)
        text = bytes(raw).hex()
        self.uuid = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        # Kept until the process ends: the engine has it all the time, and without it no address here means anything.
        self._context = driver.get("cuDevicePrimaryCtxRetain", self._device)

    def has(self, attribute: int) -> bool:
        """Whether the device has what an attribute says."""
        return bool(self.driver.get("cuDeviceGetAttribute", attribute, self._device, of=_int))

    @contextlib.contextmanager
    def current(self) -> Iterator[Driver]:
        """Make the context current on this thread for a while, and let calls not disturb a graph that is captured.

        While a thread captures a graph in the mode that is usual, calls that could wait fail on every thread, and
        the capture with them; in relaxed mode a thread says that its calls have nothing to do with it.
        """
        driver, mode = self.driver, ctypes.c_int(_CAPTURE_RELAXED)
        driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield driver
            finally:
                driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_uint64()))

    def map_host(self, address: int, size: int) -> int:
        """Let the device write to host memory, and return the memory's address for it. The context must be current."""
        self.driver.call("cuMemHostRegister_v2", address, size, _HOST_REGISTER_PORTABLE | _HOST_REGISTER_DEVICEMAP)
        try:
            return self.driver.get("cuMemHostGetDevicePointer_v2", address, 0)
        except DriverError:
            self.driver.code("cuMemHostUnregister", address)
            raise

    def event(self) -> int:
        """Return an event that orders streams. The context must be current."""
        return self.driver.get("cuEventCreate", _EVENT_DISABLE_TIMING)
