"""Clients of kvconnd for an engine's scheduler and workers (docs/protocol.md).

`SchedulerClient` raises where the daemon cannot answer. `WorkerClient`, `KeyedClient` and `KeyedChannels` never do:
once a load has started, its end must be reported to the engine whatever happens.
"""

from __future__ import annotations

from kvconn.errors import (
    ConnectionLost,
    DeadlineExceeded,
    KVConnError,
    NotRegistered,
    ProtocolError,
    Rejected,
    RequestTooLarge,
    SocketMissing,
    SocketPermission,
    SocketRefused,
    TryAgain,
    Unavailable,
    UnknownRequest,
    VersionMismatch,
)
from kvconn.frames import NO_BLOCK
from kvconn.keyed_channels import Channel, KeyedChannels
from kvconn.keyed_client import KeyedClient
from kvconn.link import Options
from kvconn.messages import (
    Alloc,
    FinishedLoad,
    GroupLayout,
    Offer,
    Part,
    PlannedLoad,
    PlannedSave,
    Polled,
    Run,
    SaveResult,
    Scheduled,
    Span,
    Step,
    StepReply,
    StoredPut,
    TierBlocks,
)
from kvconn.scheduler_client import SchedulerClient
from kvconn.worker_client import WorkerClient

__all__ = [
    "NO_BLOCK",
    "Alloc",
    "Channel",
    "ConnectionLost",
    "DeadlineExceeded",
    "FinishedLoad",
    "GroupLayout",
    "KVConnError",
    "KeyedChannels",
    "KeyedClient",
    "NotRegistered",
    "Offer",
    "Options",
    "Part",
    "PlannedLoad",
    "PlannedSave",
    "Polled",
    "ProtocolError",
    "Rejected",
    "RequestTooLarge",
    "Run",
    "SaveResult",
    "Scheduled",
    "SchedulerClient",
    "SocketMissing",
    "SocketPermission",
    "SocketRefused",
    "Span",
    "Step",
    "StepReply",
    "StoredPut",
    "TierBlocks",
    "TryAgain",
    "Unavailable",
    "UnknownRequest",
    "VersionMismatch",
    "WorkerClient",
]
