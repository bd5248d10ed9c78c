"""Who an engine is to the cache: its manifest, once its weights are known."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kvconn.identity.files import Digests
from kvconn.identity.weights import Weights

DRAFT = "speculative.revision"
"""The field of `extra` that has the weights of a draft model."""
_LONG_S = 5.0
"""What takes longer is worth a line in the log."""


class Source(Protocol):
    """What changes KV and is told apart by its files."""

    def revision(self, digests: Digests) -> str:
        """Return what tells it apart from all others. Raises UnknownIdentity."""


class BackgroundManifest:
    """The manifest of an engine, made in the background: hashing weights for the first time takes a while.

    `described` is the manifest without the weights. `others` are those of a draft model or of adapters, by the
    field of `extra` that they go to, and may be the same object as `weights`. `digests` is where the digests of
    files are kept.
    """

    _WAIT_S = 2.0
    """How long the start waits for the weights' digest. It is known at once, except for large weights that are new."""

    def __init__(
        self,
        described: dict[str, Any],
        weights: Weights,
        others: Mapping[str, Source],
        *,
        digests: Digests,
        logger: logging.Logger,
    ) -> None:
        self._manifest: bytes | None = None
        self._described, self._weights, self._others = described, weights, others
        self._digests, self._logger = digests, logger
        self._worker = threading.Thread(target=self._make, name="kvconn-identity", daemon=True)
        self._worker.start()

    def manifest(self) -> bytes | None:
        """Return the manifest as JSON, None while it is not known."""
        return self._manifest

    def wait(self, seconds: float = _WAIT_S) -> None:
        """Wait until the manifest is known, but no longer."""
        self._worker.join(seconds)

    def _make(self) -> None:
        begun = time.monotonic()
        try:
            self._described["revision"] = self._weights.revision(self._digests)
            for field, others in self._others.items():
                same = others is self._weights
                revision = self._described["revision"] if same else others.revision(self._digests)
                self._described["extra"][field] = revision
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
