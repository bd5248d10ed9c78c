"""What both ways into vLLM begin with: exception-proof hooks, and what is known of the engine at its start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import vllm
from vllm.logger import init_logger

from kvconn import guard
from kvconn.identity.background import digest_directory
from kvconn.identity.files import Digests, UnknownIdentity
from kvconn.vllm import engine_hooks, manifest, settings
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.identity import Identity

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.kvconn")  # below "vllm", whose handlers it uses


def guarded(otherwise: Callable[[], Any]) -> Callable[[guard.F], guard.F]:
    """Keep exceptions from the engine, which dies of them: log, and return the answer for "no cache"."""
    return guard.guarded(logger, lambda *_args, **_kwargs: otherwise())


def check_parallel(vllm_config: VllmConfig) -> None:
    """Raise ValueError where ranks share prompts in a way that is not supported."""
    for size in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(vllm_config.parallel_config, size, 1) > 1:
            raise ValueError(f"kvconn: {size} above 1 is not supported yet")


def identity(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    loading_since: float,
    digest_cache: Any,
    describe: Callable[[VllmConfig, KVCacheConfig, str], dict[str, Any]] = manifest.describe,
) -> Identity:
    """Return the engine's identity. Raises ValueError, and UnknownIdentity where this vLLM is not understood."""
    try:
        return Identity(
            vllm_config,
            kv_cache_config,
            f"vllm/{vllm.__version__}",
            loading_since=loading_since,
            digests=Digests(digest_directory(digest_cache)),
            logger=logger,
            describe=describe,
        )
    except ValueError:
        raise
    except Exception as err:
        raise UnknownIdentity(f"this vLLM is not understood: {type(err).__name__}: {err}") from err


def images_by_content(vllm_config: VllmConfig) -> bool:
    """Whether vLLM hashes images and the like. Without any cache of its own it counts them from 0 at each start."""
    multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
    if multimodal is None or vllm_config.cache_config.enable_prefix_caching:
        return True
    return bool(getattr(multimodal, "mm_processor_cache_gb", 0) != 0)


class Side(Protocol):
    """What loads and saves, in the scheduler's process."""

    def stop(self, why: str) -> None:
        """Load and save nothing any more."""


class CoreWatcher:
    """Hears of what the engine core does beside: it looks at adapters, and stops a side whose weights may be others."""

    side: Side | None = None

    def __init__(self, vllm_config: VllmConfig, loading_since: float) -> None:
        from vllm.v1.engine.core import EngineCore  # the other processes do without

        self._broken: set[str] = set()
        lora = settings.of_adapters(vllm_config)  # before the core is watched: it may raise
        self.adapters = Adapters(loading_since, engine_hooks.watch(EngineCore, self), lora, logger)

    def adapter_loads(self, lora: Any, load: Callable[[], Any]) -> Any:
        """Load an adapter, whose files are looked at before."""
        return self.adapters.loading(lora, load)

    @guarded(lambda: None)
    def weights_exchanged(self, by: str) -> None:
        """Stop where the engine gets other weights than those that it was started with."""
        if self.side:
            self.side.stop(f"its weights may have been exchanged, by {by}")
