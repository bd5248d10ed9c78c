"""A vLLM server as the router sees it: KV cache events, data-parallel ranks, and its own counters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

from environment import Environment
from ports import free_ports
from processes import READY_TIMEOUT_S, Engine, get

KV_BYTES = 192 << 20
"""Engine memory for KV: 192 blocks of the tiny model in float32. Each rank has as much."""
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
"""The tiny model's tokenizer has none."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def metric(port: int, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples that have the labels; 0 where the server does not answer."""
    total = 0.0
    for line in get(port, "/metrics")[1].splitlines():
        found = _SAMPLE.match(line)
        if found is None or found[1] != name:
            continue
        have = dict(_LABEL.findall(found[2] or ""))
        if labels.items() <= have.items():
            total += float(found[3])
    return total


class EventEngine(Engine):
    """A vLLM server that publishes KV cache events. It can be started again on the same ports."""

    def __init__(self, env: Environment, model: Path, log: Path, data_parallel: int = 1) -> None:
        super().__init__(env, model, log)
        self._variables = env.variables()
        self.model, self.ranks = model, data_parallel
        self.links = 2 * data_parallel  # a scheduler's and a worker's each
        # vLLM adds the rank's number to both ports.
        first = free_ports(2 * data_parallel)
        self.events, self.replay = f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{first + data_parallel}"
        if data_parallel > 1:
            cores = sorted(os.sched_getaffinity(0))
            bind = "|".join(str(cores[i % len(cores)]) for i in range(data_parallel))
            self._variables["VLLM_CPU_OMP_THREADS_BIND"] = bind

    def launch(self, connector: str) -> None:
        """Start it; `wait` waits until it serves."""
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # An endpoint without a star would be connected to.
            "endpoint": self.events.replace("127.0.0.1", "*"),
            "replay_endpoint": self.replay.replace("127.0.0.1", "*"),
        }
        command = [str(self._env.python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details"]
        command += ["--max-model-len", "4096", "--max-num-seqs", "4", "--max-num-batched-tokens", "2048"]
        command += ["--kv-cache-memory-bytes", str(KV_BYTES)]
        command += ["--enable-prefix-caching", "--kv-transfer-config", connector]
        command += ["--kv-events-config", json.dumps(events)]
        command += ["--chat-template", CHAT_TEMPLATE]
        command += ["--data-parallel-size", str(self.ranks)] if self.ranks > 1 else []
        self.spawn(command, self._variables)

    def wait(self) -> None:
        """Wait until it serves, and can use the daemon. Data-parallel ranks start side by side, on the same cores."""
        until = time.monotonic() + READY_TIMEOUT_S * self.ranks
        while not (self.healthy() and self.linked()):
            if not self.alive() or time.monotonic() > until:
                self.fail_with_log("vLLM is not ready")
            time.sleep(0.1)

    def kill_worker(self) -> None:
        """Kill the process that computes; the one that answers requests lives on for a while."""
        leader = self._process.pid if self._process else 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                pid = int(path.parent.name)
                if os.getpgid(pid) == leader and b"VLLM::Worker" in path.read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    return
        raise RuntimeError("the server has no worker process")

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have the labels; 0 where the server does not answer."""
        return metric(self.port, name, **labels)

    def served(self, rank: int | None = None) -> int:
        """Return how many requests it has finished since its start, as a whole or on one data-parallel rank."""
        labels = {} if rank is None else {"engine": str(rank)}
        return int(self.metric("vllm:request_success_total", **labels))
