"""The connector's side in vLLM's scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvconn.client import (
    NO_BLOCK,
    Alloc,
    KVConnError,
    Offer,
    PlannedLoad,
    Scheduled,
    SchedulerClient,
    Step,
    StepReply,
    UnknownRequest,
)
from kvconn.frames import MAX_ID_BYTES, MAX_STEP_ADAPTERS
from kvconn.identity.files import FileId
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.events import Announcer
from kvconn.vllm.hits import Hits
from kvconn.vllm.later import HeldRequests, given_out
from kvconn.vllm.metadata import Reported, StepMetadata
from kvconn.vllm.releases import BlockTables
from kvconn.vllm.tracked import Admission, Tracked, trace

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_NO_PLAN = StepReply(b"", [])
_LEARNT_TOKENS = 256
"""The smallest step, in prompt tokens, that the leader learns the speed of prefill from."""
_NULL_BLOCK = 0
"""What vLLM has in block tables where it keeps no block."""


class SchedulerSide:
    """Tells the leader what vLLM schedules, and passes its offers and plans on. For one thread.

    vLLM calls it many times a step; the leader is called once a look-up, and once a step in which
    a request starts, fills a block, or is preempted or finished.
    """

    def __init__(
        self,
        client: SchedulerClient,
        block_size: int,
        logger: logging.Logger,
        adapters: Adapters,
        images_by_content: bool = True,
        announcer: Announcer | None = None,
        held: HeldRequests | None = None,
    ) -> None:
        """`held` is given where saves end after their step, on a GPU."""
        self._client = client
        self._block_size = block_size
        self._logger = logger
        self._adapters = adapters
        self._admission = Admission(block_size, logger, adapters, images_by_content)
        self._untouched: dict[str, tuple[FileId, ...]] = {}
        """The files of adapters that were looked at in this step."""
        self._named: dict[str, None] = {}
        """The adapters of new requests that the leader is still to be told of: it tells routers."""
        self._stopped = False
        self._tracked: dict[str, Tracked] = {}
        self._loading: dict[str, Tracked] = {}
        """Requests with a load in flight, also where they have ended meanwhile."""
        self._allocs: list[tuple[Tracked, Alloc]] = []
        self._finished: list[Tracked] = []
        self._tables = BlockTables()
        self._saves = False
        """Whether the leader may have something to save in the step that is planned."""
        self._held = held
        self.hits = Hits(block_size, logger)
        self.announcer = announcer or Announcer(block_size, [1], logger)
        """Tells those who follow vLLM's KV events, if there may be any."""

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Return how many tokens can be loaded beyond computed, and whether beside the steps.

        None asks the scheduler to ask again in the next step.
        """
        if self._stopped:
            return 0, False
        tracked = self._track(request)
        if tracked is None and request.lora_request and self._adapters.soon_known(request.lora_request.lora_name):
            return None, False
        if tracked is None or (tracked.adapter and not self._is_untouched(tracked.adapter)):
            return 0, False
        tracked.offered, tracked.asked_at, tracked.stored = False, computed, 0
        try:
            offer = self._ask(tracked, computed)
        except KVConnError as err:
            self._logger.debug("kvconn: no look-up for %s: %s", request.request_id, err)
            return 0, False
        self._note(tracked, computed, offer)
        # A load inside the step that needs it cannot fail safely in every version of vLLM. And
        # vLLM survives whole blocks only, with one token left to compute.
        whole = offer.tokens % self._block_size == 0 and computed + offer.tokens < request.num_tokens
        if offer.tokens <= 0 or not offer.asynchronous or not whole:
            return 0, False
        tracked.offered = True
        return offer.tokens, True

    def _ask(self, tracked: Tracked, computed: int) -> Offer:
        known = tracked.tokens_told if tracked.session == self._client.session else 0
        try:
            return self._ask_from(tracked, computed, known)
        except UnknownRequest:
            return self._ask_from(tracked, computed, 0)

    def _ask_from(self, tracked: Tracked, computed: int, start: int) -> Offer:
        request = tracked.request
        end = request.num_tokens
        if tracked.max_load is not None:
            # The leader offers what it knows the tokens of, less the last. The rest is told when it is computed.
            end = min(end, computed + tracked.max_load + 1)
            start = min(start, end)
        tokens = request.all_token_ids[start:end]
        offer = self._client.match(
            request.request_id,
            tokens,
            start=start,
            prompt=request.num_prompt_tokens,
            computed=computed,
            spans=tracked.spans,
            salt=tracked.salt,
            lora=tracked.lora,
            no_load=not tracked.load or request.skip_reading_prefix_cache,
            no_save=not tracked.save,
            tiers=True,
            trace=trace(request),
        )
        if tracked.session != self._client.session:
            tracked.session = self._client.session
            tracked.blocks_told = []
        tracked.tokens_told = start + len(tokens)
        return offer

    def _note(self, tracked: Tracked, computed: int, offer: Offer) -> None:
        """Note an offer for what vLLM shows of it."""
        request = tracked.request
        if self.hits.offered(request.request_id, offer):
            bounded = not tracked.load or tracked.max_load is not None or request.skip_reading_prefix_cache
            self.announcer.looked_up(request, computed, offer.tokens, not bounded and not offer.refused)

    def _track(self, request: Request) -> Tracked | None:
        """Return the state of a request, None where the leader has nothing to do with it."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._admission.admit(request)
            if tracked is not None:
                self._tracked[request.request_id] = tracked
        return tracked

    def met(self, request: Request) -> None:
        """Note a new request: its adapter is looked at before the engine loads it."""
        if request.lora_request is not None:
            self._adapters.scope(request.lora_request)
            if len(request.lora_request.lora_name.encode()) <= MAX_ID_BYTES:
                self._named[request.lora_request.lora_name] = None

    def allocated(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        """Note the blocks that vLLM gave a request, and whether it took the offer."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not (tracked.offered or external):
            return  # nothing was offered, or this is the second call, after the load
        tracked.offered = False
        tables = [_told(table) for table in blocks.get_block_ids()]
        self._allocs.append((tracked, Alloc(request.request_id, tables, tracked.asked_at, external)))
        if external:
            tracked.asked_for = 0 if tracked.asked_at else external
            first = tracked.asked_at // self._block_size
            end = -(-(tracked.asked_at + external) // self._block_size)
            # vLLM keeps blocks where the layers' windows need them, and these are loaded.
            tracked.loading = [b for table in tables for b in table[first:end] if b != NO_BLOCK]
            self._loading[request.request_id] = tracked
            self.hits.taken(request.request_id, external, tracked.loading)

    def plan(self, output: SchedulerOutput) -> StepMetadata:
        """Tell the leader of a step, and return the plan for the workers."""
        allocs, self._allocs = self._allocs, []
        finished, self._finished = self._finished, []
        expected = {a.request: PlannedLoad(a.request, t.loading) for t, a in allocs if a.external}
        payload, loads, number = b"", [], 0
        saves: dict[str, list[int]] = {}
        # First: where this fails, the step has no plan, and workers take all blocks back.
        given = given_out(output, (a for _, a in allocs), self._block_size) if self._held is not None else None
        self._untouched = {}
        self.announcer.connected(self._client.session)
        try:
            self._tables.note(output)
            reply = self._step(output, allocs, finished)
            # Workers report what is in here, and vLLM dies of a report that it does not expect.
            saves = self._saved(output, reply) if self._held is not None else {}
            payload = reply.meta
            loads = [expected.pop(load.request) for load in reply.loads if load.request in expected]
            number = self.announcer.planned(reply.saves, self._request_of)
        except Exception as err:
            self._forget(output, allocs)
            level = logging.DEBUG if isinstance(err, KVConnError) else logging.ERROR
            self._logger.log(level, "kvconn: step not planned: %s", err, exc_info=level == logging.ERROR)
        untouched = [file for files in self._untouched.values() for file in files] if payload else []
        self._untouched = {}
        return StepMetadata(payload, loads, list(expected.values()), untouched, number, saves, given)

    def _saved(self, output: SchedulerOutput, reply: StepReply) -> dict[str, list[int]]:
        """Return the blocks that a plan saves, by request. Their requests are held from now on."""
        assert self._held is not None  # noqa: S101 - the caller has looked
        tables = {save.request: self._tables.of(output, save.request) for save in reply.saves}
        return self._held.name(reply.saves, tables)

    def _request_of(self, request_id: str) -> Request | None:
        tracked = self._tracked.get(request_id)
        return tracked.request if tracked is not None else None

    def _step(self, output: SchedulerOutput, allocs: list[tuple[Tracked, Alloc]], finished: list[Tracked]) -> StepReply:
        session = self._client.session
        if not session:
            return _NO_PLAN
        step = Step(
            allocs=[a for t, a in allocs if t.session == session],
            finished=[t.request.request_id for t in finished if t.session == session],
            preempted=self._preempted(output, session),
            scheduled=self._scheduled(output, session),
            tell_saves=self.announcer.enabled or self._held is not None,
            adapters=self._adapters_to_tell(),
        )
        if not step:
            return _NO_PLAN
        reply = _NO_PLAN
        if self._saves or any(a.external for a in step.allocs):
            reply = self._client.step(step, session)
        else:
            self._client.tell(step, session)
        for name, _ in step.adapters:
            self._named.pop(name, None)
        return reply

    def _adapters_to_tell(self) -> list[tuple[str, str]]:
        """Return what names of adapters stand for, those that are known by now."""
        if not self._named:
            return []
        known = [(name, "" if self._stopped else self._adapters.stands_for(name)) for name in self._named]
        return [(name, scope) for name, scope in known if scope is not None][:MAX_STEP_ADAPTERS]

    def _forget(self, output: SchedulerOutput, allocs: list[tuple[Tracked, Alloc]]) -> None:
        """Tell the leader no more of a step's requests: what it knows of them is uncertain."""
        for request_id in [*(a.request for _, a in allocs), *output.num_scheduled_tokens]:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.session = 0

    def _preempted(self, output: SchedulerOutput, session: int) -> list[str]:
        told: list[str] = []
        for request_id in output.preempted_req_ids or ():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            if tracked.session == session and tracked.blocks_told:
                told.append(request_id)
            tracked.blocks_told = []
        return told

    def _scheduled(self, output: SchedulerOutput, session: int) -> list[Scheduled]:
        told: list[Scheduled] = []
        self._saves = False
        if self._stopped:
            return told
        cached = output.scheduled_cached_reqs
        for new in output.scheduled_new_reqs:
            self._tell(told, output, session, new.req_id, new.num_computed_tokens, True)
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self._tell(told, output, session, request_id, computed, request_id in cached.resumed_req_ids)
        return told

    def _tell(
        self,
        told: list[Scheduled],
        output: SchedulerOutput,
        session: int,
        request_id: str,
        computed: int,
        fresh: bool,
    ) -> None:
        """Tell what a request did since the last time, if it starts or fills a block."""
        tracked = self._tracked.get(request_id)
        if tracked is None or not tracked.save or tracked.session != session:
            return
        if fresh:
            tracked.blocks_told, tracked.computed_told = [], computed
        request = tracked.request
        # Draft tokens are computed too, but may be rejected.
        end = min(computed + output.num_scheduled_tokens[request_id], request.num_tokens)
        filled = end // self._block_size > tracked.computed_told // self._block_size
        stored, tracked.stored = tracked.stored, 0
        decodes = computed >= request.num_prompt_tokens
        if decodes and not filled and not fresh and not tracked.followed:
            return
        learnt = not decodes and output.num_scheduled_tokens[request_id] >= _LEARNT_TOKENS
        if not learnt and not tracked.followed and 0 < end // self._block_size * self._block_size <= stored:
            tracked.computed_told = end
            return  # a load has just brought all whole blocks, and the leader was told so
        tracked.followed = 2 if learnt else max(0, tracked.followed - 1)
        if tracked.adapter and not self._is_untouched(tracked.adapter):
            tracked.save = False
            return
        if end // self._block_size * self._block_size > stored:
            self._saves = True
        tables = self._tables.of(output, request_id)
        known = tracked.blocks_told or [0] * len(tables)
        told.append(
            Scheduled(
                request_id,
                blocks=[_told(table[n:]) for table, n in zip(tables, known, strict=True)],
                reset=not tracked.blocks_told,
                computed=tracked.computed_told,
                count=max(0, end - tracked.computed_told),
                tokens=request.all_token_ids[tracked.tokens_told :],
                start=tracked.tokens_told,
            )
        )
        tracked.blocks_told = [len(table) for table in tables]
        tracked.computed_told = max(end, tracked.computed_told)
        tracked.tokens_told = request.num_tokens

    def _is_untouched(self, adapter: str) -> bool:
        """Whether an adapter is what it was when the leader was told; looked at once a step."""
        if adapter not in self._untouched:
            self._untouched[adapter] = self._adapters.untouched(adapter)
        return bool(self._untouched[adapter])

    def loaded(self, output: KVConnectorOutput) -> None:
        """Pass on how loads ended, once all ranks have ended theirs."""
        reported = getattr(output, "kv_connector_worker_meta", None)
        if isinstance(reported, Reported):
            self.hits.reported(reported)
            self.announcer.saved(reported.saves)
        invalid = output.invalid_block_ids or set()
        failed = getattr(output, "failed_recving", None) or set()
        if invalid or failed:
            for request_id, tracked in self._loading.items():
                bad = tracked.loading if request_id in failed else [b for b in tracked.loading if b in invalid]
                if bad:
                    tracked.invalid.update(bad)
                    tracked.load = False  # asked again, it could get the same answer every time
        done = [self._loading.pop(r) for r in output.finished_recving or () if r in self._loading]
        session = self._client.session
        known = [t for t in done if t.session == session]
        bad_blocks = set[int]().union(*(t.invalid for t in known))
        for tracked in done:
            self.hits.ended(tracked.request.request_id, tracked.invalid)
            tracked.stored = 0 if tracked.invalid else tracked.asked_for
            tracked.loading, tracked.invalid = [], set()
        if not session or not known:
            return
        try:
            self._client.loaded([t.request.request_id for t in known], bad_blocks, session)
        except KVConnError as err:
            self._logger.debug("kvconn: end of loads not told: %s", err)

    def holds(self, request_id: str) -> bool:
        """Whether the blocks of a request that has ended are held until the workers report it. To be asked once."""
        return self._held is not None and self._held.ended(request_id)

    def finished(self, request_id: str) -> dict[str, Any] | None:
        """Note that a request has ended. Returns what its answer says of it."""
        self._tables.forget(request_id)
        tracked = self._tracked.pop(request_id, None)
        if tracked is not None and tracked.session:
            self._finished.append(tracked)
        return self.hits.finished(request_id)

    def stop(self, why: str) -> None:
        """Load and save nothing any more: the weights that the engine computes with are not known."""
        if not self._stopped:
            self._stopped = True
            self.announcer.withdraw()
            self._logger.warning("kvconn: KV is neither loaded nor saved until the engine is restarted: %s", why)

    def reset(self) -> None:
        """Pass on that vLLM has dropped its own prefix cache."""
        for tracked in self._tracked.values():
            tracked.blocks_told = []
        try:
            self._client.reset()
        except KVConnError as err:  # a leader that was not reached knows of no blocks
            self._logger.debug("kvconn: reset not told: %s", err)


def _told(table: Sequence[int]) -> Sequence[int]:
    """Return a block table as the leader knows it."""
    if _NULL_BLOCK not in table:
        return table
    return [NO_BLOCK if b == _NULL_BLOCK else b for b in table]
