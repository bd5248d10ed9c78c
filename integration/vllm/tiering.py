"""vLLM's own offloading on a CPU, kvconnd its secondary tier: what the stages that use it have in common."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

import environment
from environment import Environment
from processes import Daemon
from stage import NO_CACHE

CHUNK_BYTES = 1 << 20
"""Of the model with full attention, for a block of 128 tokens."""
EMPTY = {"test_empty_region": True}
NOTHING = {**NO_CACHE["kv_transfer_params"], "max_load_tokens": 0, "max_offload_tokens": 0}
"""Neither kvconnd nor vLLM's region does anything for such a request."""
SHIM = environment.HERE / "shim"


class ShimmedEnvironment(Environment):
    """An environment whose engines find the shim."""

    def variables(self, ranks: int = 1) -> dict[str, str]:
        """Return the environment of every engine process."""
        return super().variables(ranks) | {"PYTHONPATH": str(SHIM)}


def shimmed(env: Environment) -> Environment:
    """Return the environment with the shim."""
    return ShimmedEnvironment(env.cache, env.python)


def tier_config(daemon: Daemon, chunks: int, timeout_s: float, **extra: Any) -> dict[str, Any]:
    """Return what the daemon says that vLLM needs, for a region of some chunks, the shim and large blocks."""
    command = [str(daemon.binary), "config", "vllm", "--tier", "--socket", str(daemon.socket_path)]
    command += ["--region-bytes", f"{chunks * CHUNK_BYTES}B", "--blocks-per-chunk", "1"]
    config = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    own = config["kv_connector_extra_config"]
    own |= {"spec_name": "CPUTieringSpec", "spec_module_path": "cpu_offloading", **extra}
    own["secondary_tiers"][0]["timeout"] = timeout_s
    return {**config, "engine_id": f"kvconn-e2e-{os.getpid()}-{time.monotonic_ns()}"}
