"""The storage backend that SGLang makes, and calls from several threads."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import sglang
from sglang.srt import runtime_context
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolTransfer,
    PoolTransferResult,
)

from kvconn import __version__
from kvconn.client import KeyedChannels, Options
from kvconn.guard import guarded
from kvconn.identity import files
from kvconn.identity.background import BackgroundManifest, digest_directory
from kvconn.identity.files import Digests, UnknownIdentity
from kvconn.sglang import manifest, options, releases, weight_updates
from kvconn.sglang.late import LateCalls
from kvconn.sglang.pools import Pools
from kvconn.sglang.side import Move, Side

logger = logging.getLogger("sglang.kvconn")  # below "sglang", whose handlers it uses

_ANCHOR = "kv"
F = TypeVar("F", bound=Callable[..., Any])


def _call(otherwise: Callable[..., Any]) -> Callable[[F], F]:
    """Keep exceptions of a call from the engine, and note how long it takes."""

    def decorate(call: F) -> F:
        safe = guarded(logger, otherwise)(call)

        @wraps(call)
        def timed(self: KVConnStorage, *args: Any, **kwargs: Any) -> Any:
            side = self._side
            begun, held_s = time.monotonic(), side.held_s if side is not None else 0.0
            try:
                return safe(self, *args, **kwargs)
            finally:
                held_s = side.held_s - held_s if side is not None else 0.0
                self._late.note(call.__name__, time.monotonic() - begun, held_s)

        return cast(F, timed)

    return decorate


def _none_of(keys: Sequence[Any], *_args: Any, **_kwargs: Any) -> list[bool]:
    return [False] * len(keys or ())


def _none_of_any(transfers: Sequence[PoolTransfer], *_args: Any, **_kwargs: Any) -> dict[Any, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers or ()}


class KVConnStorage(HiCacheStorage):
    """SGLang's storage backend in the node's kvconnd, for its interfaces v1 and v2.

    Settings, in SGLang's extra configuration: `socket`, the path of the daemon's socket; `deadline`, the seconds that
    a call may take (default 0.8); `digest_cache`, the directory where digests of weights are kept. Settings that
    cannot work raise ValueError at start; after that no call raises, and each ends within the deadline, whatever the
    daemon does.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, _: Any = None) -> None:
        self._broken: set[str] = set()
        self._config = storage_config
        flag = getattr(runtime_context.get_memory(), "hicache_storage_backend_extra_config", None)
        self._settings = options.read(storage_config.extra_config, flag)
        manifest.check(storage_config)
        releases.tell(sglang.__version__, logger)
        self._late = LateCalls(logger, self._settings.deadline)
        self._pools = Pools()
        self._side: Side | None = None
        self._asked = False  # whether a call has come
        self._pid = os.getpid()
        self._off = False
        if not self._watch_weights():
            self._off = True

    def _watch_weights(self) -> bool:
        try:
            from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager
        except ImportError:
            found = []
        else:
            found = weight_updates.watch(Manager, self)
            # Not imported for this: the engine has it, and only an engine has a scheduler.
            if (scheduler := getattr(sys.modules.get("sglang.srt.managers.scheduler"), "Scheduler", None)) is not None:
                weight_updates.watch(scheduler, self, weight_updates.SCHEDULER_METHODS)
        if "update_weights_from_disk" not in found:
            logger.warning("kvconn: KV is neither loaded nor saved: this SGLang does not show when its weights change")
        return "update_weights_from_disk" in found

    def weights_exchanged(self, by: str) -> None:
        """Stop where the engine gets other weights than those that it was started with."""
        self._stop(f"its weights may have been exchanged, by {by}")

    def _stop(self, why: str) -> None:
        if not self._off:
            logger.warning("kvconn: KV is neither loaded nor saved until the engine is restarted: %s", why)
        self._off = True

    def _used(self) -> Side | None:
        """Return what loads and saves, None where nothing does."""
        # A child that was forked would read its parent's answers.
        side = None if self._off or os.getpid() != self._pid else self._side
        self._asked = self._asked or side is not None
        return side

    # Registration, on the main thread, in the order of the calls.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Note the anchor pool. Raises ValueError where the daemon could not map it."""
        super().register_mem_pool_host(mem_pool_host)
        self._add(_ANCHOR, mem_pool_host)
        if not hasattr(HiCacheStorage, "on_host_pools_registered"):
            # SGLang 0.5.22 does not say when all pools are there. Others come after this one, as a draft model's do.
            self.on_host_pools_registered()

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Note another pool. Raises ValueError where the daemon could not map it."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(str(host_pool_name), host_pool)

    def _add(self, name: str, pool: Any) -> None:
        if self._off:
            return
        if self._side is None:
            self._pools.add(name, pool)
            return
        try:
            added = self._pools.add(name, pool)
        except ValueError as err:
            self._stop(str(err))
            return
        if added and self._asked:
            self._stop(f"pool {name} came after the first call, and what is stored lacks it")
        elif added:  # that of a draft model always comes after the others
            self._side.close()
            self._side = None
            self.on_host_pools_registered()

    def on_host_pools_registered(self) -> None:
        """Connect, in the background where the daemon is not there or the weights are not known yet."""
        if self._off or self._side is not None:
            return
        try:
            self._side = self._connect()
        except UnknownIdentity as err:
            self._off = True
            logger.warning("kvconn: KV is neither loaded nor saved: %s", err)
        except Exception:  # the engine would not start
            self._off = True
            logger.exception("kvconn: KV is neither loaded nor saved: the engine is not as this version expects it")

    def _connect(self) -> Side:
        args = runtime_context.get_server_args()
        engine = f"sglang/{sglang.__version__}"
        self._pools.windows = manifest.windows(self._pools.pools, _model_config)
        described = manifest.describe(engine, args, self._config, self._pools.pools, self._pools.windows)
        loading_since = files.started_at()
        identity = BackgroundManifest(
            described,
            manifest.weights(args, loading_since),
            manifest.others(args, loading_since),
            digests=Digests(digest_directory(self._settings.digest_cache)),
            logger=logger,
        )
        client = Options(
            socket=self._settings.socket,
            engine=f"sglang-{socket.gethostname()}-{os.getppid()}-{_replica(self._config)}",
            manifest=identity.manifest,
            client=f"kvconn-sglang/{__version__} {engine}",
            timeout=self._settings.deadline,
            logger=logger,
        )
        channels = KeyedChannels(client, Side.CHANNELS, int(self._config.tp_rank))
        identity.wait()
        channels.register(self._pools.fds, [pool.layout for pool in self._pools.pools])
        return Side(channels, self._pools, int(self._pools.pools[0].host.page_size), self._settings.deadline)

    # Questions, on one thread.

    @_call(lambda *_args, **_kwargs: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return how many pages of a prompt can be loaded, from the first."""
        side = self._used()
        return 0 if side is None else side.present(keys)

    @_call(lambda *_args, **_kwargs: PoolTransferResult.empty())
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Return how many pages of a prompt can be loaded, in all pools."""
        asked, side = pool_transfers or [], self._used()
        if side is None or not all(self._known(t) for t in asked):
            return PoolTransferResult.empty()
        hit = side.present(keys)
        if not hit:
            return PoolTransferResult(0, {}, [])
        return PoolTransferResult(hit, {_ANCHOR: hit} | {t.name: hit for t in asked}, [hit])

    def _known(self, transfer: PoolTransfer) -> bool:
        """Whether a pool is stored, and in the way that SGLang asks for it."""
        window = self._pools.windows.get(str(transfer.name), 0)
        if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            asked = window > 0 and len(transfer.keys or [""]) <= window
        else:
            asked = window == 0 and transfer.hit_policy == PoolHitPolicy.ALL_PAGES
        return asked and self._pools.group(str(transfer.name)) is not None

    # Loads, on another thread.

    @_call(_none_of)
    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Load pages of the anchor pool."""
        side = self._used()
        if side is None:
            return _none_of(keys)
        loaded = side.load([Move(_ANCHOR, keys, host_indices)])[0]
        return _none_of(keys) if self._off else loaded  # the weights may have been exchanged meanwhile

    @_call(_none_of_any)
    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        """Load pages of other pools."""
        side = self._used()
        if side is None:
            return _none_of_any(transfers)
        moved = side.load([Move(str(t.name), t.keys or [], t.host_indices) for t in transfers])
        return _none_of_any(transfers) if self._off else {t.name: m for t, m in zip(transfers, moved, strict=True)}

    # Saves, on a third.

    @_call(_none_of)
    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Save pages of the anchor pool. What is stored already is left as it is."""
        side = self._used()
        if side is None:
            return _none_of(keys)
        return side.save([Move(_ANCHOR, keys, host_indices)], _prefix(extra_info))[0]

    @_call(_none_of_any)
    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        """Save pages of other pools."""
        side = self._used()
        if side is None:
            return _none_of_any(transfers)
        moves = [Move(str(t.name), t.keys or [], t.host_indices) for t in transfers]
        return {t.name: done for t, done in zip(transfers, side.save(moves, _prefix(extra_info)), strict=True)}

    def clear(self) -> None:
        """Leave what is stored as it is: other engines share it."""
        logger.warning("kvconn: what is stored is shared with other engines, and stays")

    @_call(lambda: None)
    def close(self) -> None:
        """Disconnect."""
        self._off = True
        if self._side is not None and os.getpid() == self._pid:
            self._side.close()

    # The interface without pages' indices, which SGLang uses without "interface_v1": it has nothing.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Return nothing."""
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        """Return nothing."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Save nothing."""
        return False

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Save nothing."""
        return False

    def exists(self, key: str) -> bool:
        """Return whether one page can be loaded."""
        return self.batch_exists([key]) == 1


def _prefix(extra_info: HiCacheStorageExtraInfo | None) -> str | None:
    """Return the hash of the page before those of a call, None at the root of a prompt."""
    before = extra_info.prefix_keys if extra_info is not None else None
    return before[-1] if before else None


def _model_config() -> Any:
    """Return the configuration of the engine's model. Raises UnknownIdentity where this SGLang does not show it."""
    try:
        return runtime_context.process_model_config()
    except Exception as err:
        raise UnknownIdentity(f"this SGLang does not show its model's configuration: {err}") from err


def _replica(storage: HiCacheStorageConfig) -> int:
    """Return the number of the engine's data-parallel replica."""
    try:
        return int(runtime_context.get_parallel().dp_rank or 0) or int(storage.dp_rank)
    except (AttributeError, RuntimeError, ValueError):
        return int(storage.dp_rank)
