"""What a program and everything it has started takes of the machine."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GROUP, USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM = 2, 11, 12, 13, 14
"""Where /proc/PID/stat has these, counted from the field after the name."""


@dataclass(frozen=True)
class Usage:
    """Highest memory of all processes together, each by its own highest, in bytes; and processor time."""

    peak_bytes: int = 0
    cpu_s: float = 0.0

    def then(self, later: Usage) -> Usage:
        """Return the usage of one start of a program, and of the next."""
        return Usage(max(self.peak_bytes, later.peak_bytes), self.cpu_s + later.cpu_s)


def of_group(group: int | None) -> Usage:
    """Return what the processes of a process group have used, and their children that have ended."""
    total = Usage()
    if group is None:
        return total
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            if int(fields[GROUP]) != group:
                continue
            ticks = sum(int(fields[i]) for i in (USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM))
            peak = _peak_bytes((directory / "status").read_text())
            total = Usage(total.peak_bytes + peak, total.cpu_s + ticks / TICKS_PER_S)
    return total


def _peak_bytes(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
