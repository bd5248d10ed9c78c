"""What the clients of a rank share: engine memory in the daemon's hands, and jobs on it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvconn import messages
from kvconn.connection import Connection
from kvconn.engine_memory import Calls, EngineMemory, EngineMemoryError, NotAnnounced, SharedFiles
from kvconn.errors import ConnectionLost, DeadlineExceeded, KVConnError, Unavailable
from kvconn.fence import FencePage
from kvconn.frames import VERSIONS, Op
from kvconn.ledger import Ledger
from kvconn.link import Link, Options
from kvconn.messages import GroupLayout

_RELEASE_INTERVAL_S = 0.001
"""How often a fenced page is looked at where somebody waits. Copies take far less."""

K = TypeVar("K")


class Registration:
    """Engine memory in the daemon's hands, by the connection `conn`, and the page to take it back with.

    `calls` are the numbers that the memory's device writes to the page, None where there is no device.
    """

    def __init__(self, conn: Connection, page: FencePage, ledger: Ledger, calls: Calls | None = None) -> None:
        self.conn = conn
        self.calls = calls
        self._page = page
        self._ledger = ledger
        self._lock = threading.Lock()
        self._released = False

    @property
    def fenced(self) -> bool:
        """Whether the memory was taken back."""
        return self._page.fenced

    def release(self) -> bool:
        """Fence, and return whether nothing is written to the memory any more; then it stays so.

        That is at once, unless a copy is under way. Then the daemon is told to end the session, and it is when the
        copy has ended; or when the daemon's end of the socket has closed, as it does after its last copy and, if
        the daemon was killed in the middle, when its threads have ended: then the count stays.
        """
        with self._lock:
            if not self._released:
                self._page.fence()
                self._ledger.detach(self._page)
                if self._page.idle() or self.conn.ended():
                    self.conn.close()
                    _end(self._page, self.calls)
                    self._released = True
                else:
                    self.conn.finish()
            return self._released

    def release_within(self, seconds: float) -> bool:
        """Fence, and wait for what `release` returns, at most that long."""
        until = time.monotonic() + seconds
        while not self.release():
            if time.monotonic() >= until:
                return False
            time.sleep(_RELEASE_INTERVAL_S)
        return True


def _end(page: FencePage, calls: Calls | None) -> None:
    """Let go of a page that is fenced."""
    if calls is None:
        page.close()
    else:
        calls.close()


class _Attempt:
    """A registration that is under way. For any thread."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def hang_up(self) -> None:
        """Have it fail."""
        self._conn.hang_up()


@dataclass
class Job:
    """A load, or a save that runs beside the engine, and the slots that it keeps."""

    registration: Registration
    blocks: list[int]
    overdue_at: float


