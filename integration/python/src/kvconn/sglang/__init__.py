"""The storage backend for SGLang: kvconnd below its host memory.

Configure SGLang with `--hicache-storage-backend dynamic` and this module's class `KVConnStorage`. SGLang copies
between its KV memory and a host pool of its own, in shared memory, and the daemon fills and reads pages of that pool.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KVConnStorage"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: it needs SGLang, and the rest of the package does not."""
    if name != "KVConnStorage":
        raise AttributeError(name)
    from kvconn.sglang.storage import KVConnStorage

    return KVConnStorage
