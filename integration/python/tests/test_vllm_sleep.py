"""KV memory that vLLM takes back before it sleeps, and hands over again, on a scripted daemon."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from fake_daemon import LOAD, POLL, REGISTER, SAVE, UNREGISTER, FakeDaemon
from test_client import wait_until
from test_engine_memory import Memory

from kvconn.client import Options, PlannedLoad, WorkerClient
from kvconn.vllm import connector as module
from kvconn.vllm.connector import KVConnConnector
from kvconn.vllm.metadata import StepMetadata
from kvconn.vllm.worker import WorkerSide

FENCED, COPIES = 0, 8


class Daemon(FakeDaemon):
    """A daemon that notes when its client has ended a connection."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.device = False
        self.client_ended = threading.Event()

    def _last_copies(self, conn: socket.socket) -> None:
        self.client_ended.set()
        super()._last_copies(conn)


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[Daemon]:
    daemon = Daemon(socket_dir / "s")
    daemon.on[LOAD] = lambda _: {"n": 1}
    daemon.on[SAVE] = lambda _: {"later": True} if daemon.device else {"taken": 1}
    daemon.on[POLL] = lambda _: {"finished": []}
    yield daemon
    daemon.stop()


class DeviceSide(WorkerSide):
    """A worker whose memory is a device's."""

    def _device_memory(self, storages: Sequence[Any], kv_caches: Mapping[str, torch.Tensor]) -> Any:
        return Memory()


class Engine:
    """The worker's half of vLLM: its connector, and the memory that it puts to sleep."""

    def __init__(self, fake: Daemon, device: bool) -> None:
        self.fake, self.device = fake, device
        fake.device = device
        options = Options(socket=str(fake.path), engine="e", manifest=b"{}", timeout=20, retry_interval=0.01)
        self.client = WorkerClient(options, rank=0)
        spec = type("FullAttentionSpec", (SimpleNamespace,), {})(page_size_bytes=64)
        placed = SimpleNamespace(layers=["l"], offset=0, layer_stride=256, block_stride=64, host_resident=False)
        config: Any = SimpleNamespace(
            num_blocks=4,
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["l"])],
            kv_cache_tensors=[placed],
        )
        self.connector = object.__new__(KVConnConnector)
        self.connector._broken = set()
        self.connector._client = self.client
        make = DeviceSide if device else WorkerSide
        self.connector._worker = make(self.client, config, logging.getLogger("test"), device)
        with self.connector._worker.allocation_context():
            self.memory = torch.zeros(256, dtype=torch.int8, device="cpu")
        self.connector.register_kv_caches({"l": self.memory.view(4, 1, 8, 8)})
        self.registered()
        fake.ops()

    def registered(self) -> None:
        wait_until(lambda: self.client._registration() is not None)

    def begin(self, **saves: list[int]) -> StepMetadata:
        """Begin a step with a load, and with saves of these blocks."""
        metadata = StepMetadata(b"m", [PlannedLoad("a", [2, 3])], saves=saves, number=7)
        self.connector.handle_preemptions(metadata)
        return metadata

    def ended(self) -> tuple[set[str], set[str], set[int]]:
        """Return which requests the connector reports, and the blocks whose loads have failed."""
        sent, received = self.connector.get_finished({"b"})
        return sent or set(), received or set(), self.connector.get_block_ids_with_load_errors()

    def copying(self) -> memoryview:
        """Have the daemon stand still in the middle of a copy, and return the fence page that it has."""
        page = self.fake.fence()
        page[COPIES] = 1
        return page


@pytest.fixture(params=[False, True], ids=["host", "device"])
def engine(request: pytest.FixtureRequest, fake: Daemon) -> Iterator[Engine]:
    made = Engine(fake, request.param)
    yield made
    made.connector.shutdown()


