"""Damage to a store's records, as a failing disk does it."""

from __future__ import annotations

import os
from pathlib import Path

HEADER_BYTES, RECORD_MAGIC = 4096, b"KVCNREC1"
SHARD_AT = 10
"""Where a record's header has its shard (docs/on-disk-format.md)."""


def flip_bits(store: Path, every: int = 3, shard: int | None = None) -> int:
    """Flip one payload bit in one of `every` records of a shard, or of all, and return how many were flipped."""
    seen = flipped = 0
    for path in sorted(p for p in store.rglob("*") if p.is_file() and p.stat().st_size >= 2 * HEADER_BYTES):
        with path.open("r+b") as f:
            for offset in range(0, path.stat().st_size - HEADER_BYTES, HEADER_BYTES):
                f.seek(offset)
                head = f.read(SHARD_AT + 2)
                if not head.startswith(RECORD_MAGIC):
                    continue
                if shard is not None and int.from_bytes(head[SHARD_AT:], "little") != shard:
                    continue
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
