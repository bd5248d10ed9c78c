"""The tier's side in vLLM's scheduler, without vLLM's types."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from kvconn.client import FinishedLoad, KeyedClient, StoredPut
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.tier_pace import Pace
from kvconn.vllm.tier_promises import Promises
from kvconn.vllm.tier_requests import Phase, Terms, TierRequest, group_of

_DRAIN_TICK_S = 0.001
_STUCK_S = 10.0
"""How often a drain says that it still waits for a daemon that stands still in the middle of a copy."""


class Answer(Enum):
    """What a look-up says of one chunk."""

    HIT = auto()
    MISS = auto()
    RETRY = auto()


class Ended(NamedTuple):
    """A job of vLLM's that has ended. Of a load that failed in part, `loaded` are the keys that it has loaded."""

    job: int
    ok: bool
    loaded: Sequence[bytes] = ()
    seconds: float | None = None
    """How long it took, None where nothing was begun."""


@dataclass
class _Job:
    number: int
    keys: dict[int, bytes]
    """The key of each row."""
    request: TierRequest | None
    load: bool
    begun: float = field(default_factory=time.monotonic)

    def ended(self, ok: bool, loaded: Sequence[bytes] = ()) -> Ended:
        return Ended(self.number, ok, loaded, time.monotonic() - self.begun)


@dataclass(frozen=True)
class Rows:
    """How chunks lie in vLLM's region."""

    count: int
    tokens: int
    """The tokens of a chunk."""
    windows: Sequence[int]
    """The window of each layer group in tokens, 0 for full attention."""


class Shown(Protocol):
    """Shows what happens. Its methods do not raise."""

    announces: bool
    """Whether it wants to hear of look-ups, which are many."""

    def loaded(self, load: FinishedLoad) -> None:
        """Note a load that has ended."""

    def saved(self, put: StoredPut, keys: Sequence[bytes]) -> None:
        """Note a save of these keys that has ended."""

    def looked_up(self, key: bytes, offered: bool) -> None:
        """Note whether the daemon offers a chunk that it was asked for."""

    def connected(self, session: int) -> None:
        """Note over which connection the daemon is reached."""

    def withdraw(self) -> None:
        """Note that nothing is loaded any more."""


