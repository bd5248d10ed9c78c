"""What is known of a request whose KV goes through vLLM's host region."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Any

from kvconn.client import Part

_GROUP_BYTES = 4
"""A key of vLLM's ends with the number of its layer group."""


class Phase(Enum):
    """How far a request's load is."""

    ASKING = auto()
    LOADING = auto()
    OVER = auto()
    """It is loaded or failed: nothing more is loaded for it, unless it is preempted."""


@dataclass
class Terms:
    """What may be done for a request, with which adapter it computes, and for which tenant."""

    load: bool = True
    save: bool = True
    adapter: Any = None
    """vLLM's LoRARequest, if it has one."""
    salt: str = ""
    """The tenant, by which what is saved can be listed. The hashes have it too."""
    most: int | None = None
    """The most tokens to load at a time, None without a bound."""
    trace: str = ""
    """The request's W3C traceparent, if it has one."""


@dataclass
class TierRequest:
    """A request's chunks, and what was promised of them."""

    id: str
    terms: Terms
    scope: str = ""
    """What separates the KV of its adapter from others'."""
    hashes: list[bytes] = field(default_factory=list)
    """The hash of each chunk, from the first of the prompt, as the daemon knows it."""
    phase: Phase = Phase.ASKING
    failed: bool = False
    asked_in: int = -1
    """The step in which the daemon was asked last."""
    first: int = 0
    """The chunk that the bitmaps begin with."""
    asked_to: int = 0
    """The chunk after the last that the daemon was asked for."""
    bitmaps: list[int] = field(default_factory=list)
    """A bit for each chunk that is offered, for each layer group."""
    wanted: int = 0
    """Rows that all that is offered takes."""
    left: int | None = 0
    """Rows that may still be filled in this step. None: others' come first."""
    answered: bool = False
    """Whether `left` was decided in this step."""
    known_in_order: bool = True
    """Whether vLLM has shown all keys at once; else the daemon is asked for each chunk alone."""
    _keys_seen: int = 0

    def learn(self, ends: Mapping[bytes, int], chunk: int) -> None:
        """Note the hashes of the keys that are new in `ends`, which has them in the order of the prompt."""
        if len(ends) != self._keys_seen:
            for key, end in islice(ends.items(), self._keys_seen, None):
                self.note(key, end, chunk)
            self._keys_seen = len(ends)

    def note(self, key: bytes, end: int | None, chunk: int) -> int | None:
        """Return the index of a key's chunk, whose hash is noted if it follows those that are known.

        None where that is not known, or the chunk there is another: its bytes go by their own hash or none.
        """
        if end is None or end <= 0 or end % chunk:
            return None
        index, known = end // chunk - 1, self._hash(key)
        if index == len(self.hashes):
            self.hashes.append(known)
        return index if index < len(self.hashes) and self.hashes[index] == known else None

    def _hash(self, key: bytes) -> bytes:
        prefix = key[:-_GROUP_BYTES]
        return hashlib.sha256(f"{self.scope}\n".encode() + prefix).digest() if self.scope else prefix

    def offered(self, group: int, index: int) -> bool:
        """Whether a chunk is offered."""
        return (
            index >= self.first and group < len(self.bitmaps) and bool(self.bitmaps[group] >> (index - self.first) & 1)
        )

    def covers(self, index: int) -> bool:
        """Whether the daemon was asked for a chunk."""
        return self.first <= index < self.asked_to

    def offers(self, group: int, index: int) -> int:
        """Return how many chunks of a group are offered, from one chunk on."""
        if group >= len(self.bitmaps):
            return 0
        return (self.bitmaps[group] >> max(0, index - self.first)).bit_count()

    def parts(self, chunks: Iterable[tuple[int, int, int]]) -> list[Part]:
        """Return chunks, each as group, index and row, as stretches of neighbours."""
        stretches: list[tuple[int, int, list[int]]] = []
        for group, index, row in sorted(chunks):
            if stretches:
                last, start, rows = stretches[-1]
                if last == group and start + len(rows) == index:
                    rows.append(row)
                    continue
            stretches.append((group, index, [row]))
        return [
            Part(group, self.hashes[start - 1] if start else b"", self.hashes[start : start + len(rows)], rows)
            for group, start, rows in stretches
        ]


def group_of(key: bytes) -> int:
    """Return the layer group of a key."""
    return int.from_bytes(key[-_GROUP_BYTES:], "big")
