"""A scripted server that speaks the protocol, rightly or wrongly, for tests of the client alone."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

HEADER = struct.Struct("<IIBBBBQ")
HELLO, MATCH, STEP, LOADED, RESET, REGISTER, UNREGISTER, LOAD, SAVE, POLL, CANCEL, PRESENT, FETCH, PUT, TOUCH = range(
    1, 16
)
REPLY, ERROR = 1, 2

Answer = Any
"""A map is sent as reply, bytes are sent as they are, an exception ends the connection."""


class HangUpError(Exception):
    pass


class Refuse(Exception):
    def __init__(self, code: str) -> None:
        self.code = code


class FakeDaemon:
    """Answers each operation by `on[op](body)`, and keeps what it was asked in `asked`."""

    def __init__(self, path: Path, epoch: int = 7) -> None:
        self.path = path
        self.epoch = epoch
        self.on: dict[int, Callable[[dict[str, Any]], Answer]] = {
            HELLO: lambda _: {"version": 2, "server": "fake", "namespace": "00", "load_timeout_ms": 500},
            REGISTER: lambda _: {"block_bytes": [1]},
            UNREGISTER: lambda _: {},
        }
        self.asked: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.fds: list[int] = []
        self.conns: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def fence(self) -> memoryview:
        """The words of the fence page that was registered last: 0 is the fence, 8 the count of copies."""
        return memoryview(mmap.mmap(self.fds[-1], 4096)).cast("Q")

    def stop(self) -> None:
        """End like a process that is killed: everything closed, the socket's file left there."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.drop()
        while self.fds:
            os.close(self.fds.pop())

    def drop(self) -> None:
        conns, self.conns = self.conns, []
        for conn in conns:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)

    def ops(self) -> list[int]:
        seen = []
        while not self.asked.empty():
            seen.append(self.asked.get()[0])
        return seen

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.conns.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        try:
            while self._answer(conn):
                pass
        except OSError:
            pass
        finally:
            conn.close()

    def _last_copies(self, conn: socket.socket) -> None:
        """Wait for the end of copies: a daemon closes a connection after the last one. `drop` ends it before."""
        page = self.fds[-1] if self.fds else -1
        with contextlib.suppress(OSError):
            while conn in self.conns and page in self.fds and any(os.pread(page, 8, 64)):
                time.sleep(0.001)

    def _answer(self, conn: socket.socket) -> bool:
        head, ancillary, _, _ = conn.recvmsg(HEADER.size, 1024)
        for _, _, data in ancillary:
            fds = array.array("i")
            fds.frombytes(data)
            self.fds += list(fds)
        while 0 < len(head) < HEADER.size:
            head += conn.recv(HEADER.size - len(head))
        if not head:
            self._last_copies(conn)
            return False
        length, request_id, op, _, _, _, _ = HEADER.unpack(head)
        payload = b""
        while len(payload) < length:
            payload += conn.recv(length - len(payload))
        body = msgpack.unpackb(payload)
        self.asked.put((op, body))
        try:
            answer = self.on[op](body)
            kind = REPLY
        except HangUpError:
            return False
        except Refuse as err:
            answer, kind = {"code": err.code, "message": "no"}, ERROR
        conn.sendall(answer if isinstance(answer, bytes) else frame(request_id, op, kind, self.epoch, answer))
        return True


def frame(request_id: int, op: int, kind: int, epoch: int, body: Any, length: int | None = None) -> bytes:
    payload = msgpack.packb(body)
    return HEADER.pack(len(payload) if length is None else length, request_id, op, kind, 0, 0, epoch) + payload
