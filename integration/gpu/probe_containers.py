"""Whether processes in containers of their own share a GPU's memory, as far as one machine can tell.

Exporter and importer run in PID, mount and IPC namespaces of their own, each with its own /proc and /dev/shm. Between
them is a Unix socket, as between an engine and the daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from probing import WRITE_64_BIT, driver, expect, is_stand_in, mapped, memfd, registered, wait_until, word

PROBE = Path(__file__).resolve().with_name("probe.py")
NAMESPACES = ("--pid", "--ipc", "--mount", "--fork", "--kill-child")
USER = ("--user", "--map-root-user")
"""A user namespace lets others than root make the rest, where the machine lets them."""
MOUNTS = "mount -t tmpfs none /dev/shm && mount -t proc proc /proc"
PAGE_BYTES, NUMBER = 4096, 1 << 40
FROM_EXPORTER, FROM_IMPORTER = b"from the exporter", b"from the importer"
LIMIT_S = 50
KINDS = {
    "vmm": "virtual memory (cuMemCreate), whose descriptors go through the socket",
    "legacy": "legacy IPC (cuMemAlloc)",
    "legacy_same_pid": "legacy IPC between processes whose numbers are the same, each in its container",
}


def containers() -> dict[str, object]:
    """Bytes go both ways between containers, and call numbers are seen."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return {"skip": "there is no unshare (util-linux)"}
    for more in ((), USER):
        prefix = [unshare, *more, *NAMESPACES]
        done = subprocess.run([*prefix, "sh", "-c", MOUNTS], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    else:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return {"skip": f"namespaces are not permitted here: {why[0]}"}
    answer = {kind: _shared(prefix, kind) for kind in KINDS}
    cu = driver.Driver()
    # The stand-in's legacy handles name processes by their numbers, and the daemon's and the engine's may be the same.
    wanted = ("vmm",) if is_stand_in(cu) else ("vmm", "legacy")
    for kind in wanted:
        expect(answer[kind] == "yes", f"{KINDS[kind]}: {answer[kind]}")
    return answer


def _shared(prefix: list[str], kind: str) -> str:
    """Return yes, or why memory of a kind is not shared."""
    ends = socket.socketpair()
    running: list[subprocess.Popen[str]] = []
    try:
        for role, end in zip(("exporter", "importer"), ends, strict=True):
            # As its container's first process, or as a later one, whose number depends on how many there were.
            start = 'exec "$@"' if kind == "legacy_same_pid" else '"$@"; exit $?'
            more = "" if role == "exporter" else "sh -c true && "
            shell = ["sh", "-c", f"{more}{MOUNTS} && {start}"]
            peer = [sys.executable, str(PROBE), sys.argv[1], "peer", role, kind, str(end.fileno())]
            running.append(
                subprocess.Popen(
                    [*prefix, *shell, "sh", *peer], stderr=subprocess.PIPE, text=True, pass_fds=(end.fileno(),)
                )
            )
        for end in ends:
            end.close()
        said = [process.communicate(timeout=LIMIT_S)[1].strip() for process in reversed(running)][::-1]
    except subprocess.TimeoutExpired:
        return f"no answer within {LIMIT_S} s"
    finally:
        for process in running:
            process.kill()
            with contextlib.suppress(ValueError):  # it was read to its end
                process.communicate()
    failed = [
        text.splitlines()[-1] if text else "no reason" for p, text in zip(running, said, strict=True) if p.returncode
    ]
    # Where one fails the other loses its connection: what was first says why.
    failed.sort(key=lambda text: "hung up" in text)
    return failed[0] if failed else "yes"


def peer(role: str, kind: str, fd: str) -> None:
    """What is started in a container."""
    with socket.socket(fileno=int(fd)) as other:
        other.settimeout(LIMIT_S / 2)
        try:
            (_exporter if role == "exporter" else _importer)(other, kind)
        except driver.Refused as why:
            raise SystemExit(f"error: the {role}: {why}") from why


def _exporter(other: socket.socket, kind: str) -> None:
    cu = driver.Driver()
    page = memfd(PAGE_BYTES)
    at, stream = registered(cu, mapped(page, PAGE_BYTES), PAGE_BYTES), cu.stream()
    if kind == "vmm":
        allocation = cu.create()
        memory = _at(cu, allocation)
        export = cu.export(allocation)
        socket.send_fds(other, [bytes(64)], [page, export])
        os.close(export)
    else:
        memory, handle = cu.alloc(driver.GRANULE), ctypes.create_string_buffer(64)
        cu.cuIpcGetMemHandle(handle, memory)
        socket.send_fds(other, [handle.raw], [page])
    cu.cuMemcpyHtoDAsync_v2(memory, FROM_EXPORTER, len(FROM_EXPORTER), stream)
    if cu.attribute(WRITE_64_BIT):
        cu.cuStreamWriteValue64_v2(stream, at, NUMBER, 0)
        cu.cuStreamSynchronize(stream)
    else:
        cu.cuStreamSynchronize(stream)
        word(at).value = NUMBER
    expect(other.recv(1) == b"w", "the other process has hung up")
    expect(cu.read(memory, len(FROM_IMPORTER)) == FROM_IMPORTER, "the exporter reads other bytes")
    other.send(b"r")


def _importer(other: socket.socket, kind: str) -> None:
    cu = driver.Driver()
    data, fds, _, _ = socket.recv_fds(other, 64, 2)
    expect(len(data) == 64 and len(fds) == (2 if kind == "vmm" else 1), "the other process has hung up")
    if kind == "vmm":
        memory = _at(cu, cu.get("cuMemImportFromShareableHandle", fds[1], driver.POSIX_FD))
    else:
        memory = cu.get("cuIpcOpenMemHandle_v2", driver.Handle64.from_buffer_copy(data), 1)
    number = word(mapped(fds[0], PAGE_BYTES))
    wait_until(lambda: number.value == NUMBER, "the number", 0.001)
    expect(cu.read(memory, len(FROM_EXPORTER)) == FROM_EXPORTER, "the importer reads other bytes")
    cu.write(memory, FROM_IMPORTER)
    other.send(b"w")
    expect(other.recv(1) == b"r", "the other process has hung up")


def _at(cu: driver.Driver, allocation: int) -> int:
    """Map an allocation of cuMemCreate, and return its address."""
    memory = cu.reserve(driver.GRANULE)
    cu.cuMemMap(memory, driver.GRANULE, 0, allocation, 0)
    expect(cu.allow(memory, driver.GRANULE) == 0, "no access")
    return memory
