"""The processes under test: kvconnd, and vLLM's OpenAI server."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from environment import Environment
from ports import free_port

READY_TIMEOUT_S = 300.0
WAIT_S = 120.0
"""Bounds waits for what takes seconds at most when all is well, on a machine that stands still at times."""
SETTINGS = ("--prefill-tokens-per-s", "1", "--load-timeout", "60s", "--host-bytes", "512MiB")
"""Of a daemon under test. Whatever it has is worth loading beside a prefill of one token a second: what is tested is
not the price, which a disk that stands still for a second changes. Nor does such a disk make a load fail. It touches
all of its host tier at start, so that is kept small: engines want the processor then."""
_LINK = re.compile(r"[(\[](?:[\d-]+ [\d:]+ ?)?([^)\]]*)[)\]].*kvconn: .*(?: is (connected|back)|until it is back\.)")
"""A line of vLLM or SGLang about a connection to the daemon: whose it is, and whether it can be used now."""


def get(
    port: int, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: str | None = None
) -> tuple[int, str]:
    """Make one request to a local server; status 0 where there is none."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        conn.request(method, path, body, headers or {})
        response = conn.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return 0, ""
    finally:
        conn.close()


class Linked(Protocol):
    """An engine with connections to a daemon."""

    def linked(self) -> bool:
        """Whether it can use all of them: the daemon counts one before the engine does."""


class Program:
    """A program in a process group of its own, with its output in a file. Killed at exit."""

    links = 0
    """How many processes of an engine have a connection to the daemon."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0
        atexit.register(self.kill)

    def spawn(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int | None:
        """Its process id, which is also that of its process group; None where it was not started."""
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def terminate(self, timeout_s: float = 60.0) -> int | None:
        """Ask it to stop, and return its exit status; None where it had to be killed."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            status: int | None = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        self.kill()
        return status

    def kill(self) -> None:
        """Kill it and everything it has started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def lines(self, *words: str) -> list[str]:
        """Return the log lines that have all the words. A last line may be half written, and is left out."""
        text, _, _ = self.log.read_text(errors="replace").rpartition("\n")
        return [line for line in text.splitlines() if all(word in line for word in words)]

    def linked(self) -> bool:
        """Whether an engine can use its connections to the daemon, by the last that each process said of its own.

        To be asked once the daemon has counted them: an engine says that one is lost before it makes another.
        """
        with self.log.open("rb") as log:
            log.seek(self._log_begins)
            text, _, _ = log.read().decode(errors="replace").rpartition("\n")
        said = [found for line in text.splitlines() if (found := _LINK.fullmatch(line))]
        last = {found[1]: found[2] is not None for found in said}
        return len(last) >= self.links and all(last.values())

    def fail_with_log(self, message: str) -> None:
        """Raise, with the end of the log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
        raise RuntimeError(f"{message}; end of {self.log}:\n{tail}")


