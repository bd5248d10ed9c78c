"""kvconn's storage backend with one rank that misbehaves, as a file says. For SGLang's own processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from kvconn.sglang import KVConnStorage

FILE = "KVCONN_TEST_FAULT_FILE"
"""The variable that names the file. It holds one of the faults below, or nothing."""
BAD_RANK = 1
SILENT_S = 0.8


class FaultyStorage(KVConnStorage):  # type: ignore[misc]
    """Rank 1 has half of what is asked for, loads half, loads nothing, raises, or answers late."""

    def _fault(self) -> str:
        if int(self._config.tp_rank) != BAD_RANK:
            return ""
        try:
            return Path(os.environ[FILE]).read_text().strip()
        except FileNotFoundError:
            return ""

    def batch_exists(self, keys: list[str], *args: Any, **kwargs: Any) -> int:
        """Return half of what is there."""
        found = int(super().batch_exists(keys, *args, **kwargs))
        match self._fault():
            case "half exists":
                return found // 2
            case "raises":
                raise RuntimeError("a fault of the test's: exists")
            case "silent":
                time.sleep(SILENT_S)
        return found

    def batch_get_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> list[bool]:
        """Load half of what is asked for, or nothing."""
        done = list(super().batch_get_v1(keys, *args, **kwargs))
        match self._fault():
            case "half loads":
                half = len(done) // 2
                return done[:half] + [False] * (len(done) - half)
            case "loads fail":
                return [False] * len(done)
            case "raises":
                raise RuntimeError("a fault of the test's: get")
            case "silent":
                time.sleep(SILENT_S)
        return done
