"""The page of shared memory by which an engine takes its memory back without waiting for an answer.

The engine's side makes the page and passes it along when it registers. The daemon increments the
page's count before each copy to or from engine memory and decrements it afterwards. Once the engine's
side has set the fence, no new copy begins; when the count then reads zero, no copy will touch the
memory again, even if the daemon is suspended and resumes later.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Sequence

from kvconn.memfd import sealed_memfd

PAGE_BYTES = 4096
# Two 64-bit numbers on cache lines of their own, as indices of 64-bit words: not 0 once fenced,
# and the number of copies under way.
_FENCED, _COPIES = 0, 64 // 8
REACHED_OFFSET = 128
"""Where a device writes the number of the call that it has come to."""
_REACHED = REACHED_OFFSET // 8
# The number of revocations, and a ring of the last ones: a run's first block, and in the upper half the number of
# its blocks.
_REVOKED, _RING = 192 // 8, 2048 // 8
RING_RUNS = (PAGE_BYTES - 2048) // 8

# membarrier(2). Its number differs by architecture, and Python has no wrapper.
_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_MEMBARRIER_CMD_GLOBAL_EXPEDITED = 2
_CONTEXT_SWITCH_S = 0.001


class FencePage:
    """The engine's mapping of a fence page. `fd` is for the daemon. Not safe for concurrent use."""

    def __init__(self) -> None:
        self.fd = sealed_memfd("kvconn-fence", PAGE_BYTES)
        try:
            self._map = mmap.mmap(self.fd, PAGE_BYTES)  # takes a descriptor more
        except BaseException:
            os.close(self.fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._fenced = False

    @property
    def fenced(self) -> bool:
        """Whether `fence` was called."""
        return self._fenced

    def fence(self) -> None:
        """Make sure that no copy begins any more. It cannot be undone."""
        if not self._fenced:
            self._words[_FENCED] = 1
            full_barrier()
            self._fenced = True

    def idle(self) -> bool:
        """Whether no copy is under way. After `fence` it stays so."""
        return self._words[_COPIES] == 0

    @property
    def address(self) -> int:
        """The address of the mapping, until it is closed."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def reached(self) -> int:
        """The number of the last call that the engine's device has come to."""
        return int(self._words[_REACHED])

    def reach(self, number: int) -> None:
        """Say that the device has come to a call, where it cannot do so itself. For any thread, in order."""
        self._words[_REACHED] = number

    def begin_revocations(self, count: int, ring: Sequence[int]) -> None:
        """Write the revocations so far to a page that no daemon has yet."""
        for i, run in enumerate(ring):
            self._words[_RING + i] = run
        self._words[_REVOKED] = count

    def revoke(self, number: int, runs: Sequence[int]) -> None:
        """Write revocations, of numbers from that one on, from 0. Then the blocks of the runs may be overwritten."""
        # Each run is seen before its number, and that before the next run, whose place may be an old one's.
        in_order = platform.machine() == "x86_64"  # whose writes are seen in order
        for i, run in enumerate(runs, number):
            self._words[_RING + i % RING_RUNS] = run
            if not in_order:
                full_barrier()
            self._words[_REVOKED] = i + 1
            if not in_order:
                full_barrier()
        if in_order:
            full_barrier()

    def close(self) -> None:
        """Unmap the page. Fence it first: the daemon's mapping of it goes on."""
        self._words.release()
        self._map.close()
        os.close(self.fd)


def full_barrier() -> None:
    """Let no read after this call overtake a write before it.

    Processors may: the count of copies could be read before the fence is seen by the daemon, which
    would begin one at that moment; one of the two must see the other. The daemon's half of the
    order is in its atomic instructions. Python has none, so the kernel has to help: membarrier runs a full
    barrier on the calling core. Where it is missing or forbidden, a sleep does, since the kernel
    runs one when it switches threads.
    """
    if not _membarrier():
        time.sleep(_CONTEXT_SWITCH_S)


def _membarrier() -> bool:
    number = _SYS_MEMBARRIER.get(platform.machine())
    if number is None:
        return False
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    command, flags = ctypes.c_int(_MEMBARRIER_CMD_GLOBAL_EXPEDITED), ctypes.c_int(0)
    return syscall(ctypes.c_long(number), command, flags) == 0
