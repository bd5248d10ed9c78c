"""What caches keep on disk: how much it is, which pieces it has, and how to get it out of the page cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from damage import HEADER_BYTES, RECORD_MAGIC

SEGMENT_MAGIC = b"KVCNSEG1"
SLOTS_AT, SLOT_BYTES_AT, PAYLOAD_BYTES_AT = 36, 40, 144
"""Where headers have these (docs/on-disk-format.md)."""
SMALLEST_UNIT = 16 << 10
"""Files below this size are a cache's own notes."""


@dataclass(frozen=True, order=True)
class Unit:
    """What a cache reads and writes as one: a file, or a record in one."""

    path: Path
    offset: int
    length: int


Units = Callable[[Path], set[Unit]]


def file_units(store: Path) -> set[Unit]:
    """Return the files of a cache that keeps each piece in a file of its own."""
    sizes = [(path, path.stat().st_size) for path in files(store) if path.suffix != ".tmp"]
    return {Unit(path, 0, size) for path, size in sizes if size >= SMALLEST_UNIT}


def record_units(store: Path) -> set[Unit]:
    """Return the records of a kvconn store, with their headers."""
    units = set()
    for path in files(store / "segments"):
        with path.open("rb") as f:
            header = f.read(HEADER_BYTES)
            if not header.startswith(SEGMENT_MAGIC):
                continue
            slots = int.from_bytes(header[SLOTS_AT : SLOTS_AT + 4], "little")
            slot_bytes = int.from_bytes(header[SLOT_BYTES_AT : SLOT_BYTES_AT + 8], "little")
            for slot in range(slots):
                offset = HEADER_BYTES + slot * slot_bytes
                f.seek(offset)
                head = f.read(PAYLOAD_BYTES_AT + 4)
                if head.startswith(RECORD_MAGIC):
                    payload = int.from_bytes(head[PAYLOAD_BYTES_AT:], "little")
                    units.add(Unit(path, offset, HEADER_BYTES + payload))
    return units


def files(store: Path) -> list[Path]:
    """Return the files below a directory."""
    return sorted(path for path in store.rglob("*") if path.is_file())


def physical_bytes(store: Path) -> int:
    """Return what a directory's files take on the disk."""
    return sum(status.st_blocks * 512 for status in statuses(store))


def statuses(store: Path) -> list[os.stat_result]:
    """Return what the file system says of each file; those that go while this looks are left out."""
    found = []
    for path in files(store):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def drop_pages(store: Path) -> None:
    """Write a directory's files out and take them from the page cache. Nobody may have them mapped."""
    for path in files(store):
        with path.open("rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
