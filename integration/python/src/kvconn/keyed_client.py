"""The client of an engine that brings its own keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kvconn import messages
from kvconn.errors import KVConnError, Unavailable
from kvconn.frames import KEYED_VERSIONS, Op
from kvconn.link import Options
from kvconn.memory_client import Job, MemoryClient
from kvconn.messages import FinishedLoad, Part, Polled, StoredPut


class KeyedClient(MemoryClient):
    """A rank's connection to a worker that has a leader too (key scheme `engine`). For one thread.

    No call raises for the daemon's sake, and none but `register` connects: without a daemon nothing
    is offered. Every `fetch` and every `put` is reported by `poll` exactly once: as the daemon says,
    or with all its slots failed or dropped where the daemon is gone or keeps no deadline, as soon as
    nothing touches its slots any more. Until then the engine must not use them for anything else.
    """

    def __init__(self, options: Options, rank: int = 0) -> None:
        super().__init__(options, rank, KEYED_VERSIONS)
        self._jobs: dict[tuple[Op, str], Job] = {}
        self._ended = Polled([], [])
        self._refused: set[Op] = set()

    @property
    def session(self) -> int:
        """Number of the current connection, 0 without one."""
        conn = self._link.connection
        return conn.session if conn is not None else 0

    @property
    def busy(self) -> bool:
        """Whether `poll` has something to report, now or later."""
        return bool(self._jobs or self._ended.finished or self._ended.stored)

    def present(
        self,
        request: str,
        hashes: Sequence[bytes],
        *,
        first: int = 0,
        parent: bytes | None = b"",
        held: int = 0,
        no_load: bool = False,
        trace: str = "",
    ) -> list[bytes]:
        """Ask which blocks of a request can be loaded; repeat it at will.

        `hashes` are those of its blocks from block `first` on, `parent` the hash before them, empty
        at the root, None if it is not known; `held` blocks, from the first of the prompt, are in the engine's own pool.
        `trace` is the request's traceparent, of MAX_TRACE_BYTES at most, for the daemon's log and traces.
        Returns a bitmap for each layer group of the registered layout: bit `i % 8`, from the lowest,
        of byte `i // 8` stands for `hashes[i]`. Raises ValueError for hashes of another length than
        32 bytes.
        """
        body = messages.present(request, hashes, first=first, parent=parent, held=held, no_load=no_load, trace=trace)
        groups = len(self._layout["groups"]) if self._layout is not None else 0
        return messages.offered(self._ask(Op.PRESENT, body, messages.bitmaps), groups, len(hashes))

    def touch(self, request: str, hashes: Sequence[bytes], tokens: int = 0, seconds: float = 0.0) -> None:
        """End a request that used the blocks of these hashes, from the first of the prompt.

        The store keeps them as if they had been loaded now. `tokens` were computed in `seconds` of
        prefill, where that was seen.
        """
        self._ask(Op.TOUCH, messages.touch(request, hashes, tokens, seconds), dict)

    def _ask(self, op: Op, body: dict[str, Any], decode: Any) -> Any:
        """Make a call that is left out without a registration; None where it has no answer."""
        if self._registration() is None:
            return None
        try:
            return self._link.call(op, body, decode)
        except Unavailable:
            return None  # the link has said so
        except KVConnError as err:
            # Once for each call: it is made in every step.
            self._options.logger.log(logging.DEBUG if op in self._refused else logging.WARNING, "kvconn: %s", err)
            self._refused.add(op)
            return None

    def fetch(self, request: str, parts: Sequence[Part], *, of: str = "") -> None:
        """Load blocks into the slots of parts: one load, which `poll` reports under `request`.

        `of` is the request that it is for, where `request` is an id of the load's own. Raises
        ValueError for an id that is in flight, and for a part without a parent, which a daemon of version 4
        would take for one at the root.
        """
        if any(part.parent is None for part in parts):
            raise ValueError("a part without a parent: only a channel loads one")
        self._start(Op.FETCH, request, messages.move(request, parts, of=of), parts)

    def put(self, request: str, parts: Sequence[Part], salt: str = "", lora: str = "") -> None:
        """Save the blocks in the slots of parts: one save, which `poll` reports under `request`.

        `salt` and `lora` are kept with the blocks, to list and clear them by. Raises ValueError for an
        id that is in flight.
        """
        self._start(Op.PUT, request, messages.move(request, parts, salt=salt, lora=lora), parts)

    def _start(self, op: Op, request: str, body: dict[str, Any], parts: Sequence[Part]) -> None:
        if (op, request) in self._jobs:
            raise ValueError(f"{op.name.lower()} {request} is in flight")
        slots = [slot for part in parts for slot in part.slots]
        registration = self._registration()
        if registration is None:
            self._end(op, request, slots)
            return
        try:
            # Not on whatever connection there is by now: the daemon would have to be one with this memory.
            self._link.call_on(registration.conn, op, body, dict)
        except Unavailable:
            pass  # it may have started: it has failed once the memory is released
        except KVConnError as err:
            self._options.logger.warning("kvconn: %s not started: %s", op.name.lower(), err)
            self._end(op, request, slots)
            return
        self._jobs[op, request] = self._job(registration, slots)

    def _end(self, op: Op, request: str, slots: list[int]) -> None:
        """Have poll report a job that did not get anywhere."""
        if op == Op.FETCH:
            self._ended.finished.append(FinishedLoad(request, slots))
        else:
            self._ended.stored.append(StoredPut(request, 0, len(slots), 0))

    def poll(self) -> Polled:
        """Return the loads and the saves that have ended since the last call. Costs nothing unless `busy`."""
        registration = self._registration()
        if registration is not None and any(job.registration is registration for job in self._jobs.values()):
            told = self._ask(Op.POLL, {}, messages.polled) or Polled([], [])
            # Only what this client waits for: an engine dies of a report it does not expect.
            self._ended.finished.extend(f for f in told.finished if self._jobs.pop((Op.FETCH, f.request), None))
            self._ended.stored.extend(s for s in told.stored if self._jobs.pop((Op.PUT, s.request), None))
        for (op, request), slots in self._abandoned(self._jobs):
            self._end(op, request, slots)
        ended, self._ended = self._ended, Polled([], [])
        return ended
