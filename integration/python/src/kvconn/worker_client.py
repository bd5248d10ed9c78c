"""The client of a rank's worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvconn import messages
from kvconn.engine_memory import EngineMemory
from kvconn.errors import ConnectionLost, KVConnError, Unavailable
from kvconn.frames import Op
from kvconn.link import Options
from kvconn.memory_client import Job, MemoryClient, Registration
from kvconn.messages import FinishedLoad, GroupLayout, PlannedLoad, Polled, SaveResult, StoredPut


class WorkerClient(MemoryClient):
    """One rank's connection to the daemon's worker. For one thread.

    No call raises for the daemon's sake. Every load that was started is reported by `poll` exactly
    once: as the daemon says, or with all its blocks failed where the daemon is gone or keeps no
    deadline, as soon as nothing can be written to its blocks any more. So is every save of `save_later` by `stored`.
    """

    def __init__(self, options: Options, rank: int) -> None:
        super().__init__(options, rank)
        self._loads: dict[str, Job] = {}
        self._failed: list[FinishedLoad] = []
        self._saves: dict[str, Job] = {}
        self._stored: list[StoredPut] = []

    def register_memory(self, memory: EngineMemory, layout: Sequence[GroupLayout]) -> None:
        """Hand the daemon KV memory of any kind, in the background where that takes long.

        Until it has the memory nothing is loaded or saved. `layout` is that of `register`.
        """
        self._register(memory, layout)

    @property
    def busy(self) -> bool:
        """Whether `poll` or `stored` has something to report, now or later."""
        return bool(self._loads or self._failed or self._saves or self._stored)

    def load(self, meta: bytes, loads: Sequence[PlannedLoad]) -> None:
        """Start the loads in meta, which `loads` lists."""
        if loads:
            self._note(self._start(meta) if meta else None, loads)

    def _start(self, meta: bytes) -> Registration | None:
        """Have the daemon start loads, and return the registration that it uses; None where it has not."""
        for _ in range(2):
            conn = self._connected() if self._layout is not None else None
            registration = self._registration()
            if conn is None or registration is None:
                return None
            try:
                with self._numbered(registration) as possible:
                    if not possible:
                        return None
                    self._link.call_on(registration.conn, Op.LOAD, messages.meta(meta), dict)
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
        jobs = (*self._loads.values(), *self._saves.values())
        if registration is not None and any(job.registration is registration for job in jobs):
            done = self._poll_on(registration)
        done += [FinishedLoad(*job) for job in self._abandoned(self._loads)]
        self._stored += [StoredPut(save, 0, 0, 0) for save, _ in self._abandoned(self._saves)]
        done += self._failed
        self._failed = []
        return done

    def _poll_on(self, registration: Registration) -> list[FinishedLoad]:
        done: list[FinishedLoad] = []
        try:
            told: Polled = self._link.call(Op.POLL, {}, messages.polled)
            # Only what this client waits for: an engine dies of a report it does not expect.
            done += [ended for ended in told.finished if _take(self._loads, ended.request, registration)]
            self._stored += [ended for ended in told.stored if _take(self._saves, ended.request, registration)]
        except Unavailable:
            pass  # the link has said so, and the loads in flight are abandoned
        except KVConnError as err:
            self._options.logger.warning("kvconn: %s", err)
        return done

    def save(self, meta: bytes) -> SaveResult:
        """Copy the blocks that meta saves out of engine memory; then the engine may overwrite them."""
        registration = self._registration()
        if not meta or registration is None:
            return SaveResult()
        try:
            with self._numbered(registration) as possible:
                if not possible:
                    return SaveResult()
                return self._link.call_on(registration.conn, Op.SAVE, messages.meta(meta), messages.save_result)
        except Unavailable:
            return SaveResult()  # the link has said so
        except KVConnError as err:
            self._options.logger.warning("kvconn: save dropped: %s", err)
            return SaveResult()

    def save_later(self, save: str, meta: bytes) -> None:
        """Save the blocks that meta saves, and don't wait for it: `stored` reports it as `save`, once.

        Until then the engine keeps the blocks as they are, or takes them back with `revoke`. Memory that is no
        device's is copied before this returns, and reported all the same. Raises ValueError for an empty id, and
        for one that is in flight.
        """
        if not save or save in self._saves:
            raise ValueError(f"save {save!r} is in flight, or has no name")
        revoked = self._ledger.count
        registration = self._registration()
        if not meta or registration is None:
            self._stored.append(StoredPut(save, 0, 0, 0))
            return
        body = messages.save_later(save, meta, revoked)
        result: SaveResult | None = SaveResult()
        try:
            with self._numbered(registration) as possible:
                if possible:
                    result = self._link.call_on(registration.conn, Op.SAVE, body, messages.save_reply)
        except Unavailable:
            result = None  # it may have started: it has ended once the memory is released
        except KVConnError as err:
            self._options.logger.warning("kvconn: save dropped: %s", err)
        if result is None:
            self._saves[save] = self._job(registration, ())
        else:
            self._stored.append(StoredPut(save, *result))

    def stored(self) -> list[StoredPut]:
        """Return the saves of `save_later` that had ended at the last `poll`.

        Those of a daemon that is gone count no blocks.
        """
        stored, self._stored = self._stored, []
        return stored

    def revoke(self, blocks: Iterable[int]) -> None:
        """Take blocks back from all saves of `save_later`: those with these numbers, of whichever layer group.

        When it returns they may be overwritten: nothing is kept that was copied from them later. It waits for
        nobody. The saves are still reported. For any thread.
        """
        self._ledger.revoke(blocks)


def _take(jobs: dict[str, Job], key: str, registration: Registration) -> bool:
    """Forget a job of a registration, and return whether it was there."""
    job = jobs.get(key)
    if job is None or job.registration is not registration:
        return False
    del jobs[key]
    return True
