"""Makes the pages of KV memory before they are used.

The first touch of a page can cost ten times a copy into it, and otherwise the first loads into it pay.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14
_PIECE = 2 << 20
"""Bytes that are made at a time: meanwhile the process can map nothing."""
_LOOK = 64 << 20
"""Bytes that are made before the machine's memory is looked at again."""
_KEPT_FREE = 1 << 30
"""Bytes that are left to the machine: an engine that uses little of its KV memory needs no more than before."""
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def in_background(memory: torch.Tensor) -> threading.Thread:
    """Make the pages of memory in a thread of its own, which keeps the memory until it ends."""
    thread = threading.Thread(target=_populate, args=(memory,), name="kvconn-populate", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started: pages are made when they are used
        thread.start()
    return thread


def _populate(memory: torch.Tensor) -> None:
    madvise = ctypes.CDLL(None).madvise  # other threads run while it does, unlike with mmap's
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with contextlib.suppress(OSError, ValueError):
        for at in range(0, memory.nbytes, _PIECE):
            if at % _LOOK == 0 and available_bytes() < _KEPT_FREE + _LOOK:
                return
            if madvise(memory.data_ptr() + at, min(_PIECE, memory.nbytes - at), _MADV_POPULATE_WRITE):
                return  # an old kernel: pages are made when they are used


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return how much more memory the machine, and the control groups of this process, can give.

    OSError or ValueError where the machine does not say.
    """
    lines = (proc / "meminfo").read_text().splitlines()
    (available,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min([available, *_left_in_groups(proc, cgroups)])


def _left_in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, used, limits = cgroups, "memory.current", ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):  # of cgroup v1
            root, used, limits = cgroups / "memory", "memory.usage_in_bytes", ("memory.limit_in_bytes",)
        else:
            continue
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(root):
                break
            for limit in limits:
                with contextlib.suppress(OSError, ValueError):  # no limit, or none that is seen from here
                    yield int((directory / limit).read_text()) - int((directory / used).read_text())
