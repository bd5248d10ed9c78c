"""Shared memory that no process can resize."""

from __future__ import annotations

import fcntl
import os

# Not in every Python's fcntl module (linux/fcntl.h).
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 1, 2, 4, 8


def sealed_memfd(name: str, size: int) -> int:
    """Return the descriptor of `size` zeroed bytes, sealed so that nobody who maps them can be made to fault."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_memfd_of(name: str, data: bytes) -> int:
    """Return the descriptor of bytes that nobody can change any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE | _F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd
