"""Blocks that an engine has taken back from its saves."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from kvconn.fence import RING_RUNS, FencePage
from kvconn.frames import NO_BLOCK

_ALL_BLOCKS = (0, NO_BLOCK)


class Ledger:
    """What an engine has taken back from saves that have not ended, over the pages of all its registrations.

    Their numbers go on from one page to the next, so that a count means the same whichever page a save goes
    with. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._ring = [0] * RING_RUNS
        self._pages: set[FencePage] = set()

    @property
    def count(self) -> int:
        """How often blocks were taken back. A save that is told a count keeps nothing of what is taken back later."""
        return self._count

    def attach(self, page: FencePage) -> None:
        """Write what was taken back to a page that no daemon has yet, and more of it when it comes."""
        with self._lock:
            page.begin_revocations(self._count, self._ring)
            self._pages.add(page)

    def detach(self, page: FencePage) -> None:
        """Forget a page that was fenced. Call it before the page is closed."""
        with self._lock:
            self._pages.discard(page)

    def revoke(self, blocks: Iterable[int]) -> None:
        """Take blocks back. When it returns they may be overwritten. It waits for nobody.

        Where they are more runs than a page has room for, all blocks are taken back. Raises ValueError for numbers
        that no block has.
        """
        runs = list(_runs(blocks))
        if not runs:
            return
        if not (runs[0][0] >= 0 and sum(runs[-1]) <= NO_BLOCK):
            raise ValueError(f"blocks from {runs[0][0]} to {sum(runs[-1]) - 1}: want 0 to {NO_BLOCK - 1}")
        if len(runs) >= RING_RUNS:
            runs = [_ALL_BLOCKS]
        words = [size << 32 | first for first, size in runs]
        with self._lock:
            for page in self._pages:
                page.revoke(self._count, words)
            for word in words:
                self._ring[self._count % RING_RUNS] = word
                self._count += 1


def _runs(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers, as first and size."""
    first, size = -1, 0
    for block in sorted(set(blocks)):
        if block == first + size:
            size += 1
            continue
        if size:
            yield first, size
        first, size = block, 1
    if size:
        yield first, size
