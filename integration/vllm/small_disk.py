"""A small file system of its own for a store, which can be filled as others fill a disk."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

_PIECES = (1 << 20, 4096)
_SIZE_MIB = 192
SMALL_STORE = "128MiB"
"""The size of a store that fits."""


_TIMES = 10


def again_until(ask: Callable[[], object], condition: Callable[[], bool]) -> bool:
    """Make requests again and again until a condition holds. Returns whether it does."""
    for _ in range(_TIMES):
        ask()
        if condition():
            return True
    return False


class SmallDisk:
    """A file system in memory. Mounting one needs root."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self._mounted = False
        self._filler = at / "filler"

    def mount(self) -> bool:
        """Make it. False where none can be mounted here."""
        self.at.mkdir(parents=True, exist_ok=True)
        options = f"size={_SIZE_MIB}m,mode=700"
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(self.at)]
        self._mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        atexit.register(self.unmount)
        return self._mounted

    def fill(self) -> None:
        """Take all space that is left."""
        with self._filler.open("ab", buffering=0) as f:
            for size in _PIECES:
                with contextlib.suppress(OSError):  # full
                    while f.write(bytes(size)) == size:
                        pass

    def free(self) -> None:
        """Give that space back."""
        self._filler.unlink()

    def unmount(self) -> None:
        """Remove it; a process that still uses it keeps it until it ends."""
        if self._mounted:
            self._mounted = False
            subprocess.run(["umount", "--lazy", str(self.at)], capture_output=True, check=False)
