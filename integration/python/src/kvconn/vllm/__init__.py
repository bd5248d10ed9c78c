"""The vLLM connector.

Configure vLLM with what `kvconnd config vllm --socket PATH` prints. Both of an engine's roles
are here: the scheduler's tells the daemon's leader what is scheduled, the worker's hands the
daemon the KV memory and starts what the leader planned.
"""

from __future__ import annotations

from typing import Any

__all__ = ["KVConnConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector when it is asked for: what it needs of vLLM takes seconds."""
    if name != "KVConnConnector":
        raise AttributeError(name)
    from kvconn.vllm.connector import KVConnConnector

    return KVConnConnector
