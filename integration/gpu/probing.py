"""What the questions of probe.py have in common."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))
import driver

WRITE_64_BIT = 122
"""The attribute of devices whose streams write numbers of 64 bits."""
WAIT_S = 60.0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def expect(holds: bool, says: str) -> None:
    """End with an error unless it holds."""
    if not holds:
        raise SystemExit(f"error: {says}")


def wait_until(holds: Callable[[], bool], what: str, pause_s: float = 0.0) -> None:
    """Wait until it holds, looking all the time unless there is a pause; end with an error where it takes too long."""
    until = time.monotonic() + WAIT_S
    while not holds():
        expect(time.monotonic() < until, f"{what} did not come within {WAIT_S:.0f} s")
        if pause_s:
            time.sleep(pause_s)


def memfd(size: int) -> int:
    """Return the descriptor of shared memory, as the daemon's host tier and pages of call numbers are."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, size)
    return fd


def mapped(fd: int, size: int) -> int:
    """Map shared memory, for as long as the process lives, and return its address."""
    address = _libc.mmap(None, size, 3, 1, fd, 0)
    expect(address not in (None, 2**64 - 1), "no memory")
    return address


def shared(size: int) -> int:
    """Return the address of fresh shared memory."""
    fd = memfd(size)
    address = mapped(fd, size)
    os.close(fd)
    return address


def registered(cu: driver.Driver, address: int, size: int) -> int:
    """Register host memory as the product does, and return its address for the device."""
    cu.cuMemHostRegister_v2(address, size, 3)
    return cu.get("cuMemHostGetDevicePointer_v2", address, 0)


def word(address: int) -> ctypes.c_uint64:
    """Return the number at an address, which may change at any time."""
    return ctypes.c_uint64.from_address(address)


def is_stand_in(cu: driver.Driver) -> bool:
    """Whether the driver is the tests' stand-in."""
    return hasattr(cu.library, "fakecuda_view")
