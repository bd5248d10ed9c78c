"""The client of a rank's worker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvconn import messages
from kvconn.connection import Connection
from kvconn.errors import ConnectionLost, DeadlineExceeded, KVConnError, Unavailable
from kvconn.fence import FencePage
from kvconn.frames import Op
from kvconn.link import Link, Options
from kvconn.messages import FinishedLoad, GroupLayout, KeyedBlocks, PlannedLoad, SaveResult

_RELEASE_INTERVAL_S = 0.001
"""How often a fenced page is looked at where somebody waits. Copies take far less."""


class _Registration:
    """Engine memory in the daemon's hands, by one connection, and the page to take it back with."""

    def __init__(self, conn: Connection, page: FencePage) -> None:
        self._conn = conn
        self._page = page
        self._lock = threading.Lock()
        self._released = False

    @property
    def fenced(self) -> bool:
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
                if self._page.idle() or self._conn.ended():
                    self._conn.close()
                    self._page.close()
                    self._released = True
            return self._released

    def release_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.release():
            if time.monotonic() >= until:
                return False
            time.sleep(_RELEASE_INTERVAL_S)
        return True


@dataclass
class _Load:
    registration: _Registration
    blocks: list[int]
    overdue_at: float


class WorkerClient:
    """One rank's connection to the daemon's worker. For one thread.

    No call raises for the daemon's sake. Every load that was started is reported by `poll` exactly
    once: as the daemon says, or with all its blocks failed where the daemon is gone or keeps no
    deadline, as soon as nothing can be written to its blocks any more.
    """

    def __init__(self, options: Options, rank: int) -> None:
        self._options = options
        self._link = Link(options, "worker", rank, on_connect=self._register_on, on_lost=self._lost)
        self._loads: dict[str, _Load] = {}
        self._failed: list[FinishedLoad] = []
        self._lock = threading.Lock()  # guards what follows
        self._layout: dict[str, Any] | None = None
        self._fds: tuple[int, ...] = ()
        self._registrations: dict[Connection, _Registration] = {}

    @property
    def busy(self) -> bool:
        """Whether `poll` has something to report, now or later."""
        return bool(self._loads or self._failed)

    # Engine memory.

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
                self._registrations[conn] = _Registration(conn, page)
        except BaseException:
            page.fence()
            page.close()
            raise
        self._forget_released()

    def _registration(self) -> _Registration | None:
        """Return the registration in force."""
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

    # Loads.

    def load(self, meta: bytes, loads: Sequence[PlannedLoad]) -> None:
        """Start the loads in meta, which `loads` lists."""
        if loads:
            self._note(self._start(Op.LOAD, messages.meta(meta)) if meta else None, loads)

    def fetch(self, request: str, blocks: KeyedBlocks) -> None:
        """Load blocks by the engine's own keys into their slots; `poll` reports it under `request`."""
        registration = self._start(Op.FETCH, messages.keyed(request, blocks))
        self._note(registration, [PlannedLoad(request, list(blocks.slots))])

    def _start(self, op: Op, body: dict[str, Any]) -> _Registration | None:
        """Have the daemon start loads, and return the registration that it uses; None where it has not."""
        for _ in range(2):
            conn = self._link.connect() if self._layout is not None else None
            registration = self._registration()
            if conn is None or registration is None:
                return None
            try:
                self._link.call_on(conn, op, body, dict)
            except ConnectionLost:
                if registration.release():
                    continue  # nothing runs any more: start over
            except Unavailable:
                pass  # it may have started: it has failed once the memory is released
            except KVConnError as err:
                self._options.logger.warning("kvconn: load not started: %s", err)
                return None
            return registration
        return None

    def _note(self, registration: _Registration | None, loads: Sequence[PlannedLoad]) -> None:
        overdue_at = time.monotonic() + self._link.load_timeout + self._options.timeout
        for request, blocks in loads:
            if registration is None:
                self._failed.append(FinishedLoad(request, list(blocks)))
            else:
                self._loads[request] = _Load(registration, list(blocks), overdue_at)

    def cancel(self, request: str, timeout: float) -> bool:
        """End a request's load, so that `poll` does not report it.

        Returns whether nothing is written to its blocks any more. That is so at once, except where
        the daemon stands still in the middle of a copy, which is waited for at most `timeout`
        seconds: then the blocks must be kept until `poll` reports the load as failed.
        """
        self._failed = [f for f in self._failed if f.request != request]
        load = self._loads.get(request)
        if load is None:
            return True
        if not self._cancelled(request, load) and not load.registration.release_within(timeout):
            return False
        del self._loads[request]
        return True

    def _cancelled(self, request: str, load: _Load) -> bool:
        conn = self._link.connection
        if conn is None or load.registration is not self._registration():
            return False
        try:
            self._link.call_on(conn, Op.CANCEL, messages.cancel(request), dict)
        except KVConnError as err:
            self._link.give_up(conn, err)  # a daemon that cannot cancel: the fence can
            return False
        return True

    def poll(self) -> list[FinishedLoad]:
        """Return the loads that have ended since the last call. Costs nothing unless `busy`."""
        done: list[FinishedLoad] = []
        registration = self._registration()
        if registration is not None and any(load.registration is registration for load in self._loads.values()):
            done = self._poll_on(registration)
        done += self._abandoned()
        done += self._failed
        self._failed = []
        return done

    def _poll_on(self, registration: _Registration) -> list[FinishedLoad]:
        done: list[FinishedLoad] = []
        try:
            for ended in self._link.call(Op.POLL, {}, messages.finished):
                # Only what this client waits for: an engine dies of a report it does not expect.
                load = self._loads.get(ended.request)
                if load is not None and load.registration is registration:
                    del self._loads[ended.request]
                    done.append(ended)
        except Unavailable:
            pass  # the link has said so, and the loads in flight are abandoned
        except KVConnError as err:
            self._options.logger.warning("kvconn: %s", err)
        return done

    def _abandoned(self) -> list[FinishedLoad]:
        """Loads that will not be reported any more, once nothing is written to their blocks."""
        now = time.monotonic()
        ended: list[FinishedLoad] = []
        current, conn = self._registration(), self._link.connection
        for request, load in list(self._loads.items()):
            if load.registration is current and conn is not None:
                if now < load.overdue_at:
                    continue
                message = f"load of {request} not ended within {self._link.load_timeout:g} s"
                self._link.give_up(conn, DeadlineExceeded(message))
                current = None
            if load.registration.release():
                del self._loads[request]
                ended.append(FinishedLoad(request, load.blocks))
        return ended

    # Saves and presence.

    def save(self, meta: bytes) -> SaveResult:
        """Copy the blocks that meta saves out of engine memory; then the engine may overwrite them."""
        return self._save(Op.SAVE, messages.meta(meta)) if meta else SaveResult()

    def put(self, blocks: KeyedBlocks) -> SaveResult:
        """Save blocks by the engine's own keys, otherwise like `save`."""
        return self._save(Op.PUT, messages.keyed("", blocks))

    def _save(self, op: Op, body: dict[str, Any]) -> SaveResult:
        if self._registration() is None:
            return SaveResult()
        try:
            return self._link.call(op, body, messages.save_result)
        except Unavailable:
            return SaveResult()  # the link has said so
        except KVConnError as err:
            self._options.logger.warning("kvconn: save dropped: %s", err)
            return SaveResult()

    def present(self, blocks: KeyedBlocks) -> int:
        """Return how many leading blocks are stored with all that this rank needs."""
        try:
            return min(self._link.call(Op.PRESENT, messages.keyed("", blocks), messages.count), len(blocks.hashes))
        except KVConnError as err:
            self._options.logger.debug("kvconn: no look-up: %s", err)
            return 0

    def close(self) -> None:
        """Take the memory back and end the connection."""
        with self._lock:
            self._layout = None
        self._link.close()
