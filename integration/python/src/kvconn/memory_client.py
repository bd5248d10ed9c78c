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
from kvconn.errors import ConnectionLost, DeadlineExceeded, KVConnError
from kvconn.fence import FencePage
from kvconn.frames import VERSIONS, Op
from kvconn.link import Link, Options
from kvconn.messages import GroupLayout

_RELEASE_INTERVAL_S = 0.001
"""How often a fenced page is looked at where somebody waits. Copies take far less."""

K = TypeVar("K")


class Registration:
    """Engine memory in the daemon's hands, by the connection `conn`, and the page to take it back with."""

    def __init__(self, conn: Connection, page: FencePage) -> None:
        self.conn = conn
        self._page = page
        self._lock = threading.Lock()
        self._released = False

    @property
    def fenced(self) -> bool:
        """Whether the memory was taken back."""
        return self._page.fenced

    def release(self) -> bool:
        """Fence, and return whether nothing is written to the memory any more; then it stays so.

        That is at once, unless a copy is under way. Then it is when the copy has ended; or when the
        daemon's end of the socket has closed, if it was killed in the middle: its count stays, but
        a process's sockets close only after its threads have ended.
        """
        with self._lock:
            if not self._released:
                self._page.fence()
                if self._page.idle() or self.conn.ended():
                    self.conn.close()
                    self._page.close()
                    self._released = True
            return self._released

    def release_within(self, seconds: float) -> bool:
        """Fence, and wait for what `release` returns, at most that long."""
        until = time.monotonic() + seconds
        while not self.release():
            if time.monotonic() >= until:
                return False
            time.sleep(_RELEASE_INTERVAL_S)
        return True


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
        self._lock = threading.Lock()  # guards what follows
        self._layout: dict[str, Any] | None = None
        self._fds: tuple[int, ...] = ()
        self._registrations: dict[Connection, Registration] = {}

    def register(self, fds: Sequence[int], layout: Sequence[GroupLayout]) -> bool:
        """Hand the daemon the engine's KV memory, now and on every new connection.

        `fds` are the regions that the runs of the layout name, which has an entry for each layer
        group of the manifest. The descriptors must stay open. Returns whether the daemon has taken
        the memory by now; where it is absent, attempts go on in the background.
        """
        with self._lock:
            self._layout = messages.register(layout)
            self._fds = tuple(fds)
        # A connection from before knows of other memory, or of none: take a new one.
        self._link.drop()
        return self._link.connect() is not None

    def unregister(self, timeout: float) -> bool:
        """Take the memory back, and neither load nor save until it is registered again.

        Returns whether nothing is written to it any more. That is so at once, except where the
        daemon stands still in the middle of a copy, which is waited for at most `timeout` seconds.
        Loads in flight are reported as failed.
        """
        with self._lock:
            self._layout = None
        conn = self._link.connection
        if conn is not None and self._registration() is not None:
            # Confirmed or not: the fence holds.
            with contextlib.suppress(KVConnError):
                self._link.call_on(conn, Op.UNREGISTER, {}, dict)
        until = time.monotonic() + timeout
        with self._lock:
            given_up = list(self._registrations.values())
        released = [r.release_within(until - time.monotonic()) for r in given_up]
        self._link.drop()
        return all(released)

    def _register_on(self, conn: Connection) -> None:
        with self._lock:
            layout, fds = self._layout, self._fds
        if layout is None:
            return
        page = FencePage()
        try:
            conn.call(Op.REGISTER, layout, self._options.timeout, (*fds, page.fd))
            with self._lock:
                if layout is not self._layout:
                    raise ConnectionLost("the memory was taken back meanwhile")
                self._registrations[conn] = Registration(conn, page)
        except BaseException:
            page.fence()
            page.close()
            raise
        self._forget_released()

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
        self._link.close()
