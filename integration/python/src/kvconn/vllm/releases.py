"""What releases of vLLM differ in. What a release offers decides what the connector does, never its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

TESTED = "0.29 to 0.32"
"""The releases in docs/vllm-versions.md that work."""

TransferResults: Callable[..., Any] | None = getattr(base, "KVConnectorTransferResults", None)
"""What reports that a request's load has failed as a whole. Without it only failed blocks are reported."""

Hybrid: type = getattr(base, "SupportsHMA", object) if TransferResults is not None else object
"""Says that a connector takes several KV cache groups.

Their failed loads are reported as a whole. Where that cannot be, vLLM keeps all layers of a hybrid
model in one group, like full attention.
"""

RESTORES = all(hasattr(base.KVConnectorBase_V1, name) for name in ("unregister_kv_caches", "restore_kv_caches"))
"""Whether a connector is told before KV memory goes to sleep, and once it is back."""

_NEEDED = {
    "distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1": (
        *("get_block_ids_with_load_errors", "handle_preemptions", "on_new_request", "update_connector_output"),
    ),
    "config.KVTransferConfig": ("kv_load_failure_policy",),
    "v1.core.sched.output.CachedRequestData": ("resumed_req_ids",),
    "v1.core.sched.output.SchedulerOutput": ("kv_connector_block_state", "preempted_req_ids"),
    "v1.kv_cache_interface.KVCacheConfig": ("kv_cache_layout",),
    "v1.kv_cache_interface.KVCacheTensor": ("block_stride", "layer_stride", "layers", "offset"),
    "v1.outputs.KVConnectorOutput": ("finished_recving", "invalid_block_ids"),
}
"""What the connector cannot do without, by class: methods, and fields of dataclasses."""


def check() -> None:
    """Raise ValueError where this release lacks what the connector cannot do without."""
    if lacks := missing():
        raise ValueError(
            f"kvconn: vLLM {vllm.__version__} has no {', '.join(lacks)}; releases {TESTED} of vLLM are known to work"
        )


def missing() -> list[str]:
    """Return what the connector cannot do without and this release has not."""
    lacks: list[str] = []
    for path, names in _NEEDED.items():
        module, _, name = path.rpartition(".")
        try:
            owner = getattr(import_module(f"vllm.{module}"), name)
        except (ImportError, AttributeError):
            lacks.append(name)
            continue
        fields = getattr(owner, "__dataclass_fields__", {})
        lacks += [f"{name}.{n}" for n in names if n not in fields and not hasattr(owner, n)]
    return lacks


class BlockTables:
    """The block tables of scheduled requests.

    Releases tell the tables of all requests, or only of those that were given blocks in the step.
    The others' are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Sequence[list[int]]] = {}

    def note(self, output: SchedulerOutput) -> None:
        """Take in what a step tells. To be called in each."""
        state: Any = output.kv_connector_block_state
        if state is not None and not hasattr(state, "get_block_ids"):
            self._kept.update(state.block_ids)

    def of(self, output: SchedulerOutput, request_id: str) -> Sequence[list[int]]:
        """Return the table of each KV cache group in the step that was noted last, nothing where it is not known."""
        state: Any = output.kv_connector_block_state
        if hasattr(state, "get_block_ids"):
            return state.get_block_ids(request_id) or ()
        return self._kept.get(request_id, ())

    def forget(self, request_id: str) -> None:
        """Note that a request has ended."""
        self._kept.pop(request_id, None)
