"""A small file system of its own for a store, which can be filled as others fill a disk."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from processes import SETTINGS

if TYPE_CHECKING:
    from processes import Daemon, Linked
    from report import Report

_PIECES = (1 << 20, 4096)
_SIZE_MIB = 192
_STORE = "128MiB"
"""The size of a store that fits."""
_TIMES = 10


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


def filled_up(
    daemon: Daemon,
    engine: Linked,
    report: Report,
    at: Path,
    ask: Callable[[str], object],
    cached: Callable[[], object],
    whose: str = "",
) -> None:
    """Others fill a daemon's disk: saves are dropped, and come back once there is room, without a restart.

    The engine stays, and the daemon is on a small disk for that time. `ask` is told what its checks are about, has the
    engine answer without its own caches, and waits for writes; `cached` checks that the cache has the answers. What is
    reported begins with `whose`.
    """
    disk = SmallDisk(at)
    if not disk.mount():
        report.say("      a full disk needs root, for a file system of its own, and is skipped")
        return
    daemon.terminate()
    store, daemon.store = daemon.store, disk.at / "store"
    daemon.start(max_bytes=_STORE, settings=(*SETTINGS, "--min-free", "0"))
    daemon.wait_for_engine(engine)
    disk.fill()
    told = _until(
        lambda: daemon.metric("kvconn_dropped_blocks_total") > 0 and not daemon.healthy(), lambda: ask("disk full")
    )
    report.check(f"{whose}disk full: saves are dropped, and health says so", told)
    disk.free()
    told = _until(daemon.healthy, lambda: ask("disk with room again"))
    report.check(f"{whose}disk with room again: health says so", told)
    ask("disk with room again")  # saves what was not saved yet
    cached()
    report.equal(f"{whose}kvconnd on the small disk stops in order", daemon.terminate(), 0)
    disk.unmount()
    daemon.store = store
    daemon.start()
    daemon.wait_for_engine(engine)


def _until(condition: Callable[[], bool], ask: Callable[[], object]) -> bool:
    """Make requests again and again until a condition holds. Returns whether it does."""
    for _ in range(_TIMES):
        ask()
        if condition():
            return True
    return False
