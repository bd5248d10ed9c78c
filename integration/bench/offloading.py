"""vLLM's own tiered offloading, with the tier `fs` of vLLM or with kvconn's. Without a GPU it needs the tests' shim."""

from __future__ import annotations

import json
import subprocess

import environment
from daemons import Kvconn
from systems import SHARED_MEMORY, Cache, Site

BLOCKS_PER_CHUNK = "1"
"""On a CPU a block has 128 tokens, which the chunks of other machines have."""
SHIM = environment.HERE / "shim"
SHIMMED = {"spec_name": "CPUTieringSpec", "spec_module_path": "cpu_offloading"}


class FileSystemTier(Cache):
    """vLLM's tier `fs`: every chunk goes to a region in host memory, and from there to a file of its own."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.engine_id = f"{site.sockets.name}-{site.work.name}"
        self.variables = {"PYTHONPATH": str(SHIM)}
        self.connector = json.dumps(
            {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "engine_id": self.engine_id,
                "kv_connector_extra_config": {
                    "cpu_bytes_to_use": site.memory_bytes,
                    "offload_prompt_only": False,
                    "secondary_tiers": [{"type": "fs", "root_dir": str(self.store)}],
                    **SHIMMED,
                },
            }
        )

    def sweep(self) -> None:
        """Remove the region: an engine that is asked to stop leaves it."""
        for path in SHARED_MEMORY.glob(f"vllm_offload_{self.engine_id}*"):
            path.unlink(missing_ok=True)


class KvconnTier(Kvconn):
    """kvconn as a tier of vLLM's offloading: vLLM fills and empties the region, kvconnd reads and writes its rows."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        command = [str(site.kvconnd), "config", "vllm", "--tier", "--socket", str(self.kvconnd.socket_path)]
        command += ["--region-bytes", f"{site.memory_bytes}B", "--blocks-per-chunk", BLOCKS_PER_CHUNK]
        config = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        config["kv_connector_extra_config"] |= SHIMMED
        self.variables = {"PYTHONPATH": str(SHIM)}
        self.connector = json.dumps(config)