class MemoryClient:
    """A rank's connection to the daemon's worker, and the memory that is registered there.

    For one thread, except where a method says otherwise.
    """

    def __init__(self, options: Options, rank: int, versions: tuple[int, int] = VERSIONS) -> None:
        self._options = options
        self._link = Link(options, "worker", rank, versions, on_connect=self._register_on, on_lost=self._lost)
        self._ledger = Ledger()
        self._lock = threading.Lock()  # guards what follows
        self._layout: dict[str, Any] | None = None
        self._memory: EngineMemory | None = None
        self._registrations: dict[Connection, Registration] = {}
        self._attempt: _Attempt | None = None
        self._registering = threading.Lock()  # held while memory is handed over, which takes long for a device's

    def register(self, fds: Sequence[int], layout: Sequence[GroupLayout]) -> bool:
        """Hand the daemon the engine's KV memory, now and on every new connection.

        `fds` are the regions that the runs of the layout name, which has an entry for each layer
        group of the manifest. The descriptors must stay open. Returns whether the daemon has taken
        the memory by now; where it is absent, attempts go on in the background.
        """
        return self._register(SharedFiles(fds), layout)

    def _register(self, memory: EngineMemory, layout: Sequence[GroupLayout]) -> bool:
        with self._lock:
            self._layout = messages.register(layout)
            self._memory = memory
            attempt = self._attempt
        if attempt is not None:  # it has other memory
            attempt.hang_up()
        # A connection from before knows of other memory, or of none: take a new one.
        self._link.drop()
        return self._connected() is not None

    def _connected(self) -> Connection | None:
        """Return the connection that there is, or that can be had within a call's time."""
        memory = self._memory
        if memory is None or memory.timeout is None:
            return self._link.connect()
        self._link.begin()
        return self._link.connection

    def unregister(self, timeout: float) -> bool:
        """Take the memory back, and neither load nor save until it is registered again.

        Returns whether nothing is written to it any more. That is so at once, except where the
        daemon stands still in the middle of a copy, which is waited for at most `timeout` seconds.
        Loads in flight are reported as failed.
        """
        with self._lock:
            self._layout = None
            attempt = self._attempt
        if attempt is not None:
            attempt.hang_up()
        conn = self._link.connection
        if conn is not None and self._registration() is not None:
            # Confirmed or not: the fence holds.
            with contextlib.suppress(KVConnError):
                self._link.call_on(conn, Op.UNREGISTER, {}, dict)
        conn = self._link.let_go()  # its end is no loss
        until = time.monotonic() + timeout
        with self._lock:
            given_up = list(self._registrations.values())
        released = [r.release_within(until - time.monotonic()) for r in given_up]
        if conn is not None:
            self._lost(conn)
        # Nothing reads the memory for a registration any more.
        handed = self._registering.acquire(timeout=max(0.0, until - time.monotonic()))
        if handed:
            self._registering.release()
        return handed and all(released)

    def _register_on(self, conn: Connection) -> None:
        with self._lock:
            layout, memory = self._layout, self._memory
            if layout is None or memory is None:
                return
            self._attempt = attempt = _Attempt(conn)
        try:
            with self._registering:
                self._hand_over(conn, memory, layout)
        finally:
            with self._lock:
                if self._attempt is attempt:
                    self._attempt = None
        self._forget_released()

    def _hand_over(self, conn: Connection, memory: EngineMemory, layout: dict[str, Any]) -> None:
        """Register memory on a connection, unless it was taken back meanwhile."""
        page = FencePage()
        self._ledger.attach(page)
        calls: Calls | None = None
        try:
            self._still(layout)
            with memory.hand_over() as fds:
                conn.call(Op.REGISTER, layout, memory.timeout or self._options.timeout, (*fds, page.fd))
            # Not before: giving a page back may wait for the device, and the daemon may put the engine off for long.
            calls = memory.calls(page)
            with self._lock:
                self._still(layout)
                self._registrations[conn] = Registration(conn, page, self._ledger, calls)
        except BaseException:
            page.fence()
            self._ledger.detach(page)
            _end(page, calls)
            raise

    def _still(self, layout: dict[str, Any]) -> None:
        if layout is not self._layout:
            raise ConnectionLost("the memory was taken back meanwhile")

    @contextlib.contextmanager
    def _numbered(self, registration: Registration) -> Iterator[bool]:
        """Have the device say when it has come to the call that is made within, and yield whether it can be made.

        Registers again after a call that the daemon may not have counted, whatever kept it from that: its numbers are
        no longer the device's. Raises Unavailable where the device cannot say.
        """
        try:
            yield self._announce(registration)
        except Unavailable:
            raise
        except BaseException as err:
            if registration.calls is not None:
                self._link.give_up(registration.conn, err)
            raise

    def _announce(self, registration: Registration) -> bool:
        if registration.calls is None:
            return True
        try:
            registration.calls.announce()
        except NotAnnounced as err:
            self._options.logger.warning("kvconn: a call is left out: %s", err)
            return False
        except EngineMemoryError as err:
            lost = ConnectionLost(f"the engine's GPU does not say how far it is: {err}")
            self._link.give_up(registration.conn, lost)
            raise lost from err
        return True

    def _registration(self) -> Registration | None:
        """Return the registration in force. For any thread."""
        conn = self._link.connection
        registration = self._registrations.get(conn) if conn is not None else None
        return None if registration is None or registration.fenced else registration

    def _lost(self, conn: Connection) -> None:
        """Take the memory back from a daemon that is gone or does not answer. For any thread."""
        registration = self._registrations.get(conn)
        if registration is None:
            conn.close()
        elif registration.release():
            self._forget_released()
        else:
            self._options.logger.warning(
                "kvconn: kvconnd stands still in the middle of a copy:"
                " what it was loading stays open until it goes on or is killed"
            )

    def _forget_released(self) -> None:
        """Forget the registrations that were given up and are released."""
        with self._lock:
            for conn, registration in list(self._registrations.items()):
                if registration.fenced and registration.release():
                    del self._registrations[conn]

    def _job(self, registration: Registration, blocks: Sequence[int]) -> Job:
        """Return a job that has been started."""
        return Job(registration, list(blocks), time.monotonic() + self._link.load_timeout + self._options.timeout)

    def _abandoned(self, jobs: dict[K, Job]) -> Iterator[tuple[K, list[int]]]:
        """Take out and yield the jobs that will not be reported any more, once nothing touches their slots."""
        now = time.monotonic()
        current = self._registration()
        for key, job in list(jobs.items()):
            if job.registration is current:
                if now < job.overdue_at:
                    continue
                message = f"load or save {key} not ended within {self._link.load_timeout:g} s"
                self._link.give_up(job.registration.conn, DeadlineExceeded(message))
                current = None
            if job.registration.release():
                del jobs[key]
                yield key, job.blocks

    def close(self) -> None:
        """Take the memory back and end the connection."""
        with self._lock:
            self._layout = None
            attempt = self._attempt
        if attempt is not None:
            attempt.hang_up()
        self._link.close()
