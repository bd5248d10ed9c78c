"""The backend's side, without SGLang's types."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kvconn.client import KeyedChannels, Part
from kvconn.frames import MAX_HASHES
from kvconn.sglang.pace import Pace
from kvconn.sglang.pools import Pools
from kvconn.sglang.recent import Recent


class Move(NamedTuple):
    """Pages of one pool: their keys, as SGLang has them, and the indices of all their slots."""

    pool: str
    keys: Sequence[str]
    indices: Any


class Side:
    """Asks, loads and saves, each on a thread of its own. No call raises for the daemon's sake."""

    CHANNELS = ("ask", "load", "save", "end")

    def __init__(
        self,
        channels: KeyedChannels,
        pools: Pools,
        page_tokens: int,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channels, self._pools = channels, pools
        self._page_tokens, self._deadline, self._clock = page_tokens, deadline, clock
        self._ask, self._load, self._save, self._end = (channels.channel(name) for name in self.CHANNELS)
        self._recent, self._pace = Recent(), Pace()
        self._ends: queue.SimpleQueue[tuple[str, list[bytes], int, float] | None] = queue.SimpleQueue()
        threading.Thread(target=self._tell_ends, name="kvconn-ends", daemon=True).start()

    @property
    def held_s(self) -> float:
        """Seconds that loads and saves so far waited for a daemon that stood still in the middle of a copy."""
        return self._load.held_s + self._save.held_s

    def present(self, keys: Sequence[str]) -> int:
        """Return how many pages of a prompt can be loaded in all pools, from the first.

        Of a prompt with more than MAX_HASHES pages those after them are not asked for.
        """
        if not keys:
            return 0
        hashes, now = _hashes(keys[:MAX_HASHES]), self._clock()
        prompt = self._recent.asked(hashes, now)
        groups = self._ask.present(prompt.name, hashes, parent=None)
        prompt.held = self._held(groups, len(hashes))
        return prompt.held

    def _held(self, groups: Sequence[bytes], count: int) -> int:
        """Return how many pages are there in all pools, from the first; of some pools the last ones do."""
        windows = [self._pools.windows.get(pool.name, 0) for pool in self._pools.pools]
        if len(groups) != len(windows):  # the memory has just been taken back
            return 0
        pools = list(zip(groups, windows, strict=True))
        held = min(_leading(bits, count) for bits, window in pools if not window)
        for bits, window in pools:
            needed = range(max(0, held - window), held) if window else ()
            if not all(bits[i // 8] >> i % 8 & 1 for i in needed):
                return 0
        return held

    def load(self, moves: Sequence[Move]) -> list[list[bool]]:
        """Load pages, and return which are there."""
        wanted = self._wanted(moves)
        if not wanted:
            return _by_move(moves, wanted, ())
        asked = bytes.fromhex(wanted[0][0].keys[-1])
        prompt = self._recent.of(asked)
        name = prompt.name if prompt is not None else asked.hex()
        parts = [self._part(m, pages, None) for m, pages in wanted]  # SGLang does not say what the first one follows
        done = _by_move(moves, wanted, self._loaded(parts, name))
        if prompt is not None and not all(all(pages) for pages in done):
            self._recent.failed(prompt, self._clock())
        return done

    def _loaded(self, parts: Sequence[Part], name: str) -> list[bytes]:
        """Load parts, and return a bitmap for each.

        Of a pool with a window the page before one was often not saved with it, and its record has another for a
        parent. So each of its pages is a part, which its own hash proves.
        """
        windowed = [bool(self._pools.windows.get(self._pools.pools[part.group].name)) for part in parts]
        asked: list[Part] = []
        for part, apart in zip(parts, windowed, strict=True):
            asked += _pages_of(part) if apart else [part]
        answers = iter(self._load.fetch_wait(asked, name, self._deadline))
        return [
            _joined([next(answers) for _ in part.hashes]) if apart else next(answers)
            for part, apart in zip(parts, windowed, strict=True)
        ]

    def save(self, moves: Sequence[Move], before: str | None) -> list[list[bool]]:
        """Save pages that follow the page `before`, and return which are stored or on their way."""
        begun = self._clock()
        wanted = self._wanted(moves)
        if not wanted:
            return _by_move(moves, wanted, ())
        parent = bytes.fromhex(before) if before else b""
        parts = [self._part(m, pages, parent) for m, pages in wanted]
        done = _by_move(moves, wanted, self._save.put_wait(parts, self._deadline))
        self._computed(parts[0].hashes[-1], begun)
        return done

    def _computed(self, page: bytes, at: float) -> None:
        """Note that the engine had computed a page by then. The request of its prompt loads nothing more."""
        prompt = self._recent.of(page)
        if prompt is None or prompt.pages[page] < prompt.held:
            return
        tokens = (prompt.pages[page] + 1 - prompt.held) * self._page_tokens
        seconds = at - self._recent.asked_at(page, prompt.asked_at)  # another prompt's pass may have computed it
        counts = self._pace.counts(tokens, seconds)
        last = prompt.pages[page] + 1 == len(prompt.pages)
        if last:
            self._recent.ended(prompt)
        if counts or last:
            # A long prompt is saved in hundreds of calls: its pages are named once, at the end.
            hashes = list(prompt.pages) if last else []
            self._ends.put((prompt.name, hashes, *((tokens, seconds) if counts else (0, 0.0))))

    def _tell_ends(self) -> None:
        """Tell the daemon of requests that have ended. No thread of the engine waits for it."""
        while (end := self._ends.get()) is not None:
            with contextlib.suppress(Exception):  # without this thread the queue only grows
                self._end.touch(*end)

    def _wanted(self, moves: Sequence[Move]) -> list[tuple[Move, list[int]]]:
        """Return the moves that name pages, with the numbers of these."""
        return [(m, pages) for m in moves if m.keys and (pages := self._pages(m)) is not None]

    def _pages(self, move: Move) -> list[int] | None:
        group = self._pools.group(move.pool)
        return None if group is None else self._pools.pools[group].pages(move.indices, len(move.keys))

    def _part(self, move: Move, pages: list[int], parent: bytes | None) -> Part:
        group = self._pools.group(move.pool)
        assert group is not None  # noqa: S101 - it has pages
        return Part(group, parent, _hashes(move.keys), pages)

    def close(self) -> None:
        """Take the memory back and disconnect."""
        self._ends.put(None)
        self._channels.close()


def _hashes(keys: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]


def _leading(bits: bytes, count: int) -> int:
    """Return how many bits are set from the first on."""
    number = int.from_bytes(bits, "little")
    return min(count, (~number & (number + 1)).bit_length() - 1)


def _pages_of(part: Part) -> list[Part]:
    """Return a part for each page of one."""
    return [Part(part.group, part.parent, [h], [slot]) for h, slot in zip(part.hashes, part.slots, strict=True)]


def _joined(bitmaps: Sequence[bytes]) -> bytes:
    """Return one bitmap for parts of one page each."""
    number = sum((bits[0] & 1) << i for i, bits in enumerate(bitmaps))
    return number.to_bytes((len(bitmaps) + 7) // 8, "little")


def _by_move(
    moves: Sequence[Move], wanted: Sequence[tuple[Move, list[int]]], done: Sequence[bytes]
) -> list[list[bool]]:
    """Return which pages of each move are done, given the bitmaps of those that were wanted."""
    bits = {id(m): int.from_bytes(b, "little") for (m, _), b in zip(wanted, done, strict=True)}
    return [[bool(bits.get(id(m), 0) >> i & 1) for i in range(len(m.keys))] for m in moves]
