"""One connection to the daemon: deadlines, bounds and descriptors, nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kvconn.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotRegistered,
    ProtocolError,
    Rejected,
    RequestTooLarge,
    SocketMissing,
    SocketPermission,
    SocketRefused,
    TryAgain,
    Unavailable,
    UnknownRequest,
    VersionMismatch,
)
from kvconn.frames import HEADER_BYTES, Kind, Op, field, pack_request, packer, unpack_body, unpack_header

_READ_AHEAD = 64 << 10
_MAX_OWED = 16
"""Answers that may be outstanding. They are small: the socket holds them all while nobody reads."""
_TIMEVAL = struct.Struct("@ll")
MAX_SOCKET_PATH_BYTES = 107  # sun_path less its terminating zero


class Connection:
    """A connected socket. Calls of several threads take turns.

    `epoch` is 0 until the daemon's first answer; `session` is its owner's number for it, and `token`
    the daemon's name for its session, empty if that can have no channels. After an
    error other than Rejected and RequestTooLarge it is unusable, and its owner closes it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.epoch = 0
        self.session = 0
        self.token = b""
        self._sock = sock
        # The kernel counts the time: Python's own timeouts take four system calls more in each call.
        sock.settimeout(None)
        self._patience = 0.0
        self._next_id = 0
        self._pack = packer()
        self._owed: deque[tuple[int, Op]] = deque()
        """Requests that were posted, and whose answers were not read."""
        # What was received and not read yet is _buffer[_start:_have].
        self._buffer = bytearray(_READ_AHEAD)
        self._start = self._have = 0
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

    def post(self, op: Op, body: dict[str, Any], timeout: float) -> None:
        """Make one request whose answer says nothing, within timeout seconds, and don't wait for the answer.

        The next call reads it, and fails if it is an error: what the daemon knows is uncertain then.
        """
        with self._lock:
            deadline = time.monotonic() + timeout
            with _InTime(op, timeout):
                if len(self._owed) >= _MAX_OWED:
                    self._settle(deadline, timeout)
                self._owed.append((self._send(op, body, (), deadline), op))

    def between_calls(self) -> AbstractContextManager[Any]:
        """Wait for the end of a running call, and keep others from beginning."""
        return self._lock

    def _call(self, op: Op, body: dict[str, Any], timeout: float, fds: Sequence[int]) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        with _InTime(op, timeout):
            request_id = self._send(op, body, fds, deadline)
            if self._owed:
                self._settle(deadline, timeout)
            kind, answer = self._answer(request_id, op, deadline, timeout)
        if self._have:
            raise ProtocolError(f"{self._have - self._start} bytes after an answer that nothing asked for")
        if kind == Kind.ERROR:
            raise _answered_error(op, answer)
        return answer

    def _settle(self, deadline: float, timeout: float) -> None:
        """Read the answers to what was posted: unless they are errors, they say nothing."""
        while self._owed:
            request_id, op = self._owed.popleft()
            kind, answer = self._answer(request_id, op, deadline, timeout, errors_only=True)
            if kind == Kind.ERROR:
                err = _answered_error(op, answer)
                raise err if isinstance(err, Unavailable) else ProtocolError(str(err))

    def _send(self, op: Op, body: dict[str, Any], fds: Sequence[int], deadline: float) -> int:
        """Send a request, and return its id."""
        request_id = (self._next_id + 1) & 0xFFFFFFFF
        try:
            frame = pack_request(request_id, op, body, len(fds), self._pack)
        except RequestTooLarge:
            self._pack = packer()
            raise
        if len(frame) > _READ_AHEAD:
            self._pack = packer()  # it would keep as much memory
        self._next_id = request_id
        if fds:
            # With the header alone, so that a short send cannot part them.
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
            with self._python_timeout(deadline):
                sent = self._sock.sendmsg([frame[:HEADER_BYTES]], rights)
        else:
            sent = self._send_now(frame)
        if sent < len(frame):
            with self._python_timeout(deadline):
                self._sock.sendall(memoryview(frame)[sent:])
        return request_id

    def _send_now(self, frame: bytes) -> int:
        """Send what can be sent without waiting: nearly always all."""
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    @contextlib.contextmanager
    def _python_timeout(self, deadline: float) -> Iterator[None]:
        self._sock.settimeout(_left(deadline))
        yield
        self._sock.settimeout(None)

    def _answer(
        self, request_id: int, op: Op, deadline: float, timeout: float, errors_only: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Receive the next answer, which must belong to a request, and return its kind and body.

        With `errors_only` the body of an answer that is no error is not decoded: it is empty.
        """
        if self._patience != timeout:
            self._wait_at_most(timeout)
        if self._have - self._start < HEADER_BYTES:
            self._fill(HEADER_BYTES, deadline)
        header = unpack_header(self._buffer, self._start)
        if self._have - self._start < HEADER_BYTES + header.length:
            self._fill(HEADER_BYTES + header.length, deadline)
        begin = self._start + HEADER_BYTES
        end = begin + header.length
        ignored = errors_only and header.kind == Kind.REPLY
        answer = {} if ignored else unpack_body(memoryview(self._buffer)[begin:end])
        self._start = end
        if end == self._have:
            self._start = self._have = 0
        if header.id != request_id or header.op != op:
            raise ProtocolError(f"the answer to {op.name.lower()} does not belong to it")
        if self.epoch not in (0, header.epoch):
            raise ProtocolError("the daemon's epoch changed within one connection")
        self.epoch = header.epoch
        return header.kind, answer

    def _fill(self, want: int, deadline: float) -> None:
        """Receive until the buffer holds want bytes from _start on."""
        if self._have - self._start >= want:
            return
        if self._start + want > len(self._buffer):
            rest = self._buffer[self._start : self._have]
            self._buffer = bytearray(max(want, _READ_AHEAD))
            self._buffer[: len(rest)] = rest
            self._start, self._have = 0, len(rest)
        elif not self._have and len(self._buffer) > _READ_AHEAD:
            self._buffer = bytearray(_READ_AHEAD)
        view = memoryview(self._buffer)
        while self._have - self._start < want:
            left = _left(deadline)
            if left < 0.9 * self._patience:
                self._wait_at_most(left)
            try:
                got = self._sock.recv_into(view[self._have :])
            except BlockingIOError as err:
                raise TimeoutError from err
            if got == 0:
                raise ConnectionLost("the daemon closed the connection")
            self._have += got

    def _wait_at_most(self, seconds: float) -> None:
        """Bound the time that each recv waits, to a tenth: see _fill."""
        us = max(1, int(seconds * 1e6))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(us // 1_000_000, us % 1_000_000))
        self._patience = seconds

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

    def finish(self) -> None:
        """Say that no further call comes, and keep it open to see how the daemon ends it: see `ended`."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection: a call that is under way in another thread fails at once."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; further calls have no effect."""
        self.hang_up()  # a thread that waits for the socket keeps it from closing
        self._sock.close()


class _InTime:
    """Turns what the socket raises into errors of this package."""

    def __init__(self, op: Op, timeout: float) -> None:
        self._op, self._timeout = op, timeout

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, err: BaseException | None, trace: Any) -> None:
        if isinstance(err, TimeoutError):
            raise DeadlineExceeded(f"no answer to {self._op.name.lower()} within {self._timeout:g} s") from err
        if isinstance(err, OSError):
            raise ConnectionLost(f"connection lost in {self._op.name.lower()}: {err.strerror or err}") from err


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


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
    if code == "again":
        return TryAgain(code, message)
    if code == "not_registered":
        return NotRegistered(code, message)
    return Rejected(code, message)
