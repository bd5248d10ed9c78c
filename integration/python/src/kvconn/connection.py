"""One connection to the daemon: deadlines, bounds and descriptors, nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from kvconn.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotRegistered,
    ProtocolError,
    Rejected,
    SocketMissing,
    SocketPermission,
    SocketRefused,
    Unavailable,
    UnknownRequest,
    VersionMismatch,
)
from kvconn.frames import HEADER_BYTES, Header, Kind, Op, field, pack_request, unpack_body, unpack_header

_READ_AHEAD = 64 << 10
MAX_SOCKET_PATH_BYTES = 107  # sun_path less its terminating zero


class Connection:
    """A connected socket. Calls of several threads take turns.

    `epoch` is 0 until the daemon's first answer; `session` is its owner's number for it. After an
    error other than Rejected and RequestTooLarge it is unusable, and its owner closes it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.epoch = 0
        self.session = 0
        self._sock = sock
        self._next_id = 0
        self._buffer = bytearray(_READ_AHEAD)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: str, timeout: float) -> Connection:
        """Connect to the socket at path."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(path)
        except OSError as err:
            sock.close()
            raise _connect_error(path, err) from err
        return cls(sock)

    def call(self, op: Op, body: dict[str, Any], timeout: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        """Make one request and return the answer's body, within timeout seconds."""
        with self._lock:
            return self._call(op, body, timeout, fds)

    def between_calls(self) -> AbstractContextManager[Any]:
        """Wait for the end of a running call, and keep others from beginning."""
        return self._lock

    def _call(self, op: Op, body: dict[str, Any], timeout: float, fds: Sequence[int]) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        self._next_id = (self._next_id + 1) & 0xFFFFFFFF
        frame = pack_request(self._next_id, op, body, len(fds))
        try:
            self._send(frame, fds, timeout)
            header, payload = self._receive(deadline)
        except TimeoutError as err:
            raise DeadlineExceeded(f"no answer to {op.name.lower()} within {timeout:g} s") from err
        except OSError as err:
            raise ConnectionLost(f"connection lost in {op.name.lower()}: {err.strerror or err}") from err
        answer = unpack_body(payload)
        if header.id != self._next_id or header.op != op:
            raise ProtocolError(f"the answer to {op.name.lower()} does not belong to it")
        if self.epoch not in (0, header.epoch):
            raise ProtocolError("the daemon's epoch changed within one connection")
        self.epoch = header.epoch
        if header.kind == Kind.ERROR:
            raise _answered_error(op, answer)
        return answer

    def _send(self, frame: bytes, fds: Sequence[int], timeout: float) -> None:
        self._sock.settimeout(timeout)
        if fds:
            # With the header alone, so that a short send cannot part them.
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
            sent = self._sock.sendmsg([frame[:HEADER_BYTES]], rights)
            self._sock.sendall(memoryview(frame)[sent:])
        else:
            self._sock.sendall(frame)

    def _receive(self, deadline: float) -> tuple[Header, memoryview]:
        have = self._fill(self._buffer, 0, HEADER_BYTES, deadline)
        header = unpack_header(self._buffer)
        want = HEADER_BYTES + header.length
        buffer = self._buffer
        if want > len(buffer):
            buffer = bytearray(want)
            buffer[:have] = self._buffer[:have]
        have = self._fill(buffer, have, want, deadline)
        if have != want:
            raise ProtocolError(f"{have - want} bytes after an answer that nothing asked for")
        return header, memoryview(buffer)[HEADER_BYTES:want]

    def _fill(self, buffer: bytearray, have: int, want: int, deadline: float) -> int:
        """Receive until buffer holds want bytes, and return how many it holds."""
        view = memoryview(buffer)
        while have < want:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            got = self._sock.recv_into(view[have:])
            if got == 0:
                raise ConnectionLost("the daemon closed the connection")
            have += got
        return have

    def ended(self) -> bool:
        """Whether the daemon has closed its end, or has died. For a connection that is not used any more."""
        try:
            self._sock.setblocking(False)
            while self._sock.recv(_READ_AHEAD):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def hung_up_within(self, seconds: float) -> bool:
        """Wait until the daemon closes its end, at most that long. For any thread."""
        fd = self._sock.fileno()
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLRDHUP)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the socket; further calls have no effect."""
        with contextlib.suppress(OSError):
            # A thread that waits for the socket keeps it from closing: wake it.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _connect_error(path: str, err: OSError) -> Unavailable:
    reason = os.strerror(err.errno) if err.errno else str(err)
    message = f"cannot connect to kvconnd at {path}: {reason}"
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        return SocketMissing(message)
    if err.errno in (errno.EACCES, errno.EPERM):
        return SocketPermission(message)
    if isinstance(err, TimeoutError):
        return DeadlineExceeded(message)
    # EAGAIN is a full backlog; ENOTSOCK and others, a path that is no socket of ours.
    return SocketRefused(message)


def _answered_error(op: Op, body: dict[str, Any]) -> Rejected | Unavailable:
    code = field(body, "code", str)
    message = f"kvconnd refused {op.name.lower()}: {field(body, 'message', str)[:1024]}"
    if code == "protocol":
        return ProtocolError(message)
    if code == "version":
        return VersionMismatch(message)
    if code == "unknown_request":
        return UnknownRequest(code, message)
    if code == "not_registered":
        return NotRegistered(code, message)
    return Rejected(code, message)