class TierSide:
    """Answers vLLM's look-ups, and has the daemon fill and read rows. For one thread.

    The daemon is asked once for each waiting request and step. Every job that was submitted is
    returned by `ended` exactly once, as soon as nothing is written to its rows any more.
    """

    def __init__(
        self,
        client: KeyedClient,
        rows: Rows,
        pace: Pace,
        patience: float,
        logger: logging.Logger,
        adapters: Adapters,
        shown: Shown,
    ) -> None:
        self._client = client
        self._shown = shown
        self._rows = rows
        self._pace = pace
        self._logger = logger
        self._adapters = adapters
        self._promises = Promises(rows.count, patience)
        self._step = 0
        self._requests: dict[str, TierRequest] = {}
        self._adapter_answers: dict[str, Answer] = {}
        """Of the requests that were looked up in this step."""
        self._loads: dict[str, _Job] = {}
        self._stores: dict[str, _Job] = {}
        self._over: list[Ended] = []
        self._stopped = False
        self._broken = False

    @property
    def busy(self) -> bool:
        """Whether a job has not been returned by `ended`."""
        return bool(self._loads or self._stores or self._over)

    # Requests.

    def met(self, request_id: str, terms: Terms) -> TierRequest:
        """Return the state of a new request."""
        if terms.most is not None and terms.most < self._rows.tokens:
            terms.load = False
        request = self._requests[request_id] = TierRequest(request_id, terms)
        return request

    def finished(self, request: TierRequest, positions: Any) -> None:
        """Note that a request has ended. Its jobs may go on."""
        self._requests.pop(request.id, None)
        self._promises.forget(request.id)
        known = request.terms.adapter is None or request.scope
        if self._stopped or not known or not (request.terms.load or request.terms.save):
            return
        self._learn(request, positions)
        if not request.hashes:
            return
        self._client.touch(request.id, request.hashes, *self._pace.take())

    # Look-ups.

    def look_up(self, request: TierRequest, key: bytes, positions: Any) -> Answer:
        """Say whether a chunk can be loaded. `positions` is what vLLM knows of the request's keys."""
        if self._stopped or not request.terms.load or request.failed or request.phase is not Phase.ASKING:
            return Answer.MISS
        adapter = self._adapter_in_step(request)
        if adapter is not Answer.HIT:
            return adapter
        self._learn(request, positions)
        index = request.note(key, positions.get_offload_key_position(key), self._rows.tokens)
        if index is None:
            return Answer.MISS
        group = group_of(key)
        if request.asked_in != self._step and index >= request.first and self._waits(request):
            request.asked_in = self._step
        elif request.asked_in != self._step or (not request.known_in_order and not request.covers(index)):
            self._ask(request, group, index)
        offered = request.offered(group, index)
        if self._shown.announces and (offered or request.covers(index)):
            self._shown.looked_up(key, offered)
        if not offered:
            if not request.answered:
                self._promises.forget(request.id)  # others need not wait for it
            return Answer.MISS
        return self._promise(request, group, index)

    def _waits(self, request: TierRequest) -> bool:
        return request.left is None and self._promises.waits(request.id, request.wanted)

    def _learn(self, request: TierRequest, positions: Any) -> None:
        """Note the keys of a request, all at once where vLLM has them in one place, which is its own business."""
        keys = getattr(positions, "_offload_key_positions", None)
        request.known_in_order = isinstance(keys, dict)
        if isinstance(keys, dict):
            request.learn(keys, self._rows.tokens)

    def _adapter_in_step(self, request: TierRequest) -> Answer:
        """Say what `_adapter` says, which looks at files, once for each step: a step looks up every chunk."""
        answer = self._adapter_answers.get(request.id)
        if answer is None:
            answer = self._adapter_answers[request.id] = self._adapter(request)
        return answer

    def _adapter(self, request: TierRequest) -> Answer:
        """Say whether it is known what the request's adapter contains."""
        lora = request.terms.adapter
        if lora is None:
            return Answer.HIT
        scope = self._adapters.scope(lora)
        if scope is None:
            return Answer.RETRY if self._adapters.soon_known(lora.lora_name) else Answer.MISS
        if request.scope not in ("", scope):
            return Answer.MISS
        request.scope = scope
        return Answer.HIT if self._adapters.untouched(lora.lora_name) else Answer.MISS

    def _ask(self, request: TierRequest, group: int, index: int) -> None:
        """Ask the daemon what it has from the first chunk on that the engine's pool lacks."""
        # The pool has what comes before the first chunk that is looked up. With windows that is not so:
        # they are looked up from the end.
        first = 0 if any(self._rows.windows) else index
        parent = request.hashes[first - 1] if first else b""
        most = request.terms.most
        begin = 0 if self._rows.windows[group] else index
        last = len(request.hashes) if most is None else begin + most // self._rows.tokens
        hashes = request.hashes[first:last]
        request.asked_in, request.first, request.asked_to = self._step, first, first + len(hashes)
        request.answered, request.left = False, 0
        bitmaps = self._client.present(
            request.id, hashes, first=first, parent=parent, held=first, trace=request.terms.trace
        )
        request.bitmaps = [int.from_bytes(b, "little") for b in bitmaps]

    def _promise(self, request: TierRequest, group: int, index: int) -> Answer:
        """Promise a chunk that is offered, if rows are left for it."""
        if not request.answered:
            request.answered = True
            # vLLM looks up layers with full attention first, from the first chunk that its pool lacks. If
            # it begins with a window, its pool has the others.
            windows = self._rows.windows
            request.wanted = sum(
                request.offers(g, 0 if windows[g] else index)
                for g in range(len(windows))
                if windows[g] or not windows[group]
            )
            request.left = self._promises.ask(request.id, request.wanted)
            divisible = len(self._rows.windows) == 1 and not self._rows.windows[0]
            if request.left is not None and request.left < request.wanted and not divisible:
                # A prefix of one layer group is no hit, nor is a part of a window.
                self._promises.release(request.id)
                request.left = 0
        if request.left is None:
            return Answer.RETRY
        if request.left == 0:
            return Answer.MISS
        request.left -= 1
        return Answer.HIT

    def step_ended(self, running: Container[str], preempted: Iterable[str]) -> None:
        """Note the end of a step, the requests that run in it, and those that wait again."""
        self._step += 1
        self._shown.connected(self._client.session)
        self._adapter_answers.clear()
        self._promises.ran(running)
        for request_id in preempted:
            self._promises.forget(request_id)
            request = self._requests.get(request_id)
            if request is not None and request.phase is Phase.OVER:
                request.phase = Phase.ASKING
        self._promises.expire()

    # Jobs.

    def load(
        self, number: int, keys: Sequence[bytes], rows: Sequence[int], request: TierRequest | None, at: Any
    ) -> None:
        """Have the daemon fill rows."""
        job = _Job(number, dict(zip(rows, keys, strict=True)), request, True)
        chunks = self._chunks(job, at)
        if request is None or self._stopped or len(chunks) < len(keys):
            self._failed(job)
            return
        request.phase = Phase.LOADING
        self._loads[str(number)] = job
        self._client.fetch(str(number), request.parts(chunks), of=request.id)

    def store(
        self, number: int, keys: Iterable[bytes], rows: Sequence[int], request: TierRequest | None, at: Any
    ) -> None:
        """Have the daemon keep the content of rows."""
        job = _Job(number, dict(zip(rows, keys, strict=True)), request, False)
        wanted = request is not None and request.terms.save and not self._stopped
        if wanted and request is not None and self._adapter(request) is Answer.HIT:
            chunks = self._chunks(job, at)
            if chunks:
                self._stores[str(number)] = job
                salt = request.terms.salt
                self._client.put(str(number), request.parts(chunks), salt=salt, lora=request.scope)
                return
        self._failed(job)

    def _chunks(self, job: _Job, positions: Any) -> list[tuple[int, int, int]]:
        """Return the chunks of a job as group, index and row; those only whose place in the prompt is known."""
        if job.request is None:
            return []
        self._learn(job.request, positions)
        chunks: list[tuple[int, int, int]] = []
        at = {row: positions.get_offload_key_position(key) or 0 for row, key in job.keys.items()}
        for row in sorted(at, key=at.__getitem__):
            key = job.keys[row]
            index = job.request.note(key, at[row], self._rows.tokens)
            if index is not None:
                chunks.append((group_of(key), index, row))
        return chunks

    def _failed(self, job: _Job) -> None:
        """Note a job that nothing was begun of."""
        if job.load and job.request is not None:
            job.request.failed = True
            self._promises.release(job.request.id)
        self._over.append(Ended(job.number, False))

    def ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last call."""
        if self._broken:
            self._give_up()
        elif self._loads or self._stores:
            polled = self._client.poll()
            for load in polled.finished:
                self._shown.loaded(load)
                self._loaded(self._loads.pop(load.request, None), load.failed_blocks)
            for put in polled.stored:
                job = self._stores.pop(put.request, None)
                if job is not None:
                    self._shown.saved(put, list(job.keys.values()))
                    self._over.append(job.ended(put.dropped == 0 and put.taken + put.present > 0))
        over, self._over = self._over, []
        return over

    def _loaded(self, job: _Job | None, failed_rows: Sequence[int]) -> None:
        if job is None or job.request is None:
            return
        failed = set(failed_rows)
        loaded = [key for row, key in job.keys.items() if row not in failed]
        job.request.phase = Phase.OVER
        if failed:
            job.request.failed = True
            self._promises.release(job.request.id)
        else:
            self._promises.loaded(job.request.id)
        self._over.append(job.ended(not failed, loaded if failed else ()))

    # The end.

    def stop(self, why: str) -> None:
        """Load and save nothing any more until the engine is restarted."""
        if not self._stopped:
            self._stopped = True
            self._shown.withdraw()
            self._logger.warning("kvconn: KV is neither loaded nor saved until the engine is restarted: %s", why)

    def give_up(self, submitted: int | None = None) -> None:
        """Stop after an error. Jobs under way, and the one that was being submitted, fail once their rows are safe."""
        self._broken = True
        self.stop("there was an error in the tier")
        jobs = [*self._loads.values(), *self._stores.values()]
        if submitted is not None and all(job.number != submitted for job in jobs):
            self._stores[str(submitted)] = _Job(submitted, {}, None, False)

    def _give_up(self) -> None:
        if (self._loads or self._stores) and self._client.unregister(0):
            for job in [*self._loads.values(), *self._stores.values()]:
                self._failed(job)
            self._loads, self._stores = {}, {}

    def drain(self, seconds: float) -> None:
        """Wait until no job is under way; after some time take the rows back, by which they fail.

        That takes longer than `seconds` in one case: the daemon stands still in the middle of a copy. A
        row that it may still write to must not be given away.
        """
        until = time.monotonic() + seconds
        over: list[Ended] = []
        while self._loads or self._stores:
            try:
                over += self.ended()
            except Exception:
                if not self._broken:
                    self._logger.exception("kvconn: loads and saves can't be followed")
                self._broken = True
            if time.monotonic() >= until and (self._loads or self._stores):
                if not self._broken:
                    self._broken = True
                else:
                    self._logger.warning("kvconn: kvconnd stands still in the middle of a copy: resetting waits for it")
                until = time.monotonic() + _STUCK_S
            time.sleep(_DRAIN_TICK_S)
        self._over = over + self._over

    def close(self) -> None:
        """Take the region back and disconnect."""
        self._stopped = True
        self._client.close()
