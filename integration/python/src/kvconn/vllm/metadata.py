"""What the scheduler's side sends to every worker with a step, and what workers send back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from kvconn.client import PlannedLoad, SaveResult
from kvconn.identity.files import FileId

_WorkerMetadata: type = getattr(base, "KVConnectorWorkerMetadata", object)  # versions without it ask for none


@dataclass
class StepMetadata(KVConnectorMetadata):
    """The leader's plan for one engine step.

    `payload` is opaque. `loads` are what it loads, `lost` the loads that the engine waits for and
    no leader has planned: workers report them as failed. `untouched` are files of LoRA adapters:
    the step is saved only while they are still the same. `number`, if not 0, asks the workers to
    report under it what became of the saves. On a GPU `saves` are the blocks that it saves, by request, and `given`
    those that it gives out and that hold nothing computed, None where they may be any.
    """

    payload: bytes = b""
    loads: list[PlannedLoad] = field(default_factory=list)
    lost: list[PlannedLoad] = field(default_factory=list)
    untouched: list[FileId] = field(default_factory=list)
    number: int = 0
    saves: dict[str, list[int]] = field(default_factory=dict)
    given: list[int] | None = None

    def __bool__(self) -> bool:
        return bool(self.payload or self.lost)


@dataclass
class Reported(_WorkerMetadata):  # type: ignore[misc]
    """What workers report beside how loads ended, of one rank or several.

    `loads` has the blocks that the loads of requests brought, by tier; `saves` what became of the
    saves of steps, by their numbers.
    """

    loads: dict[str, dict[str, int]] = field(default_factory=dict)
    saves: dict[int, SaveResult] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.loads or self.saves)

    def aggregate(self, other: Any) -> Reported:
        """Add what another rank reports."""
        for request, tiers in other.loads.items():
            own = self.loads.setdefault(request, {})
            for tier, blocks in tiers.items():
                own[tier] = own.get(tier, 0) + blocks
        for number, result in other.saves.items():
            own_result = self.saves.get(number, SaveResult())
            self.saves[number] = SaveResult(*(a + b for a, b in zip(own_result, result, strict=True)))
        return self
