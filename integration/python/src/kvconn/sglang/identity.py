"""Who an SGLang engine is to the cache: its manifest, once its weights are known."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

from kvconn.sglang import manifest
from kvconn.vllm.files import Digests


class Identity:
    """The manifest of an engine, made in the background: hashing weights for the first time takes a while.

    `described` is the manifest without the weights, `args` are SGLang's ServerArgs, and `loading_since` is a point
    in time before the engine began to load weights. `digests` is the directory where the digests of files are
    kept. Raises UnknownIdentity where nothing would tell the KV of this engine from others'.
    """

    def __init__(
        self,
        described: dict[str, Any],
        args: Any,
        *,
        loading_since: float,
        digests: Path | None,
        logger: logging.Logger,
    ) -> None:
        self._manifest: bytes | None = None
        self._described, self._digests, self._logger = described, Digests(digests), logger
        self._weights = manifest.weights(args, loading_since)
        self._draft = manifest.draft_weights(args, loading_since)
        self._worker = threading.Thread(target=self._make, name="kvconn-identity", daemon=True)
        self._worker.start()

    def manifest(self) -> bytes | None:
        """Return the manifest as JSON, None while it is not known."""
        return self._manifest

    def wait(self, seconds: float) -> None:
        """Wait until the manifest is known, but no longer."""
        self._worker.join(seconds)

    def _make(self) -> None:
        try:
            self._described["revision"] = self._weights.revision(self._digests)
            if self._draft is not None:
                self._described["extra"]["speculative.revision"] = self._draft.revision(self._digests)
            self._manifest = json.dumps(self._described, sort_keys=True).encode()
        except Exception as err:  # noqa: BLE001 - whatever it is, the engine goes on without cache
            self._logger.warning("kvconn: KV is neither loaded nor saved: %s", err)
