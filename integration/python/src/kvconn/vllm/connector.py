"""The class that vLLM loads."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from kvconn import __version__
from kvconn.client import Options, SchedulerClient, WorkerClient
from kvconn.identity import files
from kvconn.identity.files import UnknownIdentity
from kvconn.vllm import entry, layout, releases
from kvconn.vllm.entry import CoreWatcher, check_parallel, guarded, logger
from kvconn.vllm.events import Announcer
from kvconn.vllm.identity import Identity
from kvconn.vllm.later import HeldRequests
from kvconn.vllm.manifest import block_size, keeps_windows, shards
from kvconn.vllm.metadata import Reported, StepMetadata
from kvconn.vllm.scheduler import SchedulerSide
from kvconn.vllm.stats import PromMetrics, Stats
from kvconn.vllm.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_UNREGISTER_TIMEOUT_S = 10.0
_SETTINGS = {"socket", "timeout", "digest_cache"}


class KVConnConnector(KVConnectorBase_V1, releases.Hybrid):  # type: ignore[misc]
    """Keeps vLLM's KV cache on disk through the node's kvconnd.

    Models with several KV cache groups (full attention and sliding windows) are cached too, and
    tensor-parallel and pipeline-parallel engines.

    Settings in `kv_connector_extra_config`: `socket`, the path of the daemon's socket; `timeout`,
    the seconds that a call to it may take (default 1); `digest_cache`, the directory where digests
    of weights are kept. Settings that cannot work raise ValueError at start; after that nothing that
    the daemon does or fails to do reaches the engine as an exception. Where nothing tells which
    weights the engine computes with, it goes on without cache, and one warning says why.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        releases.check()
        super().__init__(vllm_config, role, kv_cache_config)
        self._broken: set[str] = set()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._client: SchedulerClient | WorkerClient | None = None
        _check(vllm_config, kv_cache_config)
        try:
            since = files.started_at()
            own = vllm_config.kv_transfer_config.kv_connector_extra_config
            identity = entry.identity(vllm_config, kv_cache_config, since, own.get("digest_cache"))
        except UnknownIdentity as err:
            # One line says it: the scheduler's.
            level = logging.WARNING if role == KVConnectorRole.SCHEDULER else logging.DEBUG
            logger.log(level, "kvconn: KV is neither loaded nor saved: %s", err)
            return
        options = _options(vllm_config, role, identity)
        identity.wait()
        if role == KVConnectorRole.SCHEDULER:
            self._client = scheduler = SchedulerClient(options)
            watcher = CoreWatcher(vllm_config, since)
            images = entry.images_by_content(vllm_config)
            size = block_size(kv_cache_config)
            events = vllm_config.kv_events_config
            announcer = Announcer(size, shards(vllm_config, kv_cache_config), logger)
            announcer.enabled = events is not None and bool(events.enable_kv_cache_events)
            held = HeldRequests() if self._on_device(vllm_config) else None
            self._scheduler = watcher.side = SchedulerSide(
                scheduler, size, logger, watcher.adapters, images, announcer, held
            )
            scheduler.connect()
        else:
            parallel = vllm_config.parallel_config
            ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
            self._client = worker = WorkerClient(options, parallel.rank % ranks)
            self._worker = self.worker_side(worker, kv_cache_config, logger, self._on_device(vllm_config))

    worker_side = WorkerSide
    """What a worker makes. Tests have others."""

    @staticmethod
    def _on_device(vllm_config: VllmConfig) -> bool:
        """Whether the KV memory is a GPU's."""
        return bool(vllm_config.device_config.device_type == "cuda")

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Ask for a layout whose blocks are copied fast, where vLLM can choose."""
        try:
            return layout.preferred(vllm_config, cls._on_device(vllm_config))
        except Exception:  # noqa: BLE001 - whatever it is, the engine's own choice works, too
            logger.warning("kvconn: vLLM is asked for no layout of KV memory", exc_info=True)
            return None

    @property
    def requires_kv_delivery(self) -> bool:
        """A dropped save is a later miss, no reason to recompute a request."""
        return False

    # Worker side, in the order of the calls.

    @guarded(lambda: None)
    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """Have the KV memory allocated where the daemon can map it."""
        return self._worker.allocation_context() if self._worker else None

    @guarded(lambda: None)
    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Hand the KV memory to the daemon."""
        if self._worker:
            self._worker.register(kv_caches)

    @guarded(lambda: None)
    def unregister_kv_caches(self) -> None:
        """Take the KV memory back before the engine sleeps, which frees it whatever comes of this."""
        if self._worker:
            self._worker.unregister(_UNREGISTER_TIMEOUT_S)

    @guarded(lambda: None)
    def restore_kv_caches(self) -> None:
        """Hand the KV memory to the daemon again once the engine is awake."""
        if self._worker:
            self._worker.restore()

    @guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Start the step's loads here, before the forward pass, so that they run beside it."""
        if self._worker and isinstance(kv_connector_metadata, StepMetadata):
            self._worker.begin(kv_connector_metadata)

    @guarded(lambda: None)
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Start the step's loads where handle_preemptions was not called for it."""
        metadata = self._connector_metadata
        if self._worker and isinstance(metadata, StepMetadata):
            self._worker.begin(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: no layer of a running request waits for one."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Blocks are saved whole, after the last layer."""

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        """Save the blocks that the step filled; in host memory vLLM may overwrite them when this returns."""
        metadata = self._connector_metadata
        if self._worker and isinstance(metadata, StepMetadata):
            self._worker.save(metadata)

    @guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report the requests whose loads or saves have ended, to versions of vLLM without get_transfer_results."""
        if not self._worker:
            return None, None
        done, _ = self._worker.ended_loads()
        return self._worker.ended_saves(finished_req_ids) or None, done or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Report the requests whose loads or saves have ended, and those whose loads have failed as a whole."""
        done, failed = self._ended_loads()
        saved = self._ended_saves(finished_req_ids)
        results = releases.TransferResults
        if results is None:
            return None
        return results(finished_sending=saved, finished_recving=done, failed_recving=failed)

    @guarded(lambda: (set(), set()))
    def _ended_loads(self) -> tuple[set[str], set[str]]:
        return self._worker.ended_loads() if self._worker else (set(), set())

    @guarded(set)
    def _ended_saves(self, finished: set[str]) -> set[str]:
        return self._worker.ended_saves(finished) if self._worker else set()

    @guarded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Report the blocks that failed, in the same pass as the requests they were loaded for."""
        return self._worker.take_invalid() if self._worker else set()

    @guarded(lambda: None)
    def build_connector_worker_meta(self) -> Reported | None:
        """Report to the scheduler's side what the step's loads brought, and what became of its saves."""
        return self._worker.take_reported() if self._worker else None

    # What both sides show in vLLM's metrics.

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> Stats | None:
        """Return what happened since the last call, None where nothing did."""
        if self._worker:
            return self._worker.stats.take()
        return self._scheduler.hits.stats.take() if self._scheduler else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """Return stats that another process has sent."""
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromMetrics:
        """Register the metrics, in vLLM's API server."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Scheduler side, in the order of the calls.

    @guarded(lambda: None)
    def on_new_request(self, request: Request) -> None:
        """Look at a request's adapter before the engine loads it."""
        if self._scheduler:
            self._scheduler.met(request)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens kvconnd can load beyond those that vLLM holds."""
        return self._scheduler.match(request, num_computed_tokens) if self._scheduler else (0, False)

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Note the blocks to load into."""
        if self._scheduler:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    @guarded(dict)
    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[Any, int]:
        """Return which tiers the tokens of a load lie in."""
        return self._scheduler.hits.sources(request.request_id, num_external_tokens) if self._scheduler else {}

    @guarded(StepMetadata)
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Have the leader plan the step."""
        return self._scheduler.plan(scheduler_output) if self._scheduler else StepMetadata()

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Tell the leader how loads ended."""
        if self._scheduler:
            self._scheduler.loaded(connector_output)

    @guarded(tuple)
    def take_events(self) -> Iterable[Any]:
        """Return KV events of what is stored."""
        return self._scheduler.announcer.take() if self._scheduler else ()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Let the blocks go at once, where what is saved was copied out within its step. Say what was loaded."""
        return self._holds(request), self._said_of(request)

    @guarded(lambda: False)
    def _holds(self, request: Request) -> bool:
        return self._scheduler is not None and self._scheduler.holds(request.request_id)

    @guarded(lambda: None)
    def _said_of(self, request: Request) -> dict[str, Any] | None:
        return self._scheduler.finished(request.request_id) if self._scheduler else None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Do as request_finished, where there may be several KV cache groups."""
        return self.request_finished(request, [])

    @guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        """Offer this engine nothing of what was saved before, and save nothing more.

        vLLM asks for it where its weights may be exchanged in place, and does not say whether they
        were. What is stored stays: other engines share it.
        """
        if self._scheduler:
            self._scheduler.reset()
            self._scheduler.stop("vLLM has reset its caches, and does not say whether its weights were exchanged")
        return True

    @guarded(lambda: None)
    def shutdown(self) -> None:
        """Disconnect."""
        if self._client:
            self._client.close()


def _check(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Raise ValueError where the configuration cannot work."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        raise ValueError("kvconn: there is no kv_transfer_config")
    own = dict(transfer.kv_connector_extra_config)
    if unknown := sorted(set(own) - _SETTINGS):
        raise ValueError(
            f"kvconn: unknown settings {unknown} in kv_connector_extra_config, known are {sorted(_SETTINGS)}"
        )
    if not isinstance(own.get("socket"), str):
        raise ValueError("kvconn: kv_connector_extra_config needs 'socket', the path of kvconnd's socket")
    if transfer.kv_role != "kv_both":
        raise ValueError(f"kvconn: kv_role {transfer.kv_role!r}: the cache is read and written, set 'kv_both'")
    if transfer.kv_load_failure_policy != "recompute":
        raise ValueError(
            f"kvconn: kv_load_failure_policy {transfer.kv_load_failure_policy!r} makes a request fail with a"
            " block that could be recomputed, set 'recompute'"
        )
    _check_device(vllm_config)
    check_parallel(vllm_config)
    if releases.TransferResults is None and keeps_windows(kv_cache_config):
        raise ValueError("kvconn: for models with sliding windows vLLM must be one that has failed_recving (0.30 has)")


def _check_device(vllm_config: VllmConfig) -> None:
    """Raise ValueError for a device whose memory cannot be used."""
    kind = vllm_config.device_config.device_type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"kvconn: KV memory on {kind} is not supported")
    if kind == "cuda" and vllm_config.model_config.enable_sleep_mode and not releases.RESTORES:
        raise ValueError("kvconn: this vLLM does not say when KV memory goes to sleep, start without enable_sleep_mode")


def _options(vllm_config: VllmConfig, role: KVConnectorRole, identity: Identity) -> Options:
    """Return the client's options. Raises ValueError where they are out of bounds."""
    transfer = vllm_config.kv_transfer_config
    own = transfer.kv_connector_extra_config
    beside = role == KVConnectorRole.WORKER and _beside_scheduler(vllm_config.parallel_config)
    return Options(
        socket=own["socket"],
        engine=str(transfer.engine_id),
        manifest=identity.manifest,
        client=f"kvconn-vllm/{__version__} vllm/{vllm.__version__}",
        timeout=float(own.get("timeout", 1.0)),
        logger=logger,
        # One line says it: the scheduler's. Other nodes have daemons of their own.
        absent_level=logging.INFO if beside else logging.WARNING,
    )


def _beside_scheduler(parallel: Any) -> bool:
    """Whether the configuration says that a worker runs on the scheduler's node, and has the same daemon."""
    if getattr(parallel, "distributed_executor_backend", None) == "ray":
        return False  # it may run anywhere
    return getattr(parallel, "node_rank_within_dp", 0) == 0
