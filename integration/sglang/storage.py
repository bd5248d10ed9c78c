"""What an SGLang server keeps its KV cache in below host memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
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


def kvconn(binary: Path, socket: Path, **extra_config: Any) -> Storage:
    """Return kvconnd, as `kvconnd config sglang` prints it, with more settings."""
    line = printed(binary, socket)
    flag = line.index("--hicache-storage-backend-extra-config")
    return Storage(line[line.index("--hicache-storage-backend") + 1], json.loads(line[flag + 1]) | extra_config)


def printed(binary: Path, socket: Path) -> list[str]:
    """Return the line that `kvconnd config sglang` prints for little host memory, as words."""
    command = [binary, "config", "sglang", "--socket", socket, "--host-gb", "1"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
