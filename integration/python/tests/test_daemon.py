"""The client against a real kvconnd, where KVCONND names one."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import DaemonProcess

from kvconn import client
from kvconn.client import (
    NO_BLOCK,
    Alloc,
    FinishedLoad,
    GroupLayout,
    KeyedClient,
    Options,
    Part,
    PlannedLoad,
    Polled,
    Run,
    SaveResult,
    Scheduled,
    SchedulerClient,
    Span,
    Step,
    StoredPut,
    WorkerClient,
)
from kvconn.connection import Connection
from kvconn.frames import Op

BLOCK_SIZE, BLOCK_BYTES, BLOCKS = 16, 8192, 16
MANIFEST = {
    "engine": "test/1",
    "model": "m",
    "kv_dtype": "float32",
    "block_size": BLOCK_SIZE,
    "groups": [{"layers": 2, "kv_heads": 1, "head_size": 64, "layout": "LB"}],
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "key_scheme": "tokens",
    "hash_scheme": "kvconn-1",
}
LAYOUT = [GroupLayout(BLOCKS, [Run(0, 0, 2, BLOCKS * BLOCK_BYTES // 2, BLOCK_BYTES // 2, BLOCK_BYTES // 2)])]


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


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.005)


def polled(worker: WorkerClient) -> list[FinishedLoad]:
    """The reports without what the loads brought, which differs."""
    return [FinishedLoad(report.request, report.failed_blocks) for report in polled_with_tiers(worker)]


def polled_with_tiers(worker: WorkerClient) -> list[FinishedLoad]:
    reports: list[FinishedLoad] = []

    def idle() -> bool:
        reports.extend(worker.poll())
        return not worker.busy

    wait_until(idle)
    return reports


def connect_worker(
    path: Path,
    memory: Memory,
    rank: int = 0,
    manifest: dict[str, Any] | None = None,
    layout: list[GroupLayout] = LAYOUT,
) -> WorkerClient:
    worker = WorkerClient(options(path, manifest), rank)
    assert worker.register([memory.fd], layout)
    return worker


Pair = tuple[Memory, WorkerClient, SchedulerClient]


@pytest.fixture
def pair(daemon: Path) -> Iterator[Pair]:
    """An engine's memory, a worker with it, and a scheduler, both connected."""
    memory = Memory()
    worker = connect_worker(daemon, memory)
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    yield memory, worker, scheduler
    scheduler.close()
    worker.close()


def save_blocks(scheduler: SchedulerClient, workers: list[WorkerClient], tokens: list[int], tables: list[Any]) -> None:
    """Save the full blocks of a prompt, which lie in tables, one for each group."""
    scheduler.match("saving", tokens)
    scheduled = Scheduled("saving", tables, True, 0, len(tokens), [])
    plan = scheduler.step(Step(scheduled=[scheduled]), scheduler.session)
    for worker in workers:
        result = worker.save(plan.meta)
        assert result.taken
        assert not result.dropped
    scheduler.step(Step(finished=["saving"]), scheduler.session)


def test_what_was_saved_is_loaded_byte_for_byte(pair: Pair) -> None:
    memory, worker, scheduler = pair
    tokens = list(range(4 * BLOCK_SIZE + 1))
    assert scheduler.match("r1", tokens).tokens == 0
    for block in range(4):
        memory.fill(block, block + 1)
    first = Step(scheduled=[Scheduled("r1", [[0, 1, 2, 3]], True, 0, len(tokens), [])], tell_saves=True)
    saved = scheduler.step(first, 1)
    assert saved.saves == (("r1", 0, 0, 4),)
    worker.revoke([0, 3])  # before the save, which holds what was computed since
    worker.save_later("step 1", saved.meta)
    assert worker.stored() == [StoredPut("step 1", 4, 0, 0)]
    for block in range(4):
        memory.fill(block, 0xEE)  # free to be overwritten
    scheduler.step(Step(finished=["r1"]), 1)

    wait_until(lambda: scheduler.match("r2", tokens).tokens == 4 * BLOCK_SIZE)
    offer = scheduler.match("r2", [], start=len(tokens), computed=BLOCK_SIZE, tiers=True, trace="00-aa-bb-01")
    assert offer == (3 * BLOCK_SIZE, True, {"host": 3 * BLOCK_SIZE}, 0)
    plan = scheduler.step(Step(allocs=[Alloc("r2", [[9, 5, 6, 7]], BLOCK_SIZE, 3 * BLOCK_SIZE)]), 1)
    assert plan.loads == [PlannedLoad("r2", [5, 6, 7])]
    worker.load(plan.meta, plan.loads)
    (ended,) = polled_with_tiers(worker)
    assert (ended.request, ended.failed_blocks) == ("r2", [])
    assert ended.tiers == {"host": (3, 3 * BLOCK_BYTES)}
    assert 0 < ended.seconds < 10
    for block in range(3):
        assert memory.read(5 + block) == bytes([block + 2]) * BLOCK_BYTES
    scheduler.loaded(["r2"], [], 1)


