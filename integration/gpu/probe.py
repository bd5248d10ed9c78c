"""What check.py asks a driver in a process of its own: one question each, answered by a line of JSON.

python3 probe.py LIBRARY words|order|pinning|context|hang|killed|containers

An answer with `skip` says why it cannot be asked here.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

import probe_containers
import probe_killed
from probing import WRITE_64_BIT, driver, expect, registered, shared, wait_until, word

GIB = 1 << 30
PAGE_BYTES = 4096
ORDER_BYTES = 4 << 20
"""Large enough that a number which does not wait for its copy comes far too early."""
ORDER_ROUNDS = 400
NO_NUMBERS = {"skip": "this GPU's streams write no 64-bit numbers: a host function writes them"}


def words() -> dict[str, object]:
    """Two streams wait in turn for numbers in host memory that the other writes; the host sees them in order."""
    cu = driver.Driver()
    if not cu.attribute(WRITE_64_BIT):
        return NO_NUMBERS
    page, one, two = shared(PAGE_BYTES), cu.stream(), cu.stream()
    at = registered(cu, page, PAGE_BYTES)
    turns, first = 1000, 1 << 32  # all 64 bits count
    for turn in range(first, first + turns):
        cu.cuStreamWriteValue64_v2(one, at, turn, 0)
        cu.cuStreamWaitValue64_v2(two, at, turn, 0)
        cu.cuStreamWriteValue64_v2(two, at + 64, turn, 0)
        cu.cuStreamWaitValue64_v2(one, at + 64, turn, 0)
    cu.cuStreamSynchronize(one)
    cu.cuStreamSynchronize(two)
    ours, theirs, last = word(page), word(page + 64), first + turns - 1
    expect((ours.value, theirs.value) == (last, last), f"the host sees {ours.value} and {theirs.value}")
    # The host lets a stream go on by a plain store.
    cu.cuStreamWaitValue64_v2(one, at, last + 1, 0)
    expect(cu.code.cuStreamQuery(one) == driver.NOT_READY, "a stream did not wait")
    ours.value = last + 1
    cu.cuStreamSynchronize(one)
    return {"turns": turns}


def order() -> dict[str, object]:
    """When the host sees a number, all that was queued before it is there: in host memory, and for other streams."""
    cu = driver.Driver()
    if not cu.attribute(WRITE_64_BIT):
        return NO_NUMBERS
    page, target = shared(PAGE_BYTES), shared(ORDER_BYTES)
    at, _ = registered(cu, page, PAGE_BYTES), registered(cu, target, ORDER_BYTES)
    engine, copier, memory, reached = cu.stream(), cu.stream(), cu.alloc(ORDER_BYTES), word(page)
    for number in range(1, ORDER_ROUNDS + 1):
        byte, by_engine = number % 255 + 1, number % 2 == 0
        cu.cuMemsetD8Async(memory, byte, ORDER_BYTES, engine)
        if by_engine:
            cu.cuMemcpyDtoHAsync_v2(target, memory, ORDER_BYTES, engine)
        cu.cuStreamWriteValue64_v2(engine, at, number, 0)
        wait_until(lambda number=number: reached.value >= number, f"number {number}")
        if not by_engine:  # as a copier does, which knows the engine's stream by the number alone
            cu.cuMemcpyDtoHAsync_v2(target, memory, ORDER_BYTES, copier)
            cu.cuStreamSynchronize(copier)
        last = ctypes.string_at(target + ORDER_BYTES - 64, 64)  # what comes last is looked at first
        there = last.count(byte) == 64 and ctypes.string_at(target, ORDER_BYTES).count(byte) == ORDER_BYTES
        expect(there, f"number {number} came before {'a copy' if by_engine else 'bytes'} queued ahead of it")
        cu.cuStreamSynchronize(engine)
    return {"numbers": ORDER_ROUNDS}


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
    # What the questions start.
    parts = {"holder": holder, "copier": probe_killed.copier, "peer": probe_containers.peer}
    if part := parts.get(sys.argv[2]):
        part(*sys.argv[3:])
        return
    ask = {"words": words, "order": order, "pinning": pinning, "context": context, "hang": hang}
    ask |= {"killed": probe_killed.killed, "containers": probe_containers.containers}
    print(json.dumps(ask[sys.argv[2]]()))


if __name__ == "__main__":
    main()
