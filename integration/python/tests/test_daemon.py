"""The client against a real kvconnd, where KVCONND names one."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import DaemonProcess

from kvconn import client
from kvconn.client import Alloc, FinishedLoad, Options, PlannedLoad, Run, Scheduled, SchedulerClient, Step, WorkerClient
from kvconn.connection import Connection
from kvconn.frames import Op

BLOCK_SIZE, BLOCK_BYTES, BLOCKS = 16, 8192, 16
MANIFEST = {
    "engine": "test/1",
    "model": "m",
    "kv_dtype": "float32",
    "block_size": BLOCK_SIZE,
    "layers": 2,
    "kv_heads": 1,
    "head_size": 64,
    "layout": "LB",
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "key_scheme": "tokens",
    "hash_scheme": "kvconn-1",
}
RUNS = [Run(0, 0, 2, BLOCKS * BLOCK_BYTES // 2, BLOCK_BYTES // 2, BLOCK_BYTES // 2)]


def options(path: Path, manifest: dict[str, Any] | None = None) -> Options:
    body = json.dumps({**MANIFEST, **(manifest or {})}).encode()
    return Options(socket=str(path), engine="e", manifest=body, timeout=10.0)


class Memory:
    """An engine's KV memory of two layers."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kv", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, BLOCKS * BLOCK_BYTES)
        self.map = mmap.mmap(self.fd, BLOCKS * BLOCK_BYTES)

    def _pieces(self, block: int) -> list[slice]:
        half = BLOCK_BYTES // 2
        starts = [layer * BLOCKS * half + block * half for layer in range(2)]
        return [slice(s, s + half) for s in starts]

    def fill(self, block: int, byte: int) -> None:
        for piece in self._pieces(block):
            self.map[piece] = bytes([byte]) * (BLOCK_BYTES // 2)

    def read(self, block: int) -> bytes:
        return b"".join(self.map[piece] for piece in self._pieces(block))


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.005)


def polled(worker: WorkerClient) -> list[FinishedLoad]:
    reports: list[FinishedLoad] = []

    def idle() -> bool:
        reports.extend(worker.poll())
        return not worker.busy

    wait_until(idle)
    return reports


def connect_worker(path: Path, memory: Memory) -> WorkerClient:
    worker = WorkerClient(options(path), shard=0)
    assert worker.register([memory.fd], BLOCKS, RUNS)
    return worker


def test_what_was_saved_is_loaded_byte_for_byte(daemon: Path) -> None:
    memory = Memory()
    worker = connect_worker(daemon, memory)
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    tokens = list(range(4 * BLOCK_SIZE + 1))
    assert scheduler.match("r1", tokens).tokens == 0
    for block in range(4):
        memory.fill(block, block + 1)
    saved = scheduler.step(Step(scheduled=[Scheduled("r1", [0, 1, 2, 3], True, 0, len(tokens), [])]), 1)
    assert worker.save(saved.meta) == (4, 0)
    for block in range(4):
        memory.fill(block, 0xEE)  # free to be overwritten
    scheduler.step(Step(finished=["r1"]), 1)

    wait_until(lambda: scheduler.match("r2", tokens).tokens == 4 * BLOCK_SIZE)
    offer = scheduler.match("r2", [], start=len(tokens), computed=BLOCK_SIZE)
    assert offer == (3 * BLOCK_SIZE, True)
    plan = scheduler.step(Step(allocs=[Alloc("r2", [9, 5, 6, 7], BLOCK_SIZE, 3 * BLOCK_SIZE)]), 1)
    assert plan.loads == [PlannedLoad("r2", [5, 6, 7])]
    worker.load(plan.meta, plan.loads)
    assert polled(worker) == [FinishedLoad("r2", [])]
    for block in range(3):
        assert memory.read(5 + block) == bytes([block + 2]) * BLOCK_BYTES
    scheduler.loaded(["r2"], [], 1)
    scheduler.close()
    worker.close()


