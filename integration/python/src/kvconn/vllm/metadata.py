"""What the scheduler's side sends to every worker with a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from kvconn.client import PlannedLoad
from kvconn.vllm.files import FileId


@dataclass
class StepMetadata(KVConnectorMetadata):
    """The leader's plan for one engine step.

    `payload` is opaque. `loads` are what it loads, `lost` the loads that the engine waits for and
    no leader has planned: workers report them as failed. `untouched` are files of LoRA adapters:
    the step is saved only while they are still the same.
    """

    payload: bytes = b""
    loads: list[PlannedLoad] = field(default_factory=list)
    lost: list[PlannedLoad] = field(default_factory=list)
    untouched: list[FileId] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.payload or self.lost)
