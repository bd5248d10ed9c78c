"""What loads brought, by tier: for vLLM's metrics, and for the answers of requests."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvconn.client import Offer
from kvconn.vllm.harmless import harmless
from kvconn.vllm.metadata import Reported
from kvconn.vllm.stats import Stats

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # a version that does not tell sources apart does not ask for them
    CacheHitSource = None

_SOURCES = {"host": "HOST", "disk": "DISK"}
"""vLLM's names of our tiers. All others are EXTERNAL_UNSPECIFIED."""


@dataclass(slots=True)
class _Request:
    offer: Offer
    loading: Sequence[int] = ()
    """Blocks of the load under way, of all groups, in the order of their tables."""
    external: int = 0
    """Tokens that they hold."""
    blocks: dict[str, int] = field(default_factory=dict)
    """Those that ranks have reported by now, by tier."""
    loaded_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens of all loads that have ended, by tier."""
    taken: bool = False
    """Whether vLLM has taken the offer, and the next is another one."""


class Hits:
    """Follows requests from their offer to their end. For one thread."""

    def __init__(self, block_size: int, logger: logging.Logger) -> None:
        self.enabled = True
        self.shown = "figures of what is loaded"
        self.logger = logger
        self._block_size = block_size
        self._requests: dict[str, _Request] = {}
        self.stats = Stats()

    @harmless(False)
    def offered(self, request_id: str, offer: Offer) -> bool:
        """Note what the leader answers. Returns whether it is the first answer for the request."""
        request = self._requests.get(request_id)
        if request is not None:
            # A first look-up may have the daemon read ahead: what a repeated one finds was not there before.
            if request.taken or request.offer.tokens != offer.tokens:
                request.offer, request.taken = offer, False
            return False
        self._requests[request_id] = _Request(offer)
        self.stats.count("refused_tokens", offer.refused)
        return True

    @harmless()
    def taken(self, request_id: str, external: int, loading: Sequence[int]) -> None:
        """Note that vLLM has the tokens of an offer loaded into these blocks."""
        request = self._requests.get(request_id)
        if request is not None:
            request.external, request.loading, request.blocks, request.taken = external, loading, {}, True

    def sources(self, request_id: str, external: int) -> dict[Any, int]:
        """Return the tokens of a load by the source that vLLM knows for the tier that they lie in.

        Where it took less of the offer than there was, and this lies in several tiers, nothing tells which.
        """
        request = self._requests.get(request_id)
        if CacheHitSource is None or external <= 0:
            return {}
        tiers = request.offer.tiers if request is not None else {}
        if len(tiers) == 1:
            tiers = dict.fromkeys(tiers, external)
        elif sum(tiers.values()) != external:
            tiers = {"": external}
        out: dict[Any, int] = {}
        for tier, tokens in tiers.items():
            source = CacheHitSource[_SOURCES.get(tier, "EXTERNAL_UNSPECIFIED")]
            out[source] = out.get(source, 0) + tokens
        return out

    @harmless()
    def reported(self, reported: Reported) -> None:
        """Add what ranks report of loads that have ended there."""
        for request_id, tiers in reported.loads.items():
            request = self._requests.get(request_id)
            if request is not None:
                for tier, blocks in tiers.items():
                    request.blocks[tier] = request.blocks.get(tier, 0) + blocks

    @harmless()
    def ended(self, request_id: str, invalid: Collection[int]) -> None:
        """Note that all ranks have ended a load, with these blocks failed."""
        request = self._requests.get(request_id)
        if request is None:
            return
        used = request.external
        if invalid:
            # vLLM keeps what is before the first failed block; with several groups it keeps nothing.
            one_group = len(request.loading) * self._block_size == request.external
            good = next((i for i, b in enumerate(request.loading) if b in invalid), 0)
            used = good * self._block_size if one_group else 0
        tokens = _shares(used, request.blocks)
        request.external, request.loading, request.blocks = 0, (), {}
        self.stats.count_all("loaded_tokens", tokens)
        for tier, n in tokens.items():
            request.loaded_tokens[tier] = request.loaded_tokens.get(tier, 0) + n

    @harmless()
    def finished(self, request_id: str) -> dict[str, Any] | None:
        """Forget a request. Returns what its answer says of it, None where nothing was loaded."""
        request = self._requests.pop(request_id, None)
        if request is None or not request.loaded_tokens:
            return None
        return {"kvconn": {"loaded_tokens": request.loaded_tokens}}


def _shares(tokens: int, blocks: Mapping[str, int]) -> dict[str, int]:
    """Return tokens in the proportions of blocks: exact, if all blocks hold as many and all are used."""
    total = sum(blocks.values())
    if total == 0 or tokens == 0:
        return {}
    out = {tier: tokens * n // total for tier, n in blocks.items()}
    out[max(blocks, key=lambda tier: blocks[tier])] += tokens - sum(out.values())
    return {tier: n for tier, n in out.items() if n > 0}
