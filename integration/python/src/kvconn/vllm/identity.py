"""Who a vLLM engine is to the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvconn.identity.background import DRAFT, BackgroundManifest
from kvconn.identity.files import Digests
from kvconn.identity.weights import Weights, weights_of
from kvconn.vllm import manifest, settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class Identity(BackgroundManifest):
    """The manifest of a vLLM engine.

    `loading_since` is a point in time before the engine began to load weights. `describe` makes the manifest
    without the weights. Raises UnknownIdentity where nothing would tell the KV of this engine from others', and
    ValueError for a KV cache that cannot be kept block by block.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        engine: str,
        *,
        loading_since: float,
        digests: Digests,
        logger: logging.Logger,
        describe: Callable[[VllmConfig, KVCacheConfig, str], dict[str, Any]] = manifest.describe,
    ) -> None:
        described = describe(vllm_config, kv_cache_config, engine)
        settings.check(vllm_config)
        load_config = vllm_config.load_config
        weights = weights_of(vllm_config.model_config, load_config, loading_since)
        others: dict[str, Weights] = {}
        draft, model = settings.draft_model(vllm_config), vllm_config.model_config
        if draft and (draft.model, draft.revision) == (model.model, model.revision):
            others[DRAFT] = weights  # layers of the model itself (MTP)
        elif draft:
            draft_load = getattr(vllm_config.speculative_config, "draft_load_config", None) or load_config
            others[DRAFT] = weights_of(draft, draft_load, loading_since)
        super().__init__(described, weights, others, digests=digests, logger=logger)

    @property
    def windows(self) -> list[int]:
        """The window of each layer group in tokens, 0 for full attention."""
        return [int(group["window"]) for group in self._described["groups"]]
