"""Saves of a GPU's memory, which end after the call that makes them: which blocks and requests they hold.

Scheduler and workers decide by a step's metadata alone which requests are held until their saves have ended, since
vLLM ends where a request is reported that it does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvconn.client import Alloc, PlannedSave, StoredPut

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class LaterSaves(Protocol):
    """What is used of a WorkerClient."""

    def save_later(self, save: str, meta: bytes) -> None:
        """Start a save."""

    def stored(self) -> list[StoredPut]:
        """Return the saves that have ended."""

    def revoke(self, blocks: Iterable[int]) -> None:
        """Take blocks back."""


class HeldRequests:
    """The requests that the scheduler's side has named among saves, until they end. For one thread."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def name(self, saves: Sequence[PlannedSave], tables: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
        """Note what a step saves. Returns the blocks by request, for the metadata."""
        named: dict[str, list[int]] = {}
        for save in saves:
            table = tables[save.request][save.group]
            named.setdefault(save.request, []).extend(table[save.first : save.first + save.count])
        self._named.update(named)
        return named

    def ended(self, request: str) -> bool:
        """Forget a request. Returns whether its blocks are held until the workers report it."""
        held = request in self._named
        self._named.discard(request)
        return held


def given_out(output: SchedulerOutput, allocs: Iterable[Alloc], block_size: int) -> list[int]:
    """Return the blocks that a step gives to requests and that hold nothing computed: they may be overwritten."""
    given: list[int] = []
    for new in output.scheduled_new_reqs:
        given += _from(new.block_ids, new.num_computed_tokens // block_size)
    cached: Any = output.scheduled_cached_reqs
    for request, tables, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
        # The whole tables of a request that is resumed, of others what is new.
        given += _from(tables or (), computed // block_size if request in cached.resumed_req_ids else 0)
    for alloc in allocs:
        given += _from(alloc.blocks, alloc.computed // block_size)
    return given


def _from(tables: Iterable[Sequence[int]], first: int) -> list[int]:
    return [block for table in tables for block in table[first:]]


class _Save(NamedTuple):
    number: int
    """The step's, 0 where nobody asks what became of it."""
    requests: frozenset[str]
    blocks: frozenset[int]


class SavesUnderWay:
    """A worker's saves. For one thread."""

    def __init__(self, client: LaterSaves) -> None:
        self._client = client
        self._next = 0
        self._saves: dict[str, _Save] = {}
        self._blocks: Counter[int] = Counter()
        """How many saves wait for a block."""
        self._requests: Counter[str] = Counter()
        """How many saves a request waits for; requests that were named are in here, also with 0."""
        self._ended: set[str] = set()
        """Requests that have ended and are not reported yet."""

    def overwritten(self, given: Iterable[int] | None) -> None:
        """Take back what a step gives out, all blocks for None.

        To be called before anything of the step is queued on the device.
        """
        if taken := [block for block in (self._blocks if given is None else given) if self._blocks.get(block)]:
            self._client.revoke(taken)

    def name(self, requests: Iterable[str]) -> None:
        """Note the requests that the metadata names, whether they are saved here or not."""
        for request in requests:
            self._requests[request] += 0

    def start(self, number: int, payload: bytes, saves: Mapping[str, Sequence[int]]) -> None:
        """Save what a step's payload says, which are these blocks of these requests."""
        self._next += 1
        blocks = frozenset(block for table in saves.values() for block in table)
        save = _Save(number, frozenset(saves), blocks)
        self._saves[str(self._next)] = save
        self._blocks.update(save.blocks)
        self._requests.update(save.requests)
        self._client.save_later(str(self._next), payload)

    def stored(self) -> list[tuple[int, StoredPut]]:
        """Take in which saves had ended at the client's last poll, and return them with the numbers of their steps."""
        ended = []
        for stored in self._client.stored():
            save = self._saves.pop(stored.request)
            self._blocks -= Counter(save.blocks)
            self._requests.subtract(save.requests)
            ended.append((save.number, stored))
        return ended

    def finished(self, requests: Iterable[str]) -> set[str]:
        """Take in which requests have ended, and return those that hold nothing any more, each once."""
        self._ended.update(request for request in requests if request in self._requests)
        done = {request for request in self._ended if not self._requests[request]}
        self._ended -= done
        for request in done:
            del self._requests[request]
        return done
