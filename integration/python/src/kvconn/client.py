"""Clients of kvconnd for an engine's scheduler and workers (docs/protocol.md).

`SchedulerClient` raises where the daemon cannot answer. `WorkerClient` never does, for a load
once started must be reported to the engine whatever happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kvconn import frames
from kvconn.connection import Connection
from kvconn.errors import (
    ConnectionLost,
    DeadlineExceeded,
    KVConnError,
    NotRegistered,
    ProtocolError,
    Rejected,
    RequestTooLarge,
    SocketMissing,
    SocketPermission,
    SocketRefused,
    Unavailable,
    UnknownRequest,
    VersionMismatch,
)
from kvconn.frames import Op, pack_u32s, unpack_u32s
from kvconn.link import Link, Options

__all__ = [
    "Alloc",
    "ConnectionLost",
    "DeadlineExceeded",
    "FinishedLoad",
    "KVConnError",
    "NotRegistered",
    "Offer",
    "Options",
    "PlannedLoad",
    "ProtocolError",
    "Rejected",
    "RequestTooLarge",
    "Run",
    "SaveResult",
    "Scheduled",
    "SchedulerClient",
    "SocketMissing",
    "SocketPermission",
    "SocketRefused",
    "Step",
    "StepReply",
    "Unavailable",
    "UnknownRequest",
    "VersionMismatch",
    "WorkerClient",
]

T = TypeVar("T")


class Offer(NamedTuple):
    """What the leader promises beyond what the engine holds."""

    tokens: int
    asynchronous: bool


class Alloc(NamedTuple):
    """The engine allocated the block table `blocks` and wants `external` tokens behind `computed` loaded."""

    request: str
    blocks: Sequence[int]
    computed: int
    external: int


@dataclass(frozen=True)
class Scheduled:
    """`count` tokens of a request are computed in this step behind `computed`.

    `blocks` extends the request's block table, or replaces it with `reset`; `tokens` are those
    the leader was not told yet, `start` the index of the first.
    """

    request: str
    blocks: Sequence[int]
    reset: bool
    computed: int
    count: int
    tokens: Sequence[int]
    start: int = 0


@dataclass
class Step:
    """One iteration of the engine's scheduler."""

    allocs: list[Alloc] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.allocs or self.scheduled or self.preempted or self.finished)


class PlannedLoad(NamedTuple):
    """The engine's blocks that a request's load will fill."""

    request: str
    blocks: list[int]


class StepReply(NamedTuple):
    """The leader's plan: `meta`, opaque, is for every rank's worker; `loads` says what it loads."""

    meta: bytes
    loads: list[PlannedLoad]


class FinishedLoad(NamedTuple):
    """A load that has ended; the bytes of `failed_blocks` must not be used."""

    request: str
    failed_blocks: list[int]


class SaveResult(NamedTuple):
    """How many blocks a save copied out of engine memory, and how many it dropped."""

    taken: int
    dropped: int


class Run(NamedTuple):
    """Equally shaped pieces of a block, see docs/protocol.md; bytes except `region` and `layers`."""

    region: int
    offset: int
    layers: int
    layer_stride: int
    block_stride: int
    size: int