def test_loads_and_saves_under_way_end_with_the_memory(
    fake: Daemon, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    page = fake.fence()
    engine.connector.bind_connector_metadata(engine.begin(b=[1]))
    engine.connector.wait_for_save()
    assert engine.ended() == (set(), set(), set())
    assert [op for op in fake.ops() if op != POLL] == [LOAD, SAVE]
    engine.connector.unregister_kv_caches()
    assert page[FENCED] != 0
    assert UNREGISTER in fake.ops()
    assert engine.client._registration() is None
    assert "is gone" not in caplog.text
    # What holds nothing any more is reported, once, so that no request waits for it.
    assert engine.ended() == ({"b"} if engine.device else set(), {"a"}, {2, 3})
    assert engine.ended() == (set(), set(), set())


def test_nothing_is_asked_of_memory_that_sleeps(fake: Daemon, engine: Engine) -> None:
    engine.connector.unregister_kv_caches()
    fake.ops()
    engine.connector.bind_connector_metadata(engine.begin(b=[1]))
    engine.connector.wait_for_save()
    assert engine.ended() == ({"b"} if engine.device else set(), {"a"}, {2, 3})
    assert LOAD not in (asked := fake.ops())
    assert SAVE not in asked


def test_memory_that_is_back_is_registered_again_and_serves(fake: Daemon, engine: Engine) -> None:
    former = fake.fence()
    engine.connector.unregister_kv_caches()
    engine.connector.restore_kv_caches()
    engine.registered()
    assert REGISTER in fake.ops()
    # Not the page that came last: the thread that watches may have registered at the same moment, and given it up.
    current = engine.client._registration()
    assert current is not None
    assert (former[FENCED] != 0, current.fenced) == (True, False)
    fake.on[POLL] = lambda _: {"finished": [["a", b""]]}
    engine.begin()
    assert engine.ended() == (set(), {"a"}, set())


def test_both_hooks_may_be_called_again(fake: Daemon, engine: Engine) -> None:
    engine.connector.restore_kv_caches()  # it was not taken back
    assert fake.ops() == []
    for _ in range(2):
        engine.connector.unregister_kv_caches()
    assert fake.ops().count(UNREGISTER) == 1
    engine.connector.restore_kv_caches()
    engine.registered()
    registration = engine.client._registration()
    engine.connector.restore_kv_caches()
    assert engine.client._registration() is registration


def test_a_copy_that_does_not_end_in_time_has_no_connection_and_no_successor(
    fake: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM frees the memory when the hook returns, whatever it says."""
    monkeypatch.setattr(module, "_UNREGISTER_TIMEOUT_S", 0.05)
    engine.begin()
    page = engine.copying()
    engine.connector.unregister_kv_caches()
    assert page[FENCED] != 0  # no other copy begins
    assert fake.client_ended.wait(20)  # so the daemon, or its copier, ends this one
    assert "still copies from or to the KV memory" in caplog.text
    assert engine.client._registration() is None
    # The blocks are in use until the copy has ended.
    assert engine.ended() == (set(), set(), set())
    page[COPIES] = 0
    wait_until(lambda: engine.ended() == (set(), {"a"}, {2, 3}))


@pytest.mark.parametrize("proof", ["the count", "the end of the daemon's socket"])
def test_memory_may_be_back_before_a_copy_has_ended(
    fake: Daemon, engine: Engine, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    monkeypatch.setattr(module, "_UNREGISTER_TIMEOUT_S", 0.05)
    engine.begin()
    page = engine.copying()
    engine.connector.unregister_kv_caches()
    former = fake.conns[0]
    engine.connector.restore_kv_caches()
    engine.registered()
    assert engine.client._registration()._page.fenced is False
    assert engine.ended() == (set(), set(), set())  # the old load may still write
    ends: dict[str, Callable[[], None]] = {
        "the count": lambda: page.__setitem__(COPIES, 0),
        "the end of the daemon's socket": lambda: fake.conns.remove(former),
    }
    ends[proof]()
    wait_until(lambda: engine.ended() == (set(), {"a"}, {2, 3}))