class Daemon(Program):
    """A kvconnd. It can be started again after it was stopped or killed."""

    def __init__(self, binary: Path, store: Path, socket_path: Path, log: Path) -> None:
        super().__init__(log)
        self.binary, self.store, self.socket_path = binary, store, socket_path
        self.port = free_port()

    def vllm_config(self, timeout_s: float | None = 20) -> str:
        """Return what the daemon says that vLLM needs, patient: what is tested is what the cache does.

        On two cores that vLLM's processes spin on a daemon can be kept from answering for a second.
        None leaves the timeout as it is.
        """
        command = [str(self.binary), "config", "vllm", "--socket", str(self.socket_path)]
        config = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if timeout_s is not None:
            config["kv_connector_extra_config"]["timeout"] = timeout_s
        return json.dumps(config)

    def start(
        self,
        max_bytes: str = "4GiB",
        settings: Sequence[str] = SETTINGS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it and wait until it is ready. Without env it has this process's own."""
        args = ["--dir", str(self.store), "--socket", str(self.socket_path), "--max-bytes", max_bytes]
        args += ["--min-free", "0", *settings]  # a machine that runs tests may have a full disk
        self.spawn([str(self.binary), "serve", *args, "--http", f"127.0.0.1:{self.port}"], env)
        until = time.monotonic() + WAIT_S
        while not self.healthy() or not self.socket_path.exists():
            if not self.alive() or time.monotonic() > until:
                self.fail_with_log("kvconnd is not ready")
            time.sleep(0.02)

    def healthy(self) -> bool:
        """Whether it says that all is well."""
        return get(self.port, "/healthz")[0] == 200

    def metric(self, name: str) -> float:
        """Return the sum of a metric's series; 0 if there is none, as while no engine has connected."""
        status, text = get(self.port, "/metrics")
        if status != HTTPStatus.OK:
            self.fail_with_log(f"kvconnd answers /metrics with {status}")
        lines = text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def wait_for_engine(self, engine: Linked, ranks: int = 1) -> None:
        """Wait until an engine's scheduler and its workers are connected."""
        self.wait_for_engines(engine, 1, ranks)

    def wait_for_engines(self, engine: Linked, engines: int, ranks: int) -> None:
        """Wait until that many schedulers, of one engine or its replicas, and all their workers are connected."""
        self.wait_until(
            lambda: self.metric("kvconn_engines") >= engines and self.metric("kvconn_ranks") >= ranks, "an engine"
        )
        self.wait_until(engine.linked, "an engine that uses it")

    def schedulers(self) -> int:
        """Return how many times a scheduler has connected."""
        return len(self.lines("engine scheduler connected"))

    def wait_for_scheduler_after(self, earlier: int) -> None:
        """Wait until a scheduler has connected after that many."""
        self.wait_until(lambda: self.schedulers() > earlier, "a scheduler")

    def wait_for_writes(self) -> None:
        """Wait until everything that was saved is on disk."""
        self.wait_until(lambda: self.metric("kvconn_store_write_in_flight_bytes") == 0, "the writes to end")

    def wait_until(self, condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
        """Wait until a condition holds. `what` names it for people."""
        until = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until:
                self.fail_with_log(f"kvconnd waited for {what}, which did not come")
            time.sleep(0.02)


class Engine(Program):
    """A vLLM OpenAI server, with kvconn's connector if given its configuration."""

    def __init__(self, env: Environment, model: Path, log: Path) -> None:
        super().__init__(log)
        self._env, self._model = env, model
        self.port = free_port()

    def start(
        self,
        connector: str | None,
        prefix_caching: bool,
        tensor_parallel: int = 1,
        data_parallel: int = 1,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `wait` waits until it serves. What is given last holds: arguments and variables of one's own."""
        # The console script of the CPU wheel does not find its own metadata.
        command = [str(self._env.python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--enable-prompt-tokens-details"]
        command += ["--max-model-len", "4096", "--max-num-seqs", "4", "--max-num-batched-tokens", "2048"]
        command += ["--kv-cache-memory-bytes", str(256 << 20)]
        command += ["--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"]
        if connector is not None:
            command += ["--kv-transfer-config", connector]
            # Below vLLM's own offloading only the scheduler has one.
            tier = "KVConnTieringConnector" in connector
            self.links = data_parallel * (1 if tier else 1 + tensor_parallel)
        if tensor_parallel > 1:
            command += ["--tensor-parallel-size", str(tensor_parallel), "--distributed-executor-backend", "mp"]
        if data_parallel > 1:
            command += ["--data-parallel-size", str(data_parallel)]
        own = self._env.variables(tensor_parallel * data_parallel)
        self.spawn([*command, *arguments], own | dict(variables or {}))

    def wait(self) -> None:
        """Wait until it serves."""
        until = time.monotonic() + READY_TIMEOUT_S
        while not self.healthy():
            if not self.alive() or time.monotonic() > until:
                self.fail_with_log("vLLM is not ready")
            time.sleep(0.1)

    def healthy(self) -> bool:
        """Whether server and engine are alive."""
        return self.alive() and get(self.port, "/health")[0] == 200

    def call(self, method: str) -> list[str | None]:
        """Call a method of all workers, and return what they say."""
        body = json.dumps({"method": method})
        status, answer = get(self.port, "/collective_rpc", "POST", {"Content-Type": "application/json"}, body)
        if status != 200:
            raise RuntimeError(f"{method}: {status} {answer}")
        said: list[str | None] = json.loads(answer)["results"]
        return said

    def reset_prefix_cache(self, timeout_s: float = WAIT_S) -> None:
        """Forget what is cached in engine memory.

        vLLM refuses while requests or transfers hold blocks, and says so in the body alone. Nothing may go on then:
        what engine memory serves looks like a hit.
        """
        until = time.monotonic() + timeout_s
        while True:
            status, body = get(self.port, "/reset_prefix_cache", "POST")
            refused = '"success":false' in body.replace(" ", "")
            if status == 200 and not refused:
                return
            if status != 200 or time.monotonic() > until:
                raise RuntimeError(f"reset_prefix_cache: {status} {body}")
            time.sleep(0.1)