class SchedulerClient:
    """The scheduler's connection to the leader. For one thread.

    Every call raises Unavailable while there is no daemon, at once and without waiting, and the
    connection is re-established in the background.
    """

    def __init__(self, options: Options) -> None:
        self._link = Link(options, {"role": "scheduler"})

    @property
    def session(self) -> int:
        """Number of the current connection, 0 without one.

        What was told in another session the leader does not know.
        """
        conn = self._link.connection
        return conn.session if conn is not None else 0

    def connect(self) -> bool:
        """Connect now, within the call timeout. Without success attempts go on in the background."""
        return self._link.connect() is not None

    def match(
        self,
        request: str,
        tokens: Sequence[int],
        *,
        start: int = 0,
        computed: int = 0,
        salt: str = "",
        lora: str = "",
        no_load: bool = False,
        no_save: bool = False,
    ) -> Offer:
        """Ask what can be loaded for a request. Repeat it at will.

        `start` is the index of `tokens[0]` in the request's tokens: above 0 only where the leader
        was told what comes before in this session, otherwise UnknownRequest is raised.
        """
        body: dict[str, Any] = {
            "r": request,
            "from": start,
            "tokens": pack_u32s(tokens),
            "computed": computed,
        }
        body.update(
            (key, value)
            for key, value in (("salt", salt), ("lora", lora), ("no_load", no_load), ("no_save", no_save))
            if value
        )
        return self._link.call(Op.MATCH, body, _offer)

    def step(self, step: Step, session: int) -> StepReply:
        """Tell the leader of a scheduler iteration, whose requests it was told of in `session`."""
        body = {
            "allocs": [
                {
                    "r": a.request,
                    "blocks": pack_u32s(a.blocks),
                    "computed": a.computed,
                    "external": a.external,
                }
                for a in step.allocs
            ],
            "scheduled": [
                {
                    "r": s.request,
                    "blocks": pack_u32s(s.blocks),
                    "reset": s.reset,
                    "computed": s.computed,
                    "count": s.count,
                    "from": s.start,
                    "tokens": pack_u32s(s.tokens),
                }
                for s in step.scheduled
            ],
            "preempted": step.preempted,
            "finished": step.finished,
        }
        return self._call_in(session, Op.STEP, body, _step_reply)

    def loaded(self, done: Iterable[str], invalid: Iterable[int], session: int) -> None:
        """Report what came of loads, all ranks together, that were planned in `session`."""
        self._call_in(session, Op.LOADED, {"done": list(done), "invalid": pack_u32s(invalid)}, dict)

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _call_in(self, session: int, op: Op, body: dict[str, Any], decode: Callable[[dict[str, Any]], T]) -> T:
        conn = self._link.connection
        if conn is None or conn.session != session:
            raise Unavailable("the leader of that session is gone")
        return self._link.call_on(conn, op, body, decode)


@dataclass
class _Load:
    conn: Connection
    blocks: list[int]
    overdue_at: float


