"""The client of an engine's scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvconn import messages
from kvconn.connection import Connection
from kvconn.errors import Unavailable
from kvconn.frames import Op
from kvconn.link import Link, Options
from kvconn.messages import Offer, Span, Step, StepReply


class SchedulerClient:
    """The scheduler's connection to the leader. For one thread.

    Every call raises Unavailable while there is no daemon, at once and without waiting, and the
    connection is re-established in the background.
    """

    def __init__(self, options: Options) -> None:
        self._link = Link(options, "scheduler")

    @property
    def session(self) -> int:
        """Number of the current connection, 0 without one.

        The leader knows nothing of another session.
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
        prompt: int = 0,
        computed: int = 0,
        spans: Sequence[Span] = (),
        salt: str = "",
        lora: str = "",
        no_load: bool = False,
        no_save: bool = False,
        tiers: bool = False,
        trace: str = "",
    ) -> Offer:
        """Ask what can be loaded for a request. Repeat it at will.

        `start` is the index of `tokens[0]` in the request's tokens: above 0 only where the leader
        was told the tokens before it in this session, otherwise UnknownRequest is raised. `prompt` is
        the length of the prompt, 0 where that is all tokens of the first match. `spans`, ordered by
        their starts, are the same each time. `tiers` asks where the offered tokens lie; `trace` is the
        request's traceparent, of MAX_TRACE_BYTES at most, for the daemon's log.
        """
        body = messages.match(
            request,
            tokens,
            start=start,
            prompt=prompt,
            computed=computed,
            spans=spans,
            salt=salt,
            lora=lora,
            no_load=no_load,
            no_save=no_save,
            tiers=tiers,
            trace=trace,
        )
        return self._link.call(Op.MATCH, body, messages.offer)

    def step(self, step: Step, session: int) -> StepReply:
        """Tell the leader of a scheduler iteration whose requests it knows from `session`."""
        return self._link.call_on(self._connection_of(session), Op.STEP, messages.step(step), messages.step_reply)

    def tell(self, step: Step, session: int) -> None:
        """Tell of a step whose plan would be empty, and don't wait for the answer: see `loaded`."""
        self._link.post_on(self._connection_of(session), Op.STEP, messages.step(step))

    def loaded(self, done: Iterable[str], invalid: Iterable[int], session: int) -> None:
        """Report what came of loads, all ranks together, that were planned in `session`.

        It does not wait for the answer. If the daemon does not take it in, the next call fails, and with it the
        session: nobody knows any more what the leader was told.
        """
        self._link.post_on(self._connection_of(session), Op.LOADED, messages.loaded(done, invalid))

    def reset(self) -> None:
        """Tell that the engine has dropped its own cache: from here on, whole block tables are told again."""
        self._link.call(Op.RESET, {}, dict)

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _connection_of(self, session: int) -> Connection:
        conn = self._link.connection
        if conn is None or conn.session != session:
            raise Unavailable("the leader of that session is gone")
        return conn
