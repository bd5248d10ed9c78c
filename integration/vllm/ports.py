"""TCP ports for servers under test, which are started again on the port that they had."""

from __future__ import annotations

import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import BinaryIO

_LOWEST, _HIGHEST = 15000, 21999
"""SGLang takes ports of its own from 22000 on."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000
_LOCKS = Path(tempfile.gettempdir()) / "kvconn-e2e-ports"
_held: list[BinaryIO] = []
"""Locks of the ports that this process has been given, until it ends."""


def free_port() -> int:
    """Return a TCP port that nobody listens on, and that no other run is given."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of consecutive TCP ports that nobody listens on, and that no other run is given.

    They lie below those that the system gives to connections and to whoever asks for any port: such a port could
    be somebody else's by the time that a server is started again on it, and whoever asks whether a server is back
    could be connected to itself. Nobody listens on them before their servers start: runs that go on side by side
    know by a lock which are taken.
    """
    _LOCKS.mkdir(exist_ok=True)
    highest = min(_HIGHEST + 1, int(_RANGE.read_text().split()[0])) - count
    for _ in range(_TRIES):
        first = random.randint(_LOWEST, highest)
        locks = [_locked(first + i) for i in range(count)]
        taken = [lock for lock in locks if lock is not None]
        if len(taken) == count and all(_free(first + i) for i in range(count)):
            _held.extend(taken)
            return first
        for lock in taken:
            lock.close()
    raise RuntimeError(f"no {count} consecutive ports of {_LOWEST} to {highest} are free")


def _locked(port: int) -> BinaryIO | None:
    """Return the lock of a port, None where another has it."""
    lock = (_LOCKS / str(port)).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            return False
        return True
