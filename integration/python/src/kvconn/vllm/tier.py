"""kvconnd below vLLM's own offloading: a secondary tier, and the connector that it needs.

Configure vLLM (0.31 or newer) with what `kvconnd config vllm --tier` prints. vLLM copies between its
KV memory and a region of host memory with its own kernels, and the daemon fills and reads rows of that region.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import vllm

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, ReqContext, RequestOffloadingContext
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

    _ = ReqContext.get_offload_key_position
except (ImportError, AttributeError) as err:
    raise ImportError(f"kvconn: kvconn.vllm.tier needs vLLM 0.31 or newer, this is {vllm.__version__}: {err}") from err

from kvconn import __version__
from kvconn.client import KeyedClient, Options
from kvconn.identity import files
from kvconn.identity.files import UnknownIdentity
from kvconn.vllm import entry, tier_identity, tier_region, tier_shown
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.entry import CoreWatcher, check_parallel, guarded, logger
from kvconn.vllm.identity import Identity
from kvconn.vllm.tier_pace import Pace
from kvconn.vllm.tier_requests import Terms, TierRequest
from kvconn.vllm.tier_side import Answer, Rows, TierSide
from kvconn.vllm.tracked import can_be_told, knows_images, trace
from kvconn.vllm.wishes import WishReader

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.base import ScheduleEndContext
    from vllm.v1.kv_offload.tiering.base import TransferJob
    from vllm.v1.request import Request

_SETTINGS = ("socket", "timeout", "digest_cache", "locality")
_PATIENCE_S = 10.0
"""How long a request waits for rows that others were promised."""
_DRAIN_S = 10.0

_ANSWERS = {Answer.HIT: LookupResult.HIT, Answer.MISS: LookupResult.MISS, Answer.RETRY: LookupResult.RETRY}


@dataclass
class _Engine:
    """What the connector knows and the tier needs. vLLM makes the tier inside of the connector."""

    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig
    tier: KVConnTier | None = None
    terms: dict[str, Terms] = field(default_factory=dict)
    """Of requests that the connector has met and the tier has not."""


_making: ContextVar[_Engine | None] = ContextVar("kvconn_tier", default=None)


class KVConnTieringConnector(OffloadingConnector):
    """vLLM's OffloadingConnector, which also tells its tier `KVConnTier` what vLLM tells a connector alone.

    That is the engine's configuration, by which its KV is told from others', and each request.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        self._broken: set[str] = set()
        self._engine = _Engine(vllm_config, kv_cache_config)
        made = _making.set(self._engine)
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            _making.reset(made)

    def on_new_request(self, request: Request) -> None:
        """Note what may be done for a request before the tier meets it."""
        self._note(request)
        super().on_new_request(request)

    @guarded(lambda: None)
    def _note(self, request: Request) -> None:
        tier = self._engine.tier
        if tier is not None and (terms := tier.met(request)):
            self._engine.terms[request.request_id] = terms

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Note what runs in the step."""
        self._measure(scheduler_output)
        return super().build_connector_meta(scheduler_output)

    @guarded(lambda: None)
    def _measure(self, output: SchedulerOutput) -> None:
        if self._engine.tier is not None:
            self._engine.tier.step(output.num_scheduled_tokens)


class KVConnTier(SecondaryTierManager):
    """A secondary tier in the node's kvconnd: it keeps chunks of vLLM's host region, also over a restart.

    Settings of its entry in `secondary_tiers`: `socket`, the path of the daemon's socket; `timeout`,
    the seconds that a call to it may take (default 1); `digest_cache`, the directory where digests of
    weights are kept; vLLM's own `locality`. Settings that cannot work raise ValueError at start; after
    that nothing that the daemon does or fails to do reaches the engine as an exception.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **own: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._broken: set[str] = set()
        self._side: TierSide | None = None
        self._adapters: Adapters | None = None
        self._refused: list[JobResult] = []
        self._images_by_content = False
        self._wishes = WishReader(logger)
        self._running: Mapping[str, int] = {}
        self._shown = tier_shown.TierShown(logger)
        self.pace = Pace(ahead=False)
        # First of all: of an engine that does not start, the region would stay in memory too.
        self._fd = tier_region.descriptor(offloading_spec)
        tier_region.unlink(offloading_spec.config.engine_id, self._fd)
        engine = _making.get()
        if engine is None:
            raise ValueError(
                "kvconn: the tier needs its own connector: set kv_connector 'KVConnTieringConnector' and"
                " kv_connector_module_path 'kvconn.vllm.tier' ('kvconnd config vllm --tier' prints all settings)"
            )
        self._engine = engine
        _check(engine.vllm_config, own)
        if own.get("locality") is not None:
            self.locality = Locality(own["locality"])
        self._shown = tier_shown.TierShown(logger, getattr(offloading_spec, "kv_events_config", None), self.locality)
        tokens = tier_region.chunk_tokens(offloading_spec, len(engine.kv_cache_config.kv_cache_groups))
        try:
            self._start(engine, offloading_spec, tokens, own)
        except UnknownIdentity as err:
            logger.warning("kvconn: KV is neither loaded nor saved: %s", err)
        engine.tier = self

    def _start(self, engine: _Engine, spec: Any, tokens: int, own: dict[str, Any]) -> None:
        """Connect, in the background where the daemon is not there or the weights are not known yet."""
        config, kv_cache_config = engine.vllm_config, engine.kv_cache_config
        since = files.started_at()
        size = tier_region.chunk_bytes(spec, tier_identity.parts(config, kv_cache_config, spec))
        describe = partial(tier_identity.describe, spec=spec, chunk_tokens=tokens)
        identity = entry.identity(config, kv_cache_config, since, own.get("digest_cache"), describe)
        client = KeyedClient(_options(spec, identity, own))
        self.pace = Pace(ahead=bool(getattr(config.scheduler_config, "async_scheduling", False)))
        self._images_by_content = entry.images_by_content(config)
        watcher = CoreWatcher(config, since)
        self._adapters = watcher.adapters
        identity.wait()
        client.register([self._fd], tier_region.layout(spec, size))
        rows = Rows(spec.num_chunks, tokens, identity.windows)
        self._side = watcher.side = TierSide(
            client, rows, self.pace, _PATIENCE_S, logger, watcher.adapters, self._shown
        )

    def met(self, request: Request) -> Terms | None:
        """Return what may be done for a request, whose adapter is looked at before the engine loads it."""
        if self._side is None:
            return None
        if request.lora_request is not None and self._adapters:
            self._adapters.scope(request.lora_request)
        return _terms(request, self._images_by_content, self._wishes)

    def step(self, scheduled: Mapping[str, int]) -> None:
        """Note a step, by the tokens that each request computes in it. `on_schedule_end` follows.

        vLLM's own account of a step leaves out the requests that run again after a preemption.
        """
        self._running = scheduled
        if scheduled:
            self.pace.step(scheduled)

    # Hooks of the tier, in the order of the calls.

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Note a request."""
        self._met(req_context)
        return RequestOffloadingContext()

    @guarded(lambda: None)
    def _met(self, context: ReqContext) -> None:
        terms = self._engine.terms.pop(context.req_id, None)
        if self._side and terms:
            context.set_state(self._side.met(context.req_id, terms))

    @guarded(lambda: LookupResult.MISS)
    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk can be loaded into a row."""
        request = req_context.get_state(TierRequest)
        if self._side is None or request is None:
            return LookupResult.MISS
        return _ANSWERS[self._side.look_up(request, key, req_context)]

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Have the daemon fill rows."""
        self._submit(job_metadata, load=True)

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Have the daemon keep the content of rows."""
        self._submit(job_metadata, load=False)

    def _submit(self, job: TransferJob, load: bool) -> None:
        """Begin a job. Whatever happens, `get_finished_jobs` returns it once."""
        if self._side is None:
            self._refused.append(JobResult(job.job_id, False))
            return
        try:
            begin = self._side.load if load else self._side.store
            rows = [int(row) for row in job.chunk_ids]
            request = job.req_context.get_state(TierRequest)
            begin(job.job_id, list(job.keys), rows, request, job.req_context)
        except Exception:  # noqa: BLE001 - it would end the engine
            logger.exception("kvconn: a %s failed, going on without cache", "load" if load else "store")
            self._side.give_up(job.job_id)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that have ended."""
        refused, self._refused = self._refused, []
        if self._side is None or not self._side.busy:
            return refused
        try:
            return refused + [JobResult(e.job, e.ok, e.loaded or None, e.seconds) for e in self._side.ended()]
        except Exception:  # noqa: BLE001 - it would end the engine
            logger.exception("kvconn: loads and saves can't be followed, going on without cache")
            self._side.give_up()
            return refused

    @guarded(lambda: None)
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Note the end of a step."""
        if self._side:
            self._side.step_ended(self._running, context.preempted_req_ids)

    @guarded(lambda: None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        """Note that a request has ended, and what it has used."""
        request = req_context.get_state(TierRequest)
        if self._side and request:
            self._side.finished(request, req_context)

    def take_events(self) -> Iterable[Any]:
        """Return KV events of what is kept, where vLLM publishes any."""
        return self._shown.take_events()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of `get_stats`, for vLLM's API server."""
        return tier_shown.definitions()

    def get_stats(self) -> Any:
        """Return what was counted since the last call, None where there is nothing."""
        return self._shown.take_stats()

    def drain_jobs(self) -> None:
        """Wait until no row is read or written, and use the cache no more.

        vLLM asks for it where its weights may be exchanged in place, and does not say whether they were.
        """
        if self._side is None:
            return
        self._side.stop("vLLM has reset its caches, and does not say whether its weights were exchanged")
        self._side.drain(_DRAIN_S)

    @guarded(lambda: None)
    def shutdown(self) -> None:
        """Disconnect."""
        if self._side:
            self._side.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:  # a second call must not close what has its number by then
            os.close(fd)


def _check(vllm_config: VllmConfig, own: dict[str, Any]) -> None:
    """Raise ValueError where the configuration cannot work."""
    if unknown := sorted(set(own) - set(_SETTINGS)):
        raise ValueError(f"kvconn: unknown settings {unknown} of the tier, known are {sorted(_SETTINGS)}")
    if not isinstance(own.get("socket"), str):
        raise ValueError("kvconn: the tier needs 'socket', the path of kvconnd's socket")
    tier_identity.check_hashes(vllm_config)
    check_parallel(vllm_config)


def _options(spec: Any, identity: Identity, own: dict[str, Any]) -> Options:
    """Return the client's options. Raises ValueError where they are out of bounds."""
    return Options(
        socket=own["socket"],
        engine=str(spec.config.engine_id),
        manifest=identity.manifest,
        client=f"kvconn-vllm-tier/{__version__} vllm/{vllm.__version__}",
        timeout=float(own.get("timeout", 1.0)),
        logger=logger,
    )


def _terms(request: Request, images_by_content: bool, reader: WishReader) -> Terms:
    """Return what may be done for a request."""
    asked = reader.read(request.kv_transfer_params)
    kept = can_be_told(request) and knows_images(request, images_by_content)
    salt = request.cache_salt or ""
    return Terms(
        kept and asked.load, kept and asked.save, request.lora_request, salt, asked.max_load_tokens, trace(request)
    )