class WorkerClient:
    """One rank's connection to the daemon's worker. For one thread.

    No call raises for the daemon's sake. Every load that `load` was given is reported by `poll`
    exactly once: as the daemon says, or with all its blocks failed where the daemon is gone or
    keeps no deadline.
    """

    def __init__(self, options: Options, shard: int) -> None:
        self._options = options
        self._link = Link(options, {"role": "worker", "shard": shard}, on_connect=self._register_on)
        self._layout: dict[str, Any] | None = None
        self._fds: tuple[int, ...] = ()
        self._loads: dict[str, _Load] = {}
        self._failed: list[FinishedLoad] = []

    @property
    def busy(self) -> bool:
        """Whether `poll` has something to report, now or later."""
        return bool(self._loads or self._failed)

    def register(self, fds: Sequence[int], blocks: int, runs: Sequence[Run]) -> bool:
        """Hand the daemon the engine's KV memory, now and on every new connection.

        The descriptors must stay open. Returns whether the daemon has taken it by now; where it
        is absent, attempts go on in the background.
        """
        self._layout = {"blocks": blocks, "runs": [list(run) for run in runs]}
        self._fds = tuple(fds)
        conn = self._link.connection
        if conn is not None:
            # A connection from before knows of no memory: take a new one.
            self._link.give_up(conn, ConnectionLost("registering other memory"))
        return self._link.connect() is not None

    def load(self, meta: bytes, loads: Sequence[PlannedLoad]) -> None:
        """Start the loads in meta; `loads` says what it loads."""
        if not loads:
            return
        conn = self._start_loads(meta) if meta else None
        overdue_at = time.monotonic() + self._link.load_timeout + self._options.timeout
        for request, blocks in loads:
            if conn is None:
                self._failed.append(FinishedLoad(request, list(blocks)))
            else:
                self._loads[request] = _Load(conn, list(blocks), overdue_at)

    def _start_loads(self, meta: bytes) -> Connection | None:
        for _ in range(2):
            conn = self._link.connect()
            if conn is None:
                return None
            try:
                self._link.call_on(conn, Op.LOAD, {"meta": meta}, dict)
            except ConnectionLost:
                continue  # whoever hangs up does not touch the memory any more: start over
            except Unavailable:
                return conn  # it may have started: wait until the daemon has hung up too
            except KVConnError as err:
                self._options.logger.warning("kvconn: load not started: %s", err)
                return None
            return conn
        return None

    def save(self, meta: bytes) -> SaveResult:
        """Copy the blocks that meta saves out of engine memory; then the engine may overwrite them."""
        if not meta:
            return SaveResult(0, 0)
        try:
            return self._link.call(Op.SAVE, {"meta": meta}, _save_result)
        except Unavailable:
            return SaveResult(0, 0)  # the link has said so
        except KVConnError as err:
            self._options.logger.warning("kvconn: save dropped: %s", err)
            return SaveResult(0, 0)

    def poll(self) -> list[FinishedLoad]:
        """Return the loads that have ended since the last call. Costs nothing unless `busy`."""
        done: list[FinishedLoad] = []
        conn = self._link.connection
        if conn is not None and any(load.conn is conn for load in self._loads.values()):
            done = self._poll_on(conn)
        done += self._abandoned()
        done += self._failed
        self._failed = []
        return done

    def _poll_on(self, conn: Connection) -> list[FinishedLoad]:
        done: list[FinishedLoad] = []
        try:
            for request, failed in self._link.call_on(conn, Op.POLL, {}, _finished):
                # Only what this client waits for: an engine dies of a report it does not expect.
                load = self._loads.get(request)
                if load is not None and load.conn is conn:
                    del self._loads[request]
                    done.append(FinishedLoad(request, failed))
        except Unavailable:
            pass  # the link has said so, and what is in flight is abandoned
        except KVConnError as err:
            self._options.logger.warning("kvconn: %s", err)
        return done

    def _abandoned(self) -> list[FinishedLoad]:
        """Loads that will not be reported any more.

        A load whose connection is given up counts as failed only once the daemon has closed its
        end too, which it does when it no longer touches engine memory, or has died; or once the
        time has passed in which it ends every load.
        """
        now = time.monotonic()
        ended: list[FinishedLoad] = []
        for request, load in list(self._loads.items()):
            overdue = now >= load.overdue_at
            current = load.conn is self._link.connection
            if overdue and current:
                message = f"load of {request} not ended within {self._link.load_timeout:g} s"
                self._link.give_up(load.conn, DeadlineExceeded(message))
            if overdue or (not current and load.conn.ended()):
                del self._loads[request]
                ended.append(FinishedLoad(request, load.blocks))
        return ended

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _register_on(self, conn: Connection) -> None:
        if self._layout is not None:
            conn.call(Op.REGISTER, self._layout, self._options.timeout, self._fds)


def _offer(reply: dict[str, Any]) -> Offer:
    return Offer(frames.field(reply, "tokens", int), frames.field(reply, "async", bool))


def _step_reply(reply: dict[str, Any]) -> StepReply:
    return StepReply(frames.field(reply, "meta", bytes), [PlannedLoad(*p) for p in _pairs(reply, "loads")])


def _save_result(reply: dict[str, Any]) -> SaveResult:
    return SaveResult(frames.field(reply, "taken", int), frames.field(reply, "dropped", int))


def _finished(reply: dict[str, Any]) -> list[FinishedLoad]:
    return [FinishedLoad(*p) for p in _pairs(reply, "finished")]


def _pairs(body: dict[str, Any], key: str) -> list[tuple[str, list[int]]]:
    """Decode an array of `[request, ids (bin)]`."""
    pairs: list[tuple[str, list[int]]] = []
    for pair in frames.field(body, key, list):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], bytes)):
            raise ProtocolError(f"field {key!r} is no array of [request, blocks]")
        pairs.append((pair[0], unpack_u32s(pair[1])))
    return pairs
