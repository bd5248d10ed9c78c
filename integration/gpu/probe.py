"""What check.py asks a driver in a process of its own: one question each, answered by a line of JSON.

python3 probe.py LIBRARY words|pinning|context|hang
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "tests"))
import driver

GIB = 1 << 30


def expect(holds: bool, says: str) -> None:
    """End with an error unless it holds."""
    if not holds:
        raise SystemExit(f"error: {says}")


def shared(size: int) -> int:
    """Memory of a memfd, as the daemon's host tier and call numbers are."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, size)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    address = libc.mmap(None, size, 3, 1, fd, 0)
    os.close(fd)
    expect(address not in (None, 2**64 - 1), "no memory")
    return address


def words() -> dict[str, object]:
    """Two streams wait in turn for numbers in host memory that the other writes; the host sees them in order."""
    cu = driver.Driver()
    page, one, two = shared(4096), cu.stream(), cu.stream()
    cu.cuMemHostRegister_v2(page, 4096, 3)
    turns = 1000
    for turn in range(1, turns + 1):
        cu.cuStreamWriteValue32_v2(one, page, turn, 0)
        cu.cuStreamWaitValue32_v2(two, page, turn, 0)
        cu.cuStreamWriteValue32_v2(two, page + 64, turn, 0)
        cu.cuStreamWaitValue32_v2(one, page + 64, turn, 0)
    cu.cuStreamSynchronize(one)
    cu.cuStreamSynchronize(two)
    ours, theirs = (ctypes.c_uint32.from_address(page + at) for at in (0, 64))
    expect((ours.value, theirs.value) == (turns, turns), f"the host sees {ours.value} and {theirs.value}")
    # The host lets a stream go on by a plain store.
    cu.cuStreamWaitValue32_v2(one, page, turns + 1, 0)
    expect(cu.code.cuStreamQuery(one) == driver.NOT_READY, "a stream did not wait")
    ours.value = turns + 1
    cu.cuStreamSynchronize(one)
    return {"turns": turns}


def pinning(size: int = GIB, chunk: int = GIB // 4) -> dict[str, object]:
    """How long registering shared memory takes, populated and not, and giving it back."""
    cu, out = driver.Driver(), {}
    address = shared(size)
    for name in ("first", "populated"):
        began = time.monotonic()
        for at in range(0, size, chunk):
            cu.cuMemHostRegister_v2(address + at, chunk, 3)
        out[f"{name}_s_per_gib"] = round((time.monotonic() - began) * GIB / size, 3)
        began = time.monotonic()
        for at in range(0, size, chunk):
            cu.cuMemHostUnregister(address + at)
        out["unpin_s_per_gib"] = round((time.monotonic() - began) * GIB / size, 3)
    return out


def free_bytes(cu: driver.Driver) -> int:
    """Memory of the GPU that nobody has."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value


def child(*more: str) -> subprocess.Popen:
    """A process with a context and a stream, as a copier has; it says so and waits for its input's end."""
    command = [sys.executable, __file__, sys.argv[1], "holder", *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    expect(process.stdout is not None and process.stdout.readline() == "ready\n", "the other process has no context")
    return process


def holder(held: str = "") -> None:
    """What child starts."""
    cu = driver.Driver()
    stream = cu.stream()
    if held:
        cu.alloc(256 << 20)
        cu.hold(stream)
        cu.cuMemsetD8Async(cu.alloc(4096), 1, 4096, stream)
    print("ready", flush=True)
    if held:
        cu.cuStreamSynchronize(stream)
    sys.stdin.read()


def context() -> dict[str, object]:
    """How much memory of the GPU a second process's context takes, and that it comes back."""
    cu = driver.Driver()
    before = free_bytes(cu)
    other = child()
    during = free_bytes(cu)
    other.communicate()
    return {"mib": (before - during) >> 20, "left_mib": (before - free_bytes(cu)) >> 20}


def hang() -> dict[str, object]:
    """A process that waits in the driver for good is killed: it goes, its memory comes back, the GPU serves on."""
    cu = driver.Driver()
    before = free_bytes(cu)
    other = child("held")
    began = time.monotonic()
    other.kill()
    other.wait(timeout=60)
    gone = time.monotonic() - began
    address = cu.alloc(4096)
    cu.write(address, b"served")
    expect(cu.read(address, 6) == b"served", "wrong bytes after the kill")
    left = (before - free_bytes(cu)) >> 20
    expect(left < 256, f"{left} MiB of the killed process are still taken")
    return {"gone_s": round(gone, 3), "left_mib": left}


def main() -> None:
    """Ask, and print the answer."""
    os.environ["FAKECUDA_LIBRARY"] = sys.argv[1]
    if sys.argv[2] == "holder":
        holder(*sys.argv[3:])
        return
    ask = {"words": words, "pinning": pinning, "context": context, "hang": hang}[sys.argv[2]]
    print(json.dumps(ask()))


if __name__ == "__main__":
    main()
