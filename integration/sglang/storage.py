"""What an SGLang server keeps its KV cache in below host memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Storage:
    """A storage backend: its name for SGLang, its configuration, and variables of the server's environment."""

    name: str
    extra_config: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the server's arguments."""
        chosen = ["--hicache-storage-backend", self.name]
        if self.extra_config:
            # As text: SGLang takes no notice of "allocator" in a file.
            chosen += ["--hicache-storage-backend-extra-config", json.dumps(self.extra_config)]
        return chosen


def dynamic(module: str, class_name: str, **extra_config: Any) -> Storage:
    """Return a backend that is not SGLang's own: its class, and what it is configured with.

    The host pool is in shared memory, which the backend may hand to another process, and the backend
    is given page indices in place of tensors.
    """
    backend = {"backend_name": module.split(".")[0], "module_path": module, "class_name": class_name}
    return Storage("dynamic", backend | {"interface_v1": 1, "allocator": "shm"} | extra_config)
