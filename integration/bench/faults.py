"""Damage to what a cache has on disk, the same for every cache: to units, whatever their format is."""

from __future__ import annotations

import os
from pathlib import Path

from stores import Unit

PAGE_BYTES = 4096


def flip_bit(unit: Unit) -> None:
    """Change one bit in the middle, as a disk or a cable does."""
    at = unit.offset + unit.length // 2 + 1
    byte = _read(unit.path, at, 1)
    _write(unit.path, at, bytes([byte[0] ^ 0x10]))


def zero_page(unit: Unit) -> None:
    """Replace a page in the middle by zeros, as a file system does after a power loss."""
    at = (unit.offset + unit.length // 2) // PAGE_BYTES * PAGE_BYTES
    _write(unit.path, at, bytes(PAGE_BYTES))


def swap(one: Unit, other: Unit) -> None:
    """Exchange two units whole, as a restored backup or a wrong name does."""
    if one.length != other.length:
        raise ValueError(f"{one.path.name} has {one.length} bytes and {other.path.name} {other.length}")
    first, second = _read(one.path, one.offset, one.length), _read(other.path, other.offset, other.length)
    _write(one.path, one.offset, second)
    _write(other.path, other.offset, first)


def cut(unit: Unit) -> None:
    """End the file in the middle of the unit, as a full disk or a torn copy does."""
    with unit.path.open("r+b") as f:
        f.truncate(unit.offset + unit.length // 2)
        os.fsync(f.fileno())


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as f:
        f.seek(offset)
        return f.read(length)


def _write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
