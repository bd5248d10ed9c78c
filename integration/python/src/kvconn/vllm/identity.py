"""Who an engine is to the cache: its manifest, once its weights are known."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvconn.vllm import manifest, settings
from kvconn.vllm.files import Digests
from kvconn.vllm.weights import Weights, weights_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_LONG_S = 5.0
"""What takes longer is worth a line in the log."""


class Identity:
    """The manifest of an engine, made in the background: hashing weights for the first time takes a while.

    `loading_since` is a point in time before the engine began to load weights. `digests` is where
    the digests of files are kept. `describe` makes the manifest without the weights. Raises
    UnknownIdentity where nothing would tell the KV of this engine from others', and ValueError for a
    KV cache that cannot be kept block by block.
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
        self._manifest: bytes | None = None
        self._digests, self._logger = digests, logger
        self._described = describe(vllm_config, kv_cache_config, engine)
        settings.check(vllm_config)
        load_config = vllm_config.load_config
        self._weights = weights_of(vllm_config.model_config, load_config, loading_since)
        self._draft: Weights | None = None
        draft, model = settings.draft_model(vllm_config), vllm_config.model_config
        if draft and (draft.model, draft.revision) == (model.model, model.revision):
            self._draft = self._weights  # layers of the model itself (MTP)
        elif draft:
            draft_load = getattr(vllm_config.speculative_config, "draft_load_config", None) or load_config
            self._draft = weights_of(draft, draft_load, loading_since)
        self._worker = threading.Thread(target=self._make, name="kvconn-identity", daemon=True)
        self._worker.start()

    @property
    def windows(self) -> list[int]:
        """The window of each layer group in tokens, 0 for full attention."""
        return [int(group["window"]) for group in self._described["groups"]]

    def manifest(self) -> bytes | None:
        """Return the manifest as JSON, None while it is not known."""
        return self._manifest

    def wait(self, seconds: float) -> None:
        """Wait until the manifest is known, but no longer."""
        self._worker.join(seconds)

    def _make(self) -> None:
        begun = time.monotonic()
        try:
            self._described["revision"] = self._weights.revision(self._digests)
            if self._draft is not None:
                same = self._draft is self._weights
                draft = self._described["revision"] if same else self._draft.revision(self._digests)
                self._described["extra"]["speculative.revision"] = draft
            encoded = json.dumps(self._described, sort_keys=True).encode()
        except Exception as err:  # noqa: BLE001 - whatever it is, the engine goes on without cache
            self._logger.warning("kvconn: KV is neither loaded nor saved: %s", err)
            return
        if (took := time.monotonic() - begun) >= _LONG_S:
            self._logger.info("kvconn: the weights' digest is known after %.0f s, the cache is used from now on", took)
        self._manifest = encoded


def digest_directory(configured: Any) -> Path | None:
    """Return where digests of weights are kept: the setting `digest_cache`, or the user's own cache."""
    if configured:
        return Path(str(configured))
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(cache) / "kvconn" / "digests"
