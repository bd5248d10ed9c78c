"""The client of an engine that brings its own keys, and that calls from several threads."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kvconn import messages
from kvconn.connection import Connection
from kvconn.errors import Rejected, RequestTooLarge, Unavailable
from kvconn.frames import CHANNEL_VERSIONS, Op
from kvconn.link import Options
from kvconn.memory_client import MemoryClient, Registration
from kvconn.messages import Part

_DAEMON_MARGIN_S = 0.1
"""The daemon ends a load or a save so long before the caller's deadline."""
_FENCE_MARGIN_S = 0.02
"""The time before the deadline that is kept to take the memory back from a daemon that does not answer."""
_RELEASE_INTERVAL_S = 0.001
_TURN = 0.5
"""The part of its deadline that a thread waits for another: with less left the daemon might answer too late."""
MAX_CHANNELS = 8

T = TypeVar("T")


class KeyedChannels(MemoryClient):
    """A rank's session at a worker that has a leader too, with a connection for each thread that calls.

    `register`, `unregister` and `close` are for one thread, and no call of a channel waits for them or for
    another channel. No call raises for the daemon's sake. A thread of the client's own connects again,
    registers the memory and opens the channels when the daemon was gone.
    """

    def __init__(self, options: Options, names: Sequence[str], rank: int = 0) -> None:
        """Prepare a channel for each name, at most 8."""
        if not 0 < len(set(names)) == len(names) <= MAX_CHANNELS:
            raise ValueError(f"{len(names)} channels: want 1 to {MAX_CHANNELS} of different names")
        super().__init__(options, rank, CHANNEL_VERSIONS)
        self._connections: dict[Connection, dict[str, Connection]] = {}
        """The channels' connections by the first of their session."""
        self._channels = {name: Channel(self, name) for name in names}

    def channel(self, name: str) -> Channel:
        """Return the channel of that name. It stays the same when the daemon comes back."""
        return self._channels[name]

    def _register_on(self, conn: Connection) -> None:
        super()._register_on(conn)
        if self._registrations.get(conn) is None:
            return
        opened: dict[str, Connection] = {}
        with self._lock:
            self._connections[conn] = opened
        for name in self._channels:
            opened[name] = self._link.open_channel(conn)

    def _lost(self, conn: Connection) -> None:
        super()._lost(conn)  # fences first: nothing is copied after the channels have gone
        with self._lock:
            opened = self._connections.pop(conn, {})
        for channel in opened.values():
            channel.hang_up()
        for channel in opened.values():
            with channel.between_calls():
                channel.close()

    def _connection(self, registration: Registration, name: str) -> Connection | None:
        return self._connections.get(registration.conn, {}).get(name)

    def _give_up(self, registration: Registration, err: BaseException) -> None:
        """Take the memory back from a daemon that is gone or does not answer. For any thread."""
        self._link.give_up(registration.conn, err)


