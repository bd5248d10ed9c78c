"""Damage to a store's records, as a failing disk does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

HEADER_BYTES, RECORD_MAGIC = 4096, b"KVCNREC1"
SHARD_AT = 10
"""Where a record's header has its shard (docs/on-disk-format.md)."""


PAGE_BYTES = 4096


def flip_bits(store: Path, every: int = 3, shard: int | None = None) -> int:
    """Flip one payload bit in one of `every` records of a shard, or of all, and return how many were flipped."""
    seen = flipped = 0
    for path in _files(store):
        with path.open("r+b") as f:
            for offset in _records(f, path.stat().st_size, shard):
                seen += 1
                if seen % every:
                    continue
                f.seek(offset + HEADER_BYTES + 1000 * seen % 100_000)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 0x10]))
                flipped += 1
            f.flush()
            os.fsync(f.fileno())
    return flipped


def zero_pages(store: Path, every: int = 3) -> int:
    """Zero the first page of the payload of one of `every` records, and return how many were."""
    return _overwrite(store, every, lambda f, offset, _: bytes(PAGE_BYTES))


def swap_pages(store: Path, every: int = 3) -> int:
    """Give one of `every` records the first page of the record before it, and return how many were given one."""

    def of_the_one_before(f: BinaryIO, _offset: int, before: int) -> bytes:
        f.seek(before + HEADER_BYTES)
        return f.read(PAGE_BYTES)

    return _overwrite(store, every, of_the_one_before)


def swap_records(store: Path, every: int = 3) -> int:
    """Put the whole record before it, header and all, in the place of one of `every`, and return how many were."""
    swapped = 0
    for path in _files(store):
        with path.open("r+b") as f:
            offsets = list(_records(f, path.stat().st_size, None))
            gaps = [b - a for a, b in pairwise(offsets)]
            for i in range(every - 1, len(offsets), every):
                f.seek(offsets[i - 1])
                record = f.read(min(gaps))
                f.seek(offsets[i])
                f.write(record)
                swapped += 1
    return swapped


def cut(store: Path) -> int:
    """Cut every file that has records in half, and return how many were cut."""
    cut_files = 0
    for path in _files(store):
        with path.open("r+b") as f:
            size = path.stat().st_size
            if next(_records(f, size, None), None) is not None:
                f.truncate(size // 2 // HEADER_BYTES * HEADER_BYTES)
                cut_files += 1
    return cut_files


def _overwrite(store: Path, every: int, page: Callable[[BinaryIO, int, int], bytes]) -> int:
    """Overwrite the first page of the payload of one of `every` records. `page` gets its place and the one before."""
    written = 0
    for path in _files(store):
        with path.open("r+b") as f:
            offsets = list(_records(f, path.stat().st_size, None))
            for i in range(every - 1, len(offsets), every):
                data = page(f, offsets[i], offsets[i - 1])
                f.seek(offsets[i] + HEADER_BYTES)
                f.write(data)
                written += 1
    return written


def _files(store: Path) -> list[Path]:
    """Return the files that are large enough for a record."""
    return sorted(p for p in store.rglob("*") if p.is_file() and p.stat().st_size >= 2 * HEADER_BYTES)


def _records(f: BinaryIO, size: int, shard: int | None) -> Iterator[int]:
    """Yield where the records of a shard, or of all, begin in a file."""
    for offset in range(0, size - HEADER_BYTES, HEADER_BYTES):
        f.seek(offset)
        head = f.read(SHARD_AT + 2)
        if head.startswith(RECORD_MAGIC) and (shard is None or int.from_bytes(head[SHARD_AT:], "little") == shard):
            yield offset
