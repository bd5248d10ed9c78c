"""The engine under test: SGLang's HTTP server, on a CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generation import PAGE_SIZE, post
from ports import free_port
from processes import Program, get
from sglang_environment import SglangEnvironment
from storage import Storage

READY_TIMEOUT_S = 300.0
FLUSH_TIMEOUT_S = 120.0
DEVICE_TOKENS = 8192
HOST_GB = 1
ADMIN_KEY = "key"
"""Without one SGLang detaches no backend."""
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
UPDATE_TIMEOUT_S = 120.0
LAYOUT = "page_first_direct"
"""The layout of the host pool: the one that backends read best of the two that SGLang copies without kernels."""


class Server(Program):
    """An SGLang server and its processes."""

    def __init__(self, env: SglangEnvironment, model: Path, log: Path) -> None:
        super().__init__(log)
        self._env, self._model = env, model
        self.port = free_port()

    def start(
        self,
        storage: Storage | None,
        ranks: int = 1,
        replicas: int = 1,
        layout: str = LAYOUT,
        calm: bool = True,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `wait` waits until it serves. Without storage there is no hierarchical cache.

        `ranks` are tensor-parallel, `replicas` data-parallel. A calm server sleeps when it has nothing to do, where
        SGLang spins. It computes with one thread: two that wait for each other in each layer take ten times as long
        where other programs want the cores, too.

        What is given last holds: arguments and variables of one's own.
        """
        command = [str(self._env.python), "-m", "sglang.launch_server"]
        command += ["--model-path", str(self._model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"]
        command += ["--disable-cuda-graph", "--disable-overlap-schedule", "--enable-cache-report"]
        command += ["--page-size", str(PAGE_SIZE), "--max-total-tokens", str(DEVICE_TOKENS)]
        # Of a machine's memory, which other programs take from while this one starts; what it uses is bounded above.
        command += ["--mem-fraction-static", "0.9", "--tp-size", str(ranks)]
        command += ["--dp-size", str(replicas), "--admin-api-key", ADMIN_KEY]
        self.links = ranks * replicas
        own = self._env.variables(ranks * replicas)
        if calm:
            command += ["--sleep-on-idle"]
            own |= {"OMP_NUM_THREADS": "1"}
        if storage is not None:
            command += ["--enable-hierarchical-cache", "--hicache-size", str(HOST_GB)]
            command += ["--hicache-io-backend", "direct", "--hicache-mem-layout", layout]
            command += ["--hicache-write-policy", "write_through"]
            # What is tested is not how long a prefetch may take.
            command += ["--hicache-storage-prefetch-policy", "wait_complete"]
            command += storage.arguments()
            own |= storage.variables
        self.spawn([*command, *arguments], own | dict(variables or {}))

    def wait(self) -> None:
        """Wait until it serves."""
        until = time.monotonic() + READY_TIMEOUT_S
        while not self.healthy():
            if not self.alive() or time.monotonic() > until:
                self.fail_with_log("SGLang is not ready")
            time.sleep(0.1)

    def healthy(self) -> bool:
        """Whether server and scheduler are alive."""
        return self.alive() and get(self.port, "/health")[0] == 200

    def info(self) -> dict[str, Any]:
        """Return what the server says about itself."""
        status, body = get(self.port, "/server_info")
        if status != 200:
            raise RuntimeError(f"server_info: {status} {body[:500]}")
        found: dict[str, Any] = json.loads(body)
        return found

    def flush_cache(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Forget what is cached in device and host memory.

        SGLang refuses while requests or transfers hold pages. What it has not written to its storage yet is lost.
        """
        until = time.monotonic() + timeout_s
        while True:
            status, body = self._admin("/flush_cache", "POST")
            if status == 200:
                return
            if status == 0 or time.monotonic() > until:
                raise RuntimeError(f"flush_cache: {status} {body}")
            time.sleep(0.1)

    def detach(self) -> tuple[int, str]:
        """Have SGLang let go of its storage backend for good, and return the answer's status and text."""
        return self._admin("/hicache/storage-backend", "DELETE")

    def _admin(self, path: str, method: str) -> tuple[int, str]:
        return get(self.port, path, method, ADMIN)

    def update_weights(self, model: Path) -> None:
        """Exchange the weights for a model's. RuntimeError where SGLang refuses."""
        post(self.port, "update_weights_from_disk", {"model_path": str(model)}, UPDATE_TIMEOUT_S, ADMIN)
