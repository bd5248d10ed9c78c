"""KV events of what kvconnd stores, for those who follow vLLM's own (docs/adr/0015-what-vllm-shows.md)."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils

from kvconn.client import PlannedSave, SaveResult
from kvconn.vllm.believed import Believed
from kvconn.vllm.harmless import harmless

if TYPE_CHECKING:
    from vllm.v1.request import Request

MEDIUM = "STORAGE"
_ORIGIN = {"locality": "LOCAL", "ownership": "kvconn"}

MAX_ANNOUNCED = 1 << 16
"""Blocks that followers believe in at one time."""
_PENDING_STEPS = 64
"""Steps whose saves are not reported yet. More are never under way."""

Block = tuple[int, Any]
"""A layer group, and vLLM's hash of a block."""


@dataclass
class _Run:
    """Consecutive blocks of a request's group, as they are announced."""

    group: int
    hashes: list[Any]
    event: dict[str, Any]


class Announcer:
    """Announces blocks that were saved or found, and takes back what may be gone. For one thread.

    The scheduler's process hears of no eviction. So each announcement ends: when a look-up does not
    find the block, when none has found it for a time, when there are too many, when the daemon is gone.
    """

    def __init__(
        self,
        block_size: int,
        shards: Sequence[int],
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.enabled = False
        """Whether there may be followers."""
        self.shown = "KV events of what is stored"
        self.logger = logger
        self._block_size = block_size
        self._shards = shards
        """The ranks that save a part of a block, of each layer group."""
        self._session = 0
        self._step = 0
        self._pending: OrderedDict[int, tuple[list[_Run], int]] = OrderedDict()
        self._believed = Believed[Block](MAX_ANNOUNCED, clock)
        self._events: list[Any] = []

    @harmless()
    def connected(self, session: int) -> None:
        """Note over which connection the daemon is reached. With another one nothing is certain any more."""
        if session != self._session:
            self._session = session
            self._pending.clear()
            self._remove(self._believed.everything())

    @harmless()
    def withdraw(self) -> None:
        """Take back everything: the engine loads nothing any more."""
        self._pending.clear()
        self._remove(self._believed.everything())

    @harmless(0)
    def planned(self, saves: Sequence[PlannedSave], request_of: Callable[[str], Request | None]) -> int:
        """Note what a step saves. Returns the number under which workers report it, 0 where they need not."""
        runs = [r for save in saves if (r := self._run(request_of(save.request), save.group, save.first, save.count))]
        if not runs:
            return 0
        self._step += 1
        self._pending[self._step] = (runs, sum(save.count * self._shards[save.group] for save in saves))
        while len(self._pending) > _PENDING_STEPS:
            self._pending.popitem(last=False)
        return self._step

    @harmless()
    def saved(self, results: dict[int, SaveResult]) -> None:
        """Announce the saves of steps whose blocks were all taken by all ranks, or were there already."""
        for number, result in results.items():
            runs, blocks = self._pending.pop(number, ((), 0))
            if result.dropped == 0 and result.taken + result.present >= blocks:
                for run in runs:
                    self._announce(run)

    @harmless()
    def looked_up(self, request: Request, computed: int, tokens: int, complete: bool) -> None:
        """Note what a look-up has found after the tokens that vLLM holds.

        It is `complete` if nothing else than a block that is not stored can have cut it short.
        """
        if len(self._shards) > 1 or computed % self._block_size:
            return
        first, count = computed // self._block_size, tokens // self._block_size
        if count > 0 and (run := self._run(request, 0, first, count)) is not None:
            self._announce(run)
        if complete and self._believed and first + count < (request.num_tokens - 1) // self._block_size:
            following = _hashes(request, self._block_size)[first + count :]
            self._remove([(0, h) for h in map(kv_cache_utils.maybe_convert_block_hash, following)])

    @harmless(())
    def take(self) -> Iterable[Any]:
        """Return the events since the last call."""
        self._remove(self._believed.expired())
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def _run(self, request: Request | None, group: int, first: int, count: int) -> _Run | None:
        # The keys that images and embeddings add to a block's hash are vLLM's business.
        if request is None or request.mm_features or request.prompt_embeds is not None:
            return None
        hashes = _hashes(request, self._block_size)
        if len(hashes) < first + count:
            return None
        convert = kv_cache_utils.maybe_convert_block_hash
        lora = request.lora_request
        size = self._block_size
        extra = [
            kv_cache_utils.generate_block_hash_extra_keys(request, i * size, (i + 1) * size, 0)[0]
            for i in range(first, first + count)
        ]
        event = {
            "parent_block_hash": convert(hashes[first - 1]) if first else None,
            "token_ids": list(request.all_token_ids[first * size : (first + count) * size]),
            "block_size": size,
            "lora_id": lora.adapter_id if lora is not None else None,
            "lora_name": lora.lora_name if lora is not None else None,
            "extra_keys": _published(extra),
        }
        return _Run(group, [convert(h) for h in hashes[first : first + count]], event)

    def _announce(self, run: _Run) -> None:
        """Announce a run, unless followers believe in all of it already."""
        blocks: list[Block] = [(run.group, h) for h in run.hashes]
        if self._believed.believe(blocks):
            fields = {"block_hashes": run.hashes, "medium": MEDIUM, "group_idx": run.group, **run.event, **_ORIGIN}
            self._events.append(_event(BlockStored, fields))
        self._remove(self._believed.too_many())

    def _remove(self, blocks: Sequence[Block]) -> None:
        """Take back what followers believe in."""
        gone: dict[int, list[Any]] = {}
        for group, block_hash in self._believed.forget(blocks):
            gone.setdefault(group, []).append(block_hash)
        for group, hashes in gone.items():
            fields = {"block_hashes": hashes, "medium": MEDIUM, "group_idx": group, **_ORIGIN}
            self._events.append(_event(BlockRemoved, fields))


def _hashes(request: Request, block_size: int) -> Sequence[Any]:
    """Return vLLM's hashes of a request's blocks, none where they are of other blocks than ours."""
    hashes = request.block_hashes
    return hashes if len(hashes) == request.num_tokens // block_size else ()


def _published(extra: list[Any]) -> Any:
    convert = getattr(kv_cache_utils, "to_event_extra_keys", None)
    return convert(extra) if convert is not None else extra


def _event(kind: Any, fields: dict[str, Any]) -> Any:
    """Make an event with those of the fields that this version of vLLM has."""
    return kind(**{name: value for name, value in fields.items() if name in kind.__struct_fields__})
