"""A connection that comes back by itself."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvconn import __version__, frames, messages
from kvconn.connection import MAX_SOCKET_PATH_BYTES, Connection
from kvconn.engine_memory import EngineMemoryError
from kvconn.errors import (
    ConnectionLost,
    DeadlineExceeded,
    ProtocolError,
    Rejected,
    SocketMissing,
    SocketRefused,
    TryAgain,
    Unavailable,
    VersionMismatch,
)
from kvconn.frames import MAX_ID_BYTES, VERSIONS, Op

MAX_MANIFEST_BYTES = 64 << 10
MAX_LOAD_TIMEOUT_S = 600.0
_HOPELESS_RETRY_FACTOR = 30
_WATCH_S = 1.0
_HUNG_TIMEOUTS = 9
"""Call timeouts that a daemon which does not answer is left alone: a tenth of the engine's time is what it may cost."""
_ABSENT = (ConnectionLost, DeadlineExceeded, SocketMissing, SocketRefused)

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How to reach the daemon, and who connects.

    Times are in seconds. `timeout` bounds each call: calls take microseconds, and an engine
    that waits longer than a second for a cache is better off without. `retry_interval` is the
    least time between two attempts to connect.
    """

    socket: str
    engine: str
    manifest: bytes | Callable[[], bytes | None]
    """The namespace manifest; or a function that returns it, None while it is not known: the link waits for it."""
    client: str = f"kvconn-python/{__version__}"
    timeout: float = 1.0
    retry_interval: float = 1.0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("kvconn"))
    absent_level: int = logging.WARNING
    """Level of the line that says that the daemon cannot be used."""

    def __post_init__(self) -> None:
        size = len(self.socket.encode())
        if not 0 < size <= MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"socket path {self.socket!r} has {size} bytes, want 1 to {MAX_SOCKET_PATH_BYTES}")
        if not 0 < len(self.engine.encode()) <= MAX_ID_BYTES:
            raise ValueError(f"engine id {self.engine!r}: want 1 to {MAX_ID_BYTES} bytes")
        if isinstance(self.manifest, bytes):
            _check_manifest(self.manifest)
        if not (0 < self.timeout <= MAX_LOAD_TIMEOUT_S and 0 < self.retry_interval <= MAX_LOAD_TIMEOUT_S):
            raise ValueError(f"timeout and retry_interval must be positive, and at most {MAX_LOAD_TIMEOUT_S:g} s")


def _client(options: Options) -> str:
    """Return the client's name with its host and process, which a daemon in another container cannot see."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    name = f"{options.client} host/{host} pid/{os.getpid()}"
    return name if len(name.encode()) <= MAX_ID_BYTES else options.client


def _check_manifest(manifest: bytes) -> None:
    if not 0 < len(manifest) <= MAX_MANIFEST_BYTES:
        raise ValueError(f"manifest of {len(manifest)} bytes, want 1 to {MAX_MANIFEST_BYTES}")