def test_another_namespace_or_scope_finds_nothing(daemon: Path) -> None:
    memory = Memory()
    worker = connect_worker(daemon, memory)
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    tokens = list(range(2 * BLOCK_SIZE + 1))
    scheduler.match("r", tokens)
    plan = scheduler.step(Step(scheduled=[Scheduled("r", [0, 1], True, 0, len(tokens), [])]), 1)
    assert worker.save(plan.meta).taken == 2
    wait_until(lambda: scheduler.match("again", tokens).tokens == 2 * BLOCK_SIZE)
    assert scheduler.match("salted", tokens, salt="tenant").tokens == 0
    assert scheduler.match("adapted", tokens, lora="adapter").tokens == 0
    for other in (
        {"model": "n"},
        {"kv_dtype": "bfloat16"},
        {"block_size": 8},
        {"revision": "2"},
        {"extra": {"isa": "x"}},
    ):
        stranger = SchedulerClient(options(daemon, other))
        assert stranger.connect()
        assert stranger.match("r", tokens).tokens == 0
        stranger.close()


def test_a_request_that_the_leader_was_not_told_is_named_so(daemon: Path) -> None:
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    with pytest.raises(client.UnknownRequest):
        scheduler.match("r", [1], start=5)
    assert scheduler.match("r", [1]).tokens == 0


@pytest.mark.parametrize("size", [0, 4096, BLOCKS * BLOCK_BYTES - 1])
def test_a_descriptor_too_small_for_its_layout_is_refused(
    daemon: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    fd = os.memfd_create("kv", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    worker = WorkerClient(options(daemon), shard=0)
    assert not worker.register([fd], BLOCKS, RUNS)
    assert "refused register" in caplog.text
    worker.close()


def test_a_descriptor_that_is_no_memory_is_refused(daemon: Path) -> None:
    read, _ = os.pipe()
    worker = WorkerClient(options(daemon), shard=0)
    assert not worker.register([read], BLOCKS, RUNS)
    worker.close()


@pytest.mark.parametrize(
    "manifest", [{"key_scheme": "other"}, {"hash_scheme": "kvconn-0"}, {"block_size": 0}, {"unknown": 1}]
)
def test_a_manifest_that_cannot_be_is_refused(
    daemon: Path, manifest: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = SchedulerClient(options(daemon, manifest))
    assert not scheduler.connect()
    assert "refused hello" in caplog.text
    scheduler.close()


def test_no_common_version_is_named_so(daemon: Path) -> None:
    conn = Connection.open(str(daemon), 10.0)
    with pytest.raises(client.VersionMismatch):
        conn.call(Op.HELLO, {"versions": [90, 99], "role": "scheduler", "engine": "e"}, 10.0)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, b"\0" * 64])
def test_garbage_on_the_socket_costs_its_sender_the_connection_and_nobody_else(daemon: Path, garbage: bytes) -> None:
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(20)
        stranger.connect(str(daemon))
        stranger.sendall(garbage)
        while stranger.recv(4096):
            pass
    assert scheduler.match("r", [1]).tokens == 0


def test_the_socket_is_for_its_owner_only(daemon: Path) -> None:
    assert stat.S_IMODE(daemon.stat().st_mode) == 0o600


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and return when all its threads stand still."""
    process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    wait_until(lambda: all((t / "stat").read_text().rpartition(") ")[2][0] in "Tt" for t in tasks.iterdir()))


def test_a_save_that_the_client_has_given_up_is_not_kept(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    worker = WorkerClient(replace(options(daemon_process.socket), timeout=0.3), shard=0)
    assert worker.register([memory.fd], BLOCKS, RUNS)
    scheduler = SchedulerClient(options(daemon_process.socket))
    assert scheduler.connect()
    tokens = list(range(2 * BLOCK_SIZE + 1))
    scheduler.match("r", tokens)
    memory.fill(0, 1)
    memory.fill(1, 2)
    plan = scheduler.step(Step(scheduled=[Scheduled("r", [0, 1], True, 0, len(tokens), [])]), 1)
    freeze(daemon_process.process)
    assert worker.save(plan.meta) == (0, 0)
    memory.fill(0, 0xEE)  # the engine goes on
    memory.fill(1, 0xEE)
    daemon_process.process.send_signal(signal.SIGCONT)
    wait_until(lambda: worker._link.connection is not None and worker._link.connection.session == 2)
    # What is saved now is written after anything that was saved before.
    other = list(range(100, 100 + BLOCK_SIZE + 1))
    scheduler.match("other", other)
    plan = scheduler.step(Step(scheduled=[Scheduled("other", [0], True, 0, len(other), [])]), 1)
    assert worker.save(plan.meta).taken == 1
    wait_until(lambda: scheduler.match("other again", other).tokens == BLOCK_SIZE)
    assert scheduler.match("again", tokens).tokens == 0
    scheduler.close()
    worker.close()
