"""kvconn's storage backend with one rank that misbehaves, as a file says. For SGLang's own processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from kvconn.sglang import KVConnStorage

FILE = "KVCONN_TEST_FAULT_FILE"
"""The variable that names the file. It holds one of the faults below, or nothing."""
SILENT = "KVCONN_TEST_SILENT_S"
"""The variable with the seconds that a silent rank takes longer."""
BAD_RANK = 1


class FaultyStorage(KVConnStorage):  # type: ignore[misc]
    """Rank 1 has half of what is asked for, loads half, loads or saves nothing, raises, or answers late."""

    def _fault(self) -> str:
        if int(self._config.tp_rank) != BAD_RANK:
            return ""
        try:
            fault = Path(os.environ[FILE]).read_text().strip()
        except FileNotFoundError:
            return ""
        if fault == "silent":
            time.sleep(float(os.environ[SILENT]))
        return fault

    def batch_exists(self, keys: list[str], *args: Any, **kwargs: Any) -> int:
        """Return half of what is there."""
        found = int(super().batch_exists(keys, *args, **kwargs))
        match self._fault():
            case "half exists":
                return found // 2
            case "raises":
                raise RuntimeError("a fault of the test's: exists")
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
        return done

    def batch_set_v1(self, keys: list[str], *args: Any, **kwargs: Any) -> list[bool]:
        """Save nothing."""
        match self._fault():
            case "saves fail":
                return [False] * len(keys)
            case "raises":
                raise RuntimeError("a fault of the test's: set")
        return list(super().batch_set_v1(keys, *args, **kwargs))