class Link:
    """Holds at most one connection that has said hello.

    One thread, the engine's, makes calls and never waits for a daemon that is not there: while
    there is no connection, calls fail at once. A thread of the link's own sees the daemon go, also
    while nobody calls, and connects again, no more often than every `retry_interval`. `on_connect`
    runs on each new connection before the first call, and `on_lost` takes over a connection that
    said hello and is given up, and closes it; both maybe in that thread. Connections are numbered
    by their `session`: what the daemon was told in one session it does not know in the next.
    """

    def __init__(
        self,
        options: Options,
        role: str,
        rank: int = 0,
        versions: tuple[int, int] = VERSIONS,
        on_connect: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] = Connection.close,
    ) -> None:
        self.load_timeout = options.timeout
        self._options = options
        self._role, self._rank, self._versions = role, rank, versions
        self._on_connect = on_connect
        self._on_lost = on_lost
        self._lock = threading.Lock()  # guards what follows; never held across I/O
        self._conn: Connection | None = None
        self._sessions = 0
        self._watcher: threading.Thread | None = None
        self._not_before = 0.0
        self._again_factor = 1
        """Retry intervals to wait after the next answer that asks to try again."""
        self._hung_until = -math.inf
        self._complaints: set[str] = set()
        self._stop = threading.Event()

    @property
    def connection(self) -> Connection | None:
        """The usable connection, if any."""
        return self._conn

    def call(self, op: Op, body: dict[str, Any], decode: Callable[[dict[str, Any]], T]) -> T:
        """Make one request on whatever connection there is, and decode its answer.

        Raises Unavailable, RequestTooLarge or Rejected.
        """
        conn = self._conn
        if conn is None:
            raise Unavailable("kvconnd is not connected")
        return self.call_on(conn, op, body, decode)

    def call_on(self, conn: Connection, op: Op, body: dict[str, Any], decode: Callable[[dict[str, Any]], T]) -> T:
        """Make one request on a connection, and give the connection up where it fails."""
        try:
            return decode(conn.call(op, body, self._options.timeout))
        except Unavailable as err:
            self.give_up(conn, err)
            raise

    def post_on(self, conn: Connection, op: Op, body: dict[str, Any]) -> None:
        """Post one request on a connection, and give the connection up where that fails."""
        try:
            conn.post(op, body, self._options.timeout)
        except Unavailable as err:
            self.give_up(conn, err)
            raise

    def give_up(self, conn: Connection, err: BaseException) -> None:
        """Give a connection up, because of err. For the thread that makes calls on it."""
        # Once may be the machine's doing. A daemon that says hello and lets each call wait costs too much.
        again = time.monotonic() < self._hung_until + _HUNG_TIMEOUTS * self._options.timeout
        self._note_silence(err)
        if again and isinstance(err, DeadlineExceeded):
            self._not_before = max(self._not_before, self._hung_until)
        # First: the other thread would say of a connection that is closed that the daemon is gone.
        detached = self._detach(conn)
        self._on_lost(conn)
        if detached:
            self._complain(err)

    def drop(self) -> None:
        """Give up the connection, if there is one, because it is no longer needed."""
        conn = self._conn
        if conn is not None and self._detach(conn):
            self._on_lost(conn)

    def let_go(self) -> Connection | None:
        """Take the connection out of use, if there is one, and return it: the caller ends it."""
        conn = self._conn
        return conn if conn is not None and self._detach(conn) else None

    def connect(self) -> Connection | None:
        """Connect now, within the call timeout, unless there is a connection or the daemon was silent lately.

        Returns the connection, or None: then attempts go on in the background.
        """
        if self._conn is None and not self._stop.is_set() and time.monotonic() >= self._hung_until:
            self._attempt()
        self.begin()
        return self._conn

    def begin(self) -> None:
        """Connect in the background, now and whenever the connection is lost."""
        with self._lock:
            if self._watcher is None and not self._stop.is_set():
                self._watcher = threading.Thread(target=self._watch, name="kvconn-watch", daemon=True)
                self._watcher.start()

    def close(self) -> None:
        """Close the connection and stop trying."""
        self._stop.set()
        with self._lock:
            conn, self._conn = self._conn, None
            watcher = self._watcher
        if conn is not None:
            self._on_lost(conn)
        if watcher is not None:
            watcher.join(self._options.timeout)

    def _attempt(self) -> None:
        """Connect, say hello, and publish the connection; or say why not."""
        self._not_before = time.monotonic() + self._options.retry_interval
        conn: Connection | None = None
        try:
            hello = self._hello()
            if hello is None:
                return
            conn = Connection.open(self._options.socket, self._options.timeout)
            server = self._say_hello(conn, hello)
            if self._on_connect is not None:
                self._on_connect(conn)
        except Exception as err:  # noqa: BLE001 - whatever it is, the engine goes on without cache
            if conn is not None:
                self._on_lost(conn)
            self._note_silence(err)
            # Of these, only TryAgain is likely to pass by itself, and the longer it lasts the less so.
            if isinstance(err, VersionMismatch | Rejected | EngineMemoryError):
                factor = _HOPELESS_RETRY_FACTOR
                if isinstance(err, TryAgain):
                    factor = min(self._again_factor, factor)
                    self._again_factor = 2 * factor
                self._not_before += (factor - 1) * self._options.retry_interval
            self._complain(err)
            return
        if not self._publish(conn):
            self._on_lost(conn)
            return
        self._again_factor = 1
        with self._lock:
            back, self._complaints = bool(self._complaints), set()
        self._options.logger.info(
            "kvconn: %s at %s %s", server, self._options.socket, "is back" if back else "is connected"
        )

    def _publish(self, conn: Connection) -> bool:
        with self._lock:
            if self._stop.is_set() or self._conn is not None:
                return False
            self._sessions += 1
            conn.session = self._sessions
            self._conn = conn
            return True

    def _hello(self) -> dict[str, Any] | None:
        """Return what to say to the daemon, None while the manifest is not known."""
        o = self._options
        manifest = o.manifest if isinstance(o.manifest, bytes) else o.manifest()
        if manifest is None:
            return None
        _check_manifest(manifest)
        return messages.hello(self._role, _client(o), o.engine, manifest, self._rank, versions=self._versions)

    def _say_hello(self, conn: Connection, hello: dict[str, Any]) -> str:
        try:
            reply = conn.call(Op.HELLO, hello, self._options.timeout)
        except ConnectionLost as err:
            raise ConnectionLost(f"{err} at hello: it accepts its own user and root only") from err
        version = frames.field(reply, "version", int)
        if not self._versions[0] <= version <= self._versions[1]:
            raise VersionMismatch(f"kvconnd chose protocol version {version}, this client speaks {self._versions}")
        timeout_s = frames.field(reply, "load_timeout_ms", int) / 1000
        if not 0 < timeout_s <= MAX_LOAD_TIMEOUT_S:
            raise ProtocolError(f"load_timeout_ms {timeout_s * 1000:g}: want 1 to {MAX_LOAD_TIMEOUT_S * 1000:g}")
        self.load_timeout = timeout_s
        conn.token = frames.field(reply, "session", bytes)
        return frames.field(reply, "server", str) or "kvconnd"

    def open_channel(self, conn: Connection) -> Connection:
        """Open a channel of the session of conn, which has said hello. Raises Unavailable."""
        o = self._options
        if not conn.token:
            raise ProtocolError("kvconnd has not named the session")
        hello = messages.hello(
            "channel", _client(o), o.engine, b"", self._rank, versions=self._versions, session=conn.token
        )
        channel = Connection.open(o.socket, o.timeout)
        try:
            channel.call(Op.HELLO, hello, o.timeout)
        except Rejected as err:
            # The daemon was restarted in between, or the session has ended: that passes.
            channel.close()
            raise ConnectionLost(str(err)) from err
        except BaseException:
            channel.close()
            raise
        return channel

    def _detach(self, conn: Connection) -> bool:
        """Take a connection out of use, and return whether it was in use."""
        with self._lock:
            if self._conn is not conn:
                return False
            self._conn = None
            return True

    def _note_silence(self, err: BaseException) -> None:
        if isinstance(err, DeadlineExceeded):
            self._hung_until = time.monotonic() + _HUNG_TIMEOUTS * self._options.timeout

    def _complain(self, err: BaseException) -> None:
        """Say that the daemon cannot be used: once for each kind of reason until it is back."""
        kind = "absent" if isinstance(err, _ABSENT) else type(err).__name__
        with self._lock:
            if kind in self._complaints or self._stop.is_set():
                return
            self._complaints.add(kind)
        self._options.logger.log(
            self._options.absent_level, "kvconn: %s. The engine goes on without the cache until it is back.", err
        )

    def _watch(self) -> None:
        """See the daemon go, and connect again."""
        while not self._stop.is_set():
            conn = self._conn
            if conn is None:
                if not self._stop.wait(max(0.0, self._not_before - time.monotonic())):
                    self._attempt()
            elif conn.hung_up_within(_WATCH_S) and self._detach(conn):
                with conn.between_calls():  # one that is running ends at once
                    self._on_lost(conn)
                self._complain(ConnectionLost(f"kvconnd at {self._options.socket} is gone"))