def test_another_namespace_or_scope_finds_nothing(daemon: Path) -> None:
    memory = Memory()
    worker = connect_worker(daemon, memory)
    scheduler = SchedulerClient(options(daemon))
    assert scheduler.connect()
    tokens = list(range(2 * BLOCK_SIZE + 1))
    scheduler.match("r", tokens)
    plan = scheduler.step(Step(scheduled=[Scheduled("r", [[0, 1]], True, 0, len(tokens), [])]), 1)
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


HYBRID = {
    "groups": [
        {"layers": 1, "kv_heads": 1, "head_size": 64, "layout": "LB"},
        {"layers": 1, "window": 2 * BLOCK_SIZE, "kv_heads": 1, "head_size": 64, "layout": "LB"},
    ]
}
# As vLLM's groups do, these alias the same bytes: a block id belongs to one group at a time.
HYBRID_LAYOUT = [GroupLayout(BLOCKS, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])] * 2


def test_a_window_loads_only_what_it_needs(daemon: Path) -> None:
    memory = Memory()
    worker = connect_worker(daemon, memory, manifest=HYBRID, layout=HYBRID_LAYOUT)
    scheduler = SchedulerClient(options(daemon, HYBRID))
    assert scheduler.connect()
    tokens = list(range(4 * BLOCK_SIZE + 1))
    for block in range(8):
        memory.map[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes([block + 1]) * BLOCK_BYTES
    save_blocks(scheduler, [worker], tokens, [[0, 1, 2, 3], [4, 5, 6, 7]])
    wait_until(lambda: scheduler.match("r", tokens).tokens == 4 * BLOCK_SIZE)
    tables = [[8, 9, 10, 11], [NO_BLOCK, NO_BLOCK, 12, 13]]
    plan = scheduler.step(Step(allocs=[Alloc("r", tables, 0, 4 * BLOCK_SIZE)]), 1)
    assert [(r, sorted(blocks)) for r, blocks in plan.loads] == [("r", [8, 9, 10, 11, 12, 13])]
    worker.load(plan.meta, plan.loads)
    assert polled(worker) == [FinishedLoad("r", [])]
    for block, want in zip([8, 9, 10, 11, 12, 13], [1, 2, 3, 4, 7, 8], strict=True):
        assert memory.map[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] == bytes([want]) * BLOCK_BYTES
    scheduler.close()
    worker.close()


def test_a_block_is_offered_only_with_all_its_shards(daemon: Path) -> None:
    ranks = {"tensor_parallel": 2}
    memories = [Memory(), Memory()]
    workers = [connect_worker(daemon, m, rank, ranks) for rank, m in enumerate(memories)]
    scheduler = SchedulerClient(options(daemon, ranks))
    assert scheduler.connect()
    one, both = [list(range(n, n + BLOCK_SIZE + 1)) for n in (0, 100)]
    memories[0].fill(0, 1)
    save_blocks(scheduler, workers[:1], one, [[0]])
    memories[0].fill(1, 3)
    memories[1].fill(1, 4)
    save_blocks(scheduler, workers, both, [[1]])
    wait_until(lambda: scheduler.match("both", both).tokens == BLOCK_SIZE)
    assert scheduler.match("one", one).tokens == 0
    plan = scheduler.step(Step(allocs=[Alloc("both", [[7]], 0, BLOCK_SIZE)]), 1)
    for worker in workers:
        worker.load(plan.meta, plan.loads)
        assert polled(worker) == [FinishedLoad("both", [])]
    assert [m.read(7) for m in memories] == [bytes([n]) * BLOCK_BYTES for n in (3, 4)]
    for client_ in (scheduler, *workers):
        client_.close()


def test_other_content_behind_the_same_tokens_is_another_prompt(pair: Pair) -> None:
    _, worker, scheduler = pair
    tokens = [7] * (2 * BLOCK_SIZE + 1)
    scheduler.match("saving", tokens, spans=[Span(20, 30, b"cat")])
    plan = scheduler.step(Step(scheduled=[Scheduled("saving", [[0, 1]], True, 0, len(tokens), [])]), 1)
    assert worker.save(plan.meta) == SaveResult(2)
    wait_until(lambda: scheduler.match("cat", tokens, spans=[Span(20, 30, b"cat")]).tokens == 2 * BLOCK_SIZE)
    assert scheduler.match("dog", tokens, spans=[Span(20, 30, b"dog")]).tokens == BLOCK_SIZE
    assert scheduler.match("moved", tokens, spans=[Span(19, 29, b"cat")]).tokens == BLOCK_SIZE
    assert scheduler.match("none", tokens).tokens == BLOCK_SIZE


def test_a_reset_has_block_tables_told_again(pair: Pair) -> None:
    _, worker, scheduler = pair
    tokens = list(range(2 * BLOCK_SIZE + 1))
    scheduler.match("r", tokens)
    scheduler.step(Step(scheduled=[Scheduled("r", [[0, 1, 2]], True, 0, 1, [])]), 1)
    scheduler.reset()
    assert scheduler.step(Step(scheduled=[Scheduled("r", [[]], False, 1, BLOCK_SIZE, [])]), 1).meta == b""
    plan = scheduler.step(Step(scheduled=[Scheduled("r", [[4, 5, 6]], True, 1, 2 * BLOCK_SIZE, [])]), 1)
    assert worker.save(plan.meta).taken == 2


def test_blocks_named_by_the_engine_are_kept_and_found(daemon: Path) -> None:
    memory = Memory()
    keyed = KeyedClient(options(daemon, {"key_scheme": "engine"}))
    assert keyed.register([memory.fd], LAYOUT)
    hashes = [os.urandom(32) for _ in range(3)]
    for block in range(2):
        memory.fill(block, block + 1)
    keyed.put("save", [Part(0, b"", hashes[:2], [0, 1])])
    assert everything(keyed) == Polled([], [StoredPut("save", 2, 0, 0)])
    wait_until(lambda: keyed.present("r", hashes) == [b"\x03"])
    assert keyed.present("r", hashes, held=1) == [b"\x02"]
    assert keyed.present("r", hashes[1:], first=1, parent=hashes[0]) == [b"\x01"]
    assert keyed.present("other", hashes, no_load=True) == [b"\x00"]
    keyed.fetch("load", [Part(0, b"", hashes[:1], [5]), Part(0, hashes[0], hashes[1:], [6, 7])], of="r")
    ended = everything(keyed)
    assert ([f[:2] for f in ended.finished], ended.stored) == ([("load", [7])], [])
    assert [memory.read(b) for b in (5, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2)]
    assert keyed.present("r", hashes) == [b"\x00"]  # its load failed in part
    keyed.touch("r", hashes, tokens=48, seconds=0.5)
    assert keyed.present("r", hashes) == [b"\x03"]  # it is another by now
    keyed.put("again", [Part(0, b"", hashes[:2], [0, 1])])
    assert everything(keyed) == Polled([], [StoredPut("again", 0, 0, 2)])
    keyed.close()


def everything(keyed: KeyedClient) -> Polled:
    """What poll reports until nothing is in flight."""
    reports = Polled([], [])

    def idle() -> bool:
        told = keyed.poll()
        reports.finished.extend(told.finished)
        reports.stored.extend(told.stored)
        return not keyed.busy

    wait_until(idle)
    return reports


def test_memory_that_was_taken_back_is_not_touched(pair: Pair) -> None:
    memory, worker, scheduler = pair
    tokens = list(range(BLOCK_SIZE + 1))
    save_blocks(scheduler, [worker], tokens, [[0]])
    wait_until(lambda: scheduler.match("r", tokens).tokens == BLOCK_SIZE)
    plan = scheduler.step(Step(allocs=[Alloc("r", [[5]], 0, BLOCK_SIZE)]), 1)
    assert worker.cancel("r", 1.0)
    worker.load(plan.meta, plan.loads)
    assert worker.unregister(10.0)
    memory.fill(5, 0xEE)
    assert [load.request for load in worker.poll()] in (["r"], [])
    assert memory.read(5) == b"\xee" * BLOCK_BYTES
    assert worker.register([memory.fd], LAYOUT)


def test_a_frozen_daemon_is_fenced_and_its_load_fails(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    worker = WorkerClient(replace(options(daemon_process.socket), timeout=3.0), rank=0)
    assert worker.register([memory.fd], LAYOUT)
    scheduler = SchedulerClient(options(daemon_process.socket))
    assert scheduler.connect()
    tokens = list(range(2 * BLOCK_SIZE + 1))
    save_blocks(scheduler, [worker], tokens, [[0, 1]])
    wait_until(lambda: scheduler.match("r", tokens).tokens == 2 * BLOCK_SIZE)
    plan = scheduler.step(Step(allocs=[Alloc("r", [[5, 6]], 0, 2 * BLOCK_SIZE)]), 1)
    daemon_process.freeze()
    worker.load(plan.meta, plan.loads)
    assert worker.poll() == [FinishedLoad("r", [5, 6])]
    memory.fill(5, 0xEE)  # the engine goes on
    memory.fill(6, 0xEE)
    daemon_process.process.send_signal(signal.SIGCONT)
    wait_until(lambda: worker._link.connection is not None)
    scheduler.match("r", tokens)
    assert [memory.read(b) for b in (5, 6)] == [b"\xee" * BLOCK_BYTES] * 2
    scheduler.close()
    worker.close()


def test_a_request_that_the_leader_does_not_know_is_named_so(daemon: Path) -> None:
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
    worker = WorkerClient(options(daemon), rank=0)
    assert not worker.register([fd], LAYOUT)
    assert "refused register" in caplog.text
    worker.close()


def test_a_descriptor_that_is_no_memory_is_refused(daemon: Path) -> None:
    read, _ = os.pipe()
    worker = WorkerClient(options(daemon), rank=0)
    assert not worker.register([read], LAYOUT)
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


def test_a_save_that_the_client_has_given_up_is_not_kept(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    worker = WorkerClient(replace(options(daemon_process.socket), timeout=3.0), rank=0)
    assert worker.register([memory.fd], LAYOUT)
    scheduler = SchedulerClient(options(daemon_process.socket))
    assert scheduler.connect()
    tokens = list(range(2 * BLOCK_SIZE + 1))
    scheduler.match("r", tokens)
    memory.fill(0, 1)
    memory.fill(1, 2)
    plan = scheduler.step(Step(scheduled=[Scheduled("r", [[0, 1]], True, 0, len(tokens), [])]), 1)
    daemon_process.freeze()
    assert worker.save(plan.meta) == SaveResult()
    memory.fill(0, 0xEE)  # the engine goes on
    memory.fill(1, 0xEE)
    daemon_process.process.send_signal(signal.SIGCONT)
    wait_until(lambda: worker._link.connection is not None)
    # What is saved now is written after anything that was saved before.
    other = list(range(100, 100 + BLOCK_SIZE + 1))
    scheduler.match("other", other)
    plan = scheduler.step(Step(scheduled=[Scheduled("other", [[0]], True, 0, len(other), [])]), 1)
    assert worker.save(plan.meta).taken == 1
    wait_until(lambda: scheduler.match("other again", other).tokens == BLOCK_SIZE)
    assert scheduler.match("again", tokens).tokens == 0
    scheduler.close()
    worker.close()


def test_a_frozen_daemon_ends_loads_and_saves_by_key_and_touches_nothing_later(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    keyed = KeyedClient(replace(options(daemon_process.socket, {"key_scheme": "engine"}), timeout=3.0))
    assert keyed.register([memory.fd], LAYOUT)
    hashes = [os.urandom(32) for _ in range(4)]
    memory.fill(0, 1)
    memory.fill(1, 2)
    keyed.put("save", [Part(0, b"", hashes[:2], [0, 1])])
    assert everything(keyed) == Polled([], [StoredPut("save", 2, 0, 0)])
    wait_until(lambda: keyed.present("r", hashes) == [b"\x03"])
    daemon_process.freeze()
    keyed.fetch("r", [Part(0, b"", hashes[:2], [5, 6])])
    keyed.put("late", [Part(0, hashes[1], hashes[2:], [0, 1])])
    assert everything(keyed) == Polled([FinishedLoad("r", [5, 6])], [StoredPut("late", 0, 2, 0)])
    for block in (0, 1, 5, 6):  # the engine goes on
        memory.fill(block, 0xEE)
    daemon_process.process.send_signal(signal.SIGCONT)
    wait_until(lambda: keyed.present("r", hashes) == [b"\x03"])
    assert [memory.read(b) for b in (5, 6)] == [b"\xee" * BLOCK_BYTES] * 2
    keyed.close()


def test_a_killed_daemon_ends_loads_and_saves_by_key_and_is_used_again(
    daemon_process: DaemonProcess,
) -> None:
    memory = Memory()
    keyed = KeyedClient(replace(options(daemon_process.socket, {"key_scheme": "engine"}), retry_interval=0.05))
    assert keyed.register([memory.fd], LAYOUT)
    hashes = [os.urandom(32) for _ in range(2)]
    memory.fill(0, 1)
    keyed.fetch("load", [Part(0, b"", hashes, [5, 6])])
    keyed.put("save", [Part(0, b"", hashes, [0, 1])])
    daemon_process.process.kill()
    daemon_process.process.wait()
    told = everything(keyed)
    assert ([f.request for f in told.finished], [s.request for s in told.stored]) == (["load"], ["save"])
    assert keyed.present("r", hashes) == [b"\x00"]
    daemon_process.restart()
    wait_until(lambda: keyed._link.connection is not None)
    keyed.put("save", [Part(0, b"", hashes, [0, 1])])
    told = everything(keyed)
    assert told.stored[0].taken + told.stored[0].present == 2
    wait_until(lambda: keyed.present("r", hashes) == [b"\x03"])
    keyed.close()
