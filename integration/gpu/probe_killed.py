"""Whether the copies of a process end with its sockets when it is killed.

An engine takes the end of its connection for the proof that its memory is not touched any more, and the daemon that of
a copier's. The kernel closes a killed process's descriptors one after the other, and the driver's among them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from probing import driver, expect, mapped, memfd, registered, wait_until

PROBE = Path(__file__).resolve().with_name("probe.py")
BYTES = 32 << 20
KILLS = 5
QUIET_S = 0.5
"""How long memory is watched: far longer than all that was queued takes."""
QUEUED = 16
"""Copies each way that are queued at a time, twice."""


def killed() -> dict[str, object]:
    """A process that copies both ways, from and to memory of others, is killed: then nothing changes any more."""
    cu = driver.Driver()
    engine, handle = cu.alloc(BYTES), ctypes.create_string_buffer(64)
    cu.cuIpcGetMemHandle(handle, engine)
    closed = []
    for _ in range(KILLS):
        arena = memfd(BYTES)
        ours, theirs = socket.socketpair()
        command = [sys.executable, str(PROBE), sys.argv[1], "copier", str(arena), handle.raw.hex()]
        with subprocess.Popen([*command, str(theirs.fileno())], pass_fds=(arena, theirs.fileno())) as other:
            theirs.close()
            try:
                closed.append(_killed(cu, other, ours, mapped(arena, BYTES), engine))
            finally:
                other.kill()
        ours.close()
        os.close(arena)
    return {"kills": KILLS, "socket_closed_after_s": round(max(closed), 3)}


def _killed(cu: driver.Driver, other: subprocess.Popen[bytes], ours: socket.socket, arena: int, engine: int) -> float:
    """Kill a process in the middle of its copies, and return after how many seconds its socket was closed."""

    def now() -> tuple[bytes, bytes]:
        return ctypes.string_at(arena, BYTES), cu.read(engine, BYTES)

    ours.settimeout(60)
    expect(ours.recv(1) == b"r", "the other process does not copy")
    for _ in range(2):
        before = ctypes.string_at(arena, 1), cu.read(engine, 1)
        changed = "a change of the memory that the other process copies to"
        wait_until(lambda b=before: ctypes.string_at(arena, 1) != b[0] and cu.read(engine, 1) != b[1], changed, 0.001)
    began = time.monotonic()
    other.kill()
    expect(ours.recv(1) == b"", "the killed process has written")
    took = time.monotonic() - began
    there = now()
    time.sleep(QUIET_S)
    later = now()
    expect(there[0] == later[0], "host memory has changed after the killed process's socket was closed")
    expect(there[1] == later[1], "another's GPU memory has changed after the killed process's socket was closed")
    other.wait(timeout=60)
    expect(now() == later, "memory has changed as the killed process has ended")
    return took


def copier(arena: str, handle: str, connection: str) -> None:
    """Copy until the end of this process. The connection is older than all that the driver opens, as a copier's is."""
    cu = driver.Driver()
    host = mapped(int(arena), BYTES)
    registered(cu, host, BYTES)
    own, saves, loads = cu.alloc(BYTES), cu.stream(), cu.stream()
    engine = cu.get("cuIpcOpenMemHandle_v2", driver.Handle64.from_buffer_copy(bytes.fromhex(handle)), 1)
    events, number = [(cu.event(), cu.event()) for _ in range(2)], 0
    for turn in range(1 << 40):
        for _ in range(QUEUED):
            number += 1
            cu.cuMemsetD8Async(own, number % 256, BYTES, saves)
            cu.cuMemcpyDtoHAsync_v2(host, own, BYTES, saves)
            cu.cuMemcpyHtoDAsync_v2(engine, host, BYTES, loads)
        if turn == 0:
            socket.socket(fileno=int(connection)).detach()
            os.write(int(connection), b"r")
        for stream, event in zip((saves, loads), events[turn % 2], strict=True):
            cu.cuEventRecord(event, stream)
        if turn:
            for event in events[(turn - 1) % 2]:
                cu.cuEventSynchronize(event)
