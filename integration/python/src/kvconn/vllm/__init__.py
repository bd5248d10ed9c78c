"""The vLLM connector.

Configure vLLM with what `kvconnd config vllm --socket PATH` prints. Both of an engine's roles
are here: the scheduler's tells the daemon's leader what is scheduled, the worker's hands the
daemon the KV memory and starts what the leader planned.
"""

from kvconn.vllm.connector import KVConnConnector

__all__ = ["KVConnConnector"]
