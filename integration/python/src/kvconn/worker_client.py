"""The client of a rank's worker."""

from __future__ import annotations

from collections.abc import Sequence

from kvconn import messages
from kvconn.errors import ConnectionLost, KVConnError, Unavailable
from kvconn.frames import Op
from kvconn.link import Options
from kvconn.memory_client import Job, MemoryClient, Registration
from kvconn.messages import FinishedLoad, PlannedLoad, SaveResult


class WorkerClient(MemoryClient):
    """One rank's connection to the daemon's worker. For one thread.

    No call raises for the daemon's sake. Every load that was started is reported by `poll` exactly
    once: as the daemon says, or with all its blocks failed where the daemon is gone or keeps no
    deadline, as soon as nothing can be written to its blocks any more.
    """

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__(options, rank)
        self._loads: dict[str, Job] = {}
        self._failed: list[FinishedLoad] = []

    @property
    def busy(self) -> bool:
        """Whether `poll` has something to report, now or later."""
        return bool(self._loads or self._failed)

    def load(self, meta: bytes, loads: Sequence[PlannedLoad]) -> None:
        """Start the loads in meta, which `loads` lists."""
        if loads:
            self._note(self._start(meta) if meta else None, loads)

    def _start(self, meta: bytes) -> Registration | None:
        """Have the daemon start loads, and return the registration that it uses; None where it has not."""
        for _ in range(2):
            conn = self._link.connect() if self._layout is not None else None
            registration = self._registration()
            if conn is None or registration is None:
                return None
            try:
                self._link.call_on(conn, Op.LOAD, messages.meta(meta), dict)
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

    def _note(self, registration: Registration | None, loads: Sequence[PlannedLoad]) -> None:
        for request, blocks in loads:
            if registration is None:
                self._failed.append(FinishedLoad(request, list(blocks)))
            else:
                self._loads[request] = self._job(registration, blocks)

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

    def _cancelled(self, request: str, load: Job) -> bool:
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
        done += [FinishedLoad(*job) for job in self._abandoned(self._loads)]
        done += self._failed
        self._failed = []
        return done

    def _poll_on(self, registration: Registration) -> list[FinishedLoad]:
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

    def save(self, meta: bytes) -> SaveResult:
        """Copy the blocks that meta saves out of engine memory; then the engine may overwrite them."""
        if not meta or self._registration() is None:
            return SaveResult()
        try:
            return self._link.call(Op.SAVE, messages.meta(meta), messages.save_result)
        except Unavailable:
            return SaveResult()  # the link has said so
        except KVConnError as err:
            self._options.logger.warning("kvconn: save dropped: %s", err)
            return SaveResult()
