"""The backend's side, without SGLang's types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvconn.client import KeyedChannels, Part
from kvconn.sglang.pools import Pools
from kvconn.sglang.recent import Prompt, Recent


class Move(NamedTuple):
    """Pages of one pool: their keys, as SGLang has them, and the indices of all their slots."""

    pool: str
    keys: Sequence[str]
    indices: Any


class Side:
    """Asks, loads and saves, each on a thread of its own. No call raises for the daemon's sake."""

    CHANNELS = ("ask", "load", "save")

    def __init__(self, channels: KeyedChannels, pools: Pools, deadline: float) -> None:
        self._channels, self._pools, self._deadline = channels, pools, deadline
        self._ask, self._load, self._save = (channels.channel(name) for name in self.CHANNELS)
        self._recent = Recent()

    def present(self, keys: Sequence[str]) -> int:
        """Return how many pages of a prompt can be loaded in all pools, from the first."""
        if not keys:
            return 0
        hashes = _hashes(keys)
        prompt, forgotten = self._recent.asked(hashes)
        for old in forgotten:
            if old.failed:  # the others' leases end by themselves
                self._ask.touch(old.name, ())
        groups = self._ask.present(prompt.name, hashes)
        return min(_leading(bits, len(keys)) for bits in groups) if groups else 0

    def load(self, moves: Sequence[Move]) -> list[list[bool]]:
        """Load pages, and return which are there."""
        wanted = [(m, pages) for m in moves if (pages := self._pages(m)) is not None and m.keys]
        prompt = self._recent.of(bytes.fromhex(wanted[0][0].keys[0])) if wanted else None
        if prompt is None:  # the daemon was not asked for it
            return [[False] * len(m.keys) for m in moves]
        parts = [self._part(m, pages, prompt.parent(bytes.fromhex(m.keys[0]))) for m, pages in wanted]
        done = self._load.fetch_wait(parts, prompt.name, self._deadline)
        loaded = _by_move(moves, wanted, done)
        self._loaded(prompt, parts, loaded)
        return loaded

    def _loaded(self, prompt: Prompt, parts: Sequence[Part], loaded: Sequence[Sequence[bool]]) -> None:
        """Note how a load ended."""
        if not all(all(done) for done in loaded):
            prompt.failed = True

    def save(self, moves: Sequence[Move], before: str | None) -> list[list[bool]]:
        """Save pages that follow the page `before`, and return which are stored or on their way."""
        wanted = [(m, pages) for m in moves if (pages := self._pages(m)) is not None and m.keys]
        if not wanted:
            return [[False] * len(m.keys) for m in moves]
        parent = bytes.fromhex(before) if before else b""
        parts = [self._part(m, pages, parent) for m, pages in wanted]
        done = self._save.put_wait(parts, self._deadline)
        prompt = self._recent.of(parts[0].hashes[-1])
        if prompt is not None and self._recent.ended(prompt):  # it was computed: its request loads nothing more
            self._save.touch(prompt.name, prompt.hashes)
        return _by_move(moves, wanted, done)

    def _pages(self, move: Move) -> list[int] | None:
        group = self._pools.group(move.pool)
        return None if group is None else self._pools.pools[group].pages(move.indices, len(move.keys))

    def _part(self, move: Move, pages: list[int], parent: bytes) -> Part:
        group = self._pools.group(move.pool)
        assert group is not None  # noqa: S101 - it has pages
        return Part(group, parent, _hashes(move.keys), pages)

    def close(self) -> None:
        """Take the memory back and disconnect."""
        self._channels.close()


def _hashes(keys: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]


def _leading(bits: bytes, count: int) -> int:
    """Return how many bits are set from the first on."""
    number = int.from_bytes(bits, "little")
    return min(count, (~number & (number + 1)).bit_length() - 1)


def _by_move(
    moves: Sequence[Move], wanted: Sequence[tuple[Move, list[int]]], done: Sequence[bytes]
) -> list[list[bool]]:
    """Return which pages of each move are done, given the bitmaps of those that were wanted."""
    bits = {id(m): int.from_bytes(b, "little") for (m, _), b in zip(wanted, done, strict=True)}
    return [[bool(bits.get(id(m), 0) >> i & 1) for i in range(len(m.keys))] for m in moves]
