"""The connector's scopes and the router's: both find one block under one key. With a real kvconnd and a real router."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from conftest import DaemonProcess, start_daemon
from test_daemon import BLOCK_SIZE, Memory, connect_worker, options

from kvconn.client import SchedulerClient
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.scheduler import SchedulerSide

BLOCKS = 4
TOKENS = list(range(1000, 1000 + BLOCKS * BLOCK_SIZE + 1))
LATER = time.time() + 1e6
"""A point in time that all files here are older than."""


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def address(log: Path) -> str:
    """Where a daemon or a router listens, which its log says once it does."""
    wait_until(lambda: re.search(r" http=\S+", log.read_text()) is not None)
    return "http://" + re.findall(r" http=(\S+)", log.read_text())[0]


class Router:
    """A router of two ranks: rank 0 loads from the daemon, rank 1 from nowhere."""

    def __init__(self, binary: str, directory: Path, node: str) -> None:
        ranks = [{"id": i, "model": "m", "adapters": ["tuned"], "endpoint": f"http://h:{i + 1}"} for i in range(2)]
        ranks[0] |= {"node": "n", "node_url": node}
        settings = directory / "router.yaml"  # JSON is YAML
        settings.write_text(
            json.dumps({"http": "127.0.0.1:0", "health_interval": "0s", "drain_delay": "0s", "ranks": ranks})
        )
        log = directory / "router.log"
        with log.open("wb") as out:
            self.process = subprocess.Popen([binary, "router", "--config", str(settings)], stderr=out)
        self.url = address(log)

    def on_disk(self, model: str, **more: Any) -> int:
        """How much of the prompt rank 0 finds on disk, in blocks; -1 if the router is not there yet."""
        body = json.dumps({"model": model, "token_ids": TOKENS, **more}).encode()
        try:
            with urllib.request.urlopen(self.url + "/v1/prefix", body, timeout=20) as answer:
                ranks = {r["rank"]: r["prefix"] for r in json.load(answer)["ranks"]}
        except (urllib.error.URLError, ConnectionError):
            return -1
        assert ranks[1]["disk"] == 0
        return int(ranks[0]["disk"]) // BLOCK_SIZE


@pytest.fixture
def cluster(socket_dir: Path) -> Iterator[tuple[Path, Router]]:
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    path, log = socket_dir / "s", socket_dir / "daemon.log"
    with log.open("wb") as out:
        daemon = DaemonProcess(start_daemon(binary, socket_dir / "store", path, log=out), path)
    router = Router(binary, socket_dir, address(log))
    yield path, router
    for process in (router.process, daemon.process):
        process.kill()
        process.wait()


class Engine:
    """The connector in an engine that computes one prompt after another in the same blocks."""

    def __init__(self, daemon: Path) -> None:
        self.memory = Memory()
        self.worker = connect_worker(daemon, self.memory)
        self.client = SchedulerClient(options(daemon))
        assert self.client.connect()
        self.adapters = Adapters(LATER, False, "{}", logging.getLogger("test"))
        self.side = SchedulerSide(self.client, BLOCK_SIZE, logging.getLogger("test"), self.adapters)
        self.served = 0

    def serve(self, path: Path | None, salt: str = "") -> None:
        """Serve the prompt with the adapter that lies at a path, and save its blocks."""
        self.served += 1
        name = f"request {self.served}"
        lora = SimpleNamespace(lora_name="tuned", lora_int_id=1, lora_path=str(path)) if path is not None else None
        request: Any = SimpleNamespace(
            request_id=name,
            all_token_ids=TOKENS,
            num_tokens=len(TOKENS),
            num_prompt_tokens=len(TOKENS),
            cache_salt=salt or None,
            lora_request=lora,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            skip_reading_prefix_cache=False,
            kv_transfer_params=None,
            trace_headers=None,
        )
        self.side.met(request)
        wait_until(lambda: lora is None or self.adapters.stands_for("tuned") is not None)
        self.side.match(request, 0)
        table = list(range(1, BLOCKS + 2))  # vLLM keeps nothing in block 0
        self.side.allocated(request, SimpleNamespace(get_block_ids=lambda: (table,)), 0)  # type: ignore[arg-type]
        plan = self.side.plan(_output(name, table)).payload
        if plan:
            self.worker.save(plan)
        self.side.finished(name)
        self.side.plan(_output())

    def close(self) -> None:
        self.client.close()
        self.worker.close()


def _output(name: str = "", table: list[int] | None = None) -> Any:
    """What vLLM schedules in a step: one new request, or nothing."""
    new = [SimpleNamespace(req_id=name, num_computed_tokens=0)] if name else []
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    return SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={name: len(TOKENS)} if name else {},
        preempted_req_ids=set(),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: (table,)),
    )


def adapter(path: Path, weights: bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text('{"r": 8}')
    (path / "adapter_model.safetensors").write_bytes(weights)
    time.sleep(0.05)  # a file that was written just now may be written once more
    return path


def test_the_router_finds_a_prompt_with_an_adapter_where_the_connector_has_saved_it(
    cluster: tuple[Path, Router], tmp_path: Path
) -> None:
    daemon, router = cluster
    first = Engine(daemon)
    path = adapter(tmp_path / "a", b"first")
    first.serve(path)
    first.serve(path, "tenant")
    wait_until(lambda: router.on_disk("tuned") == BLOCKS)
    wait_until(lambda: router.on_disk("tuned", cache_salt="tenant") == BLOCKS)
    assert router.on_disk("m", lora="tuned") == BLOCKS
    assert router.on_disk("m") == 0
    assert router.on_disk("tuned", cache_salt="other") == 0

    # Trained again under its name: this engine neither loads nor saves with it any more, and the router knows.
    adapter(path, b"second")
    first.serve(path)
    wait_until(lambda: router.on_disk("tuned") == 0)

    # Another engine has the new content, and two contents under one name are none. Once the first engine has ended, the
    # new one counts.
    second = Engine(daemon)
    second.serve(path)
    time.sleep(1.5)  # longer than routers are told in
    assert router.on_disk("tuned") == 0
    first.close()
    wait_until(lambda: router.on_disk("tuned") == BLOCKS)
    second.close()
    wait_until(lambda: router.on_disk("tuned") == 0)  # who comes next may have another