class Channel:
    """A connection of its own for one thread of the engine. Calls of several threads take turns.

    Every call ends within its timeout. The one exception is a daemon that stands still in the middle of a
    copy: `fetch_wait` and `put_wait` return once the copy has ended or the daemon has died, since it could
    write to the slots until then.
    """

    def __init__(self, owner: KeyedChannels, name: str) -> None:
        self._owner, self._name = owner, name
        self._ids = itertools.count()
        self._turns = threading.Lock()
        self._refused: set[Op] = set()
        self._held_s = 0.0

    @property
    def held_s(self) -> float:
        """Seconds that calls so far waited for a daemon that stood still in the middle of a copy. For any thread."""
        return self._held_s

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
        """Ask which blocks of a request can be loaded, as `KeyedClient.present` does."""
        body = messages.present(request, hashes, first=first, parent=parent, held=held, no_load=no_load, trace=trace)
        layout = self._owner._layout
        groups = len(layout["groups"]) if layout is not None else 0
        with self._turn(self._owner._options.timeout) as left:
            bitmaps = self._call(Op.PRESENT, body, messages.bitmaps, left)
        return messages.offered(bitmaps, groups, len(hashes))

    def touch(self, request: str, hashes: Sequence[bytes], tokens: int = 0, seconds: float = 0.0) -> None:
        """End a request, as `KeyedClient.touch` does."""
        body = messages.touch(request, hashes, tokens, seconds)
        with self._turn(self._owner._options.timeout) as left:
            self._call(Op.TOUCH, body, dict, left)

    def fetch_wait(self, parts: Sequence[Part], of: str, timeout: float) -> list[bytes]:
        """Load blocks into the slots of parts, for the request `of`, and return what is there by the timeout.

        That is a bitmap for each part: bit `i % 8`, from the lowest, of byte `i // 8` stands for its block
        `i`. Nothing is written to the slots after the return. A part without a parent is verified by its own
        hashes. Raises ValueError for hashes of another length
        than 32 bytes, or of another number than slots.
        """
        return self._move(Op.FETCH, parts, timeout, of=of)

    def put_wait(self, parts: Sequence[Part], timeout: float, salt: str = "", lora: str = "") -> list[bytes]:
        """Save the blocks in the slots of parts, and return which are stored or on their way by the timeout.

        The answer has the form of that of `fetch_wait`. Nothing is read from the slots after the return.
        `salt` and `lora` are kept with the blocks, to list and clear them by.
        """
        return self._move(Op.PUT, parts, timeout, salt=salt, lora=lora)

    def _move(self, op: Op, parts: Sequence[Part], timeout: float, **about: str) -> list[bytes]:
        with self._turn(timeout) as left:
            margin = min(_DAEMON_MARGIN_S, left / 4)
            wait = min(left - margin, self._owner._link.load_timeout)
            name = f"{self._name}-{next(self._ids)}"
            body = messages.move(name, parts, wait_ms=max(1, int(wait * 1000)), **about)
            patience = left - min(_FENCE_MARGIN_S, left / 8)
            done = self._call(op, body, lambda reply: messages.done(reply, parts), patience)
        return messages.not_done(parts) if done is None else done

    @contextlib.contextmanager
    def _turn(self, timeout: float) -> Iterator[float]:
        """Keep other threads from the channel. Yields what is left of the timeout, 0 where one keeps it too long."""
        begun = time.monotonic()
        at_once = self._turns.acquire(blocking=False)
        if not at_once and not self._turns.acquire(timeout=timeout * _TURN):
            yield 0.0
            return
        try:
            yield timeout if at_once else max(0.0, timeout - (time.monotonic() - begun))
        finally:
            self._turns.release()

    def _call(self, op: Op, body: dict[str, Any], decode: Callable[[dict[str, Any]], T], timeout: float) -> T | None:
        """Make a call, unless there is no time for one. None where it has no answer; then nothing touches its slots."""
        owner = self._owner
        registration = owner._registration()
        conn = owner._connection(registration, self._name) if registration is not None else None
        if registration is None or conn is None or timeout <= 0:
            return None
        try:
            return decode(conn.call(op, body, timeout))
        except (Rejected, RequestTooLarge) as err:
            # Nothing was started. Once for each call: it is made for every prompt.
            owner._options.logger.log(logging.DEBUG if op in self._refused else logging.WARNING, "kvconn: %s", err)
            self._refused.add(op)
        except BaseException as err:  # whatever it is: it may have been sent, and the slots are to be left alone
            owner._give_up(registration, err)
            if op in (Op.FETCH, Op.PUT):
                self._wait_for_copies(registration)
            if not isinstance(err, Unavailable):
                raise
        return None

    def _wait_for_copies(self, registration: Registration) -> None:
        """Wait until nothing touches the slots any more."""
        begun = time.monotonic()
        while not registration.release():
            time.sleep(_RELEASE_INTERVAL_S)
        self._held_s += time.monotonic() - begun
