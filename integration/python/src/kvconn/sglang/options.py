"""The settings of the backend, as SGLang's configuration has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kvconn.connection import MAX_SOCKET_PATH_BYTES

_SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size")
_OWN = ("socket", "deadline", "digest_cache")
_NEEDED = {"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": True}
_LEAST_DEADLINE_S, _MOST_DEADLINE_S = 0.05, 5.0


@dataclass(frozen=True)
class Settings:
    """What can be set.

    `deadline` is the seconds that a call may take, whatever the daemon does: SGLang gives up a load after one
    second, and ends itself if a call hangs for longer during a flush. `digest_cache` is the directory where digests of
    weights are kept, None for the user's own.
    """

    socket: str
    deadline: float = 0.8
    digest_cache: str | None = None


def read(extra: dict[str, Any] | None, flag: str | None) -> Settings:
    """Return the settings out of SGLang's extra configuration of the backend.

    `flag` is the text of --hicache-storage-backend-extra-config, which has what SGLang keeps to itself. Raises
    ValueError where the backend could not work, with what to do.
    """
    own = {k: v for k, v in (extra or {}).items() if k not in _SGLANGS}
    if unknown := sorted(set(own) - set(_OWN)):
        raise ValueError(f"kvconn: unknown settings {unknown} of the storage backend, known are {sorted(_OWN)}")
    if not isinstance(own.get("socket"), str):
        raise ValueError("kvconn: the storage backend needs 'socket', the path of kvconnd's socket")
    if not 0 < len(own["socket"].encode()) <= MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"kvconn: socket path {own['socket']!r}: want 1 to {MAX_SOCKET_PATH_BYTES} bytes")
    told = _told(flag)
    for name, want in _NEEDED.items():
        if told.get(name) != want:
            raise ValueError(
                f"kvconn: put {json.dumps({name: want})[1:-1]} in --hicache-storage-backend-extra-config:"
                " without it the backend cannot work"
            )
    deadline = own.get("deadline", Settings.deadline)
    if isinstance(deadline, bool) or not isinstance(deadline, int | float):
        raise ValueError(f"kvconn: deadline {deadline!r} is no number of seconds")
    if not _LEAST_DEADLINE_S <= deadline <= _MOST_DEADLINE_S:
        raise ValueError(f"kvconn: deadline {deadline:g} s: want {_LEAST_DEADLINE_S:g} to {_MOST_DEADLINE_S:g}")
    return Settings(own["socket"], float(deadline), own.get("digest_cache"))


def _told(flag: str | None) -> dict[str, Any]:
    if flag is None or flag.startswith("@"):
        raise ValueError(
            "kvconn: give --hicache-storage-backend-extra-config as text: SGLang ignores 'allocator' in an @file,"
            " and where the backend is attached later"
        )
    told = json.loads(flag)
    if not isinstance(told, dict):
        raise ValueError("kvconn: --hicache-storage-backend-extra-config is no JSON object")
    return told
