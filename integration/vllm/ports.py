"""TCP ports for servers under test, which are started again on the port that they had."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 15000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of consecutive TCP ports that nobody listens on.

    They lie below those that the system gives to connections and to whoever asks for any port: such a port could
    be somebody else's by the time that a server is started again on it, and whoever asks whether a server is back
    could be connected to itself.
    """
    highest = int(_RANGE.read_text().split()[0]) - count
    for _ in range(_TRIES):
        first = random.randint(_LOWEST, highest)
        if all(_free(first + i) for i in range(count)):
            return first
    raise RuntimeError(f"no {count} consecutive ports of {_LOWEST} to {highest} are free")


def _free(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            return False
        return True
