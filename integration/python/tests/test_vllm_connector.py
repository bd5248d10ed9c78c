from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from fake_daemon import HELLO, LOAD, POLL, SAVE, FakeDaemon
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvconn.client import FinishedLoad, Options, PlannedLoad, Run, SaveResult, WorkerClient
from kvconn.identity.files import FileId, UnknownIdentity
from kvconn.vllm import entry, releases
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.connector import KVConnConnector, _check, _options
from kvconn.vllm.layout import BLOCK_OUTERMOST
from kvconn.vllm.metadata import Reported, StepMetadata
from kvconn.vllm.worker import WorkerSide


def vllm_config(**transfer: Any) -> Any:
    defaults = {
        "kv_connector_extra_config": {"socket": "/s"},
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "engine_id": "e",
    }
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(**{**defaults, **transfer}),
        device_config=SimpleNamespace(device_type="cpu"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
    )


class FullAttentionSpec(SimpleNamespace):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


def kv_config(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=s, layer_names=["l"]) for s in specs])


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        ({"kv_connector_extra_config": {}}, "socket"),
        ({"kv_connector_extra_config": {"socket": "/s", "sokcet": 1}}, "unknown settings"),
        ({"kv_role": "kv_producer"}, "kv_both"),
        ({"kv_load_failure_policy": "fail"}, "recompute"),
    ],
)
def test_settings_that_cannot_work_say_so(transfer: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _check(vllm_config(**transfer), kv_config(FullAttentionSpec()))  # type: ignore[arg-type]


def test_memory_on_other_devices_is_refused() -> None:
    config = vllm_config()
    config.device_config.device_type = "xpu"
    with pytest.raises(ValueError, match="xpu"):
        _check(config, kv_config(FullAttentionSpec()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sleeps", "told", "works"), [(False, False, True), (True, True, True), (True, False, False)])
def test_memory_of_a_gpu_may_sleep_where_the_connector_is_told(
    monkeypatch: pytest.MonkeyPatch, sleeps: bool, told: bool, works: bool
) -> None:
    monkeypatch.setattr(releases, "RESTORES", told)
    config = vllm_config()
    config.device_config.device_type = "cuda"
    config.model_config = SimpleNamespace(enable_sleep_mode=sleeps)
    with contextlib.nullcontext() if works else pytest.raises(ValueError, match="enable_sleep_mode"):
        _check(config, kv_config(FullAttentionSpec()))  # type: ignore[arg-type]


def model(**is_so: bool) -> Any:
    return SimpleNamespace(**{"use_mla": False, "is_hybrid": False, "is_attention_free": False, **is_so})


@pytest.mark.parametrize(
    ("kind", "config", "wanted"),
    [
        ("cuda", model(), "BLHNC"),
        ("cpu", model(), None),
        ("cuda", model(use_mla=True), None),
        ("cuda", model(is_hybrid=True), None),
        ("cuda", model(is_attention_free=True), None),
        ("cuda", None, None),
        ("cuda", SimpleNamespace(), None),  # as of a version that is not known
    ],
)
def test_blocks_on_a_gpu_are_to_be_in_one_piece(kind: str, config: Any, wanted: str | None) -> None:
    asked = vllm_config()
    asked.device_config.device_type = kind
    asked.model_config = config
    assert KVConnConnector.get_required_kvcache_layout(asked) == wanted


def test_the_layout_that_is_asked_for_is_one_of_vllms() -> None:
    kv_cache_layout = pytest.importorskip("vllm.v1.kv_cache_layout")
    names = kv_cache_layout.KVCacheLayout
    assert names[BLOCK_OUTERMOST].is_block_outermost
    assert names[BLOCK_OUTERMOST].is_block_compact


@pytest.mark.parametrize(
    ("supported", "chosen"), [(["LBNHC", "LBHNC", "BLNHC", "BLHNC"], "BLHNC"), (["LBNHC"], "LBNHC")]
)
def test_vllm_takes_the_layout_where_its_backend_has_it(
    monkeypatch: pytest.MonkeyPatch, supported: list[str], chosen: str
) -> None:
    from vllm.distributed.kv_transfer.kv_connector import utils as connectors
    from vllm.v1.attention.backends import utils as backends

    config = vllm_config()
    config.device_config.device_type = "cuda"
    config.model_config, config.cache_config = model(), SimpleNamespace(kv_cache_layout=None)
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    monkeypatch.setattr(connectors.KVConnectorFactory, "get_connector_class", lambda _: KVConnConnector)
    assert backends.resolve_kv_cache_layout(config, [supported]).name == chosen


@pytest.mark.parametrize(
    ("role", "parallel", "level"),
    [
        (KVConnectorRole.SCHEDULER, {}, logging.WARNING),
        (KVConnectorRole.WORKER, {}, logging.INFO),
        (KVConnectorRole.WORKER, {"node_rank_within_dp": 0}, logging.INFO),
        (KVConnectorRole.WORKER, {"node_rank_within_dp": 1}, logging.WARNING),
        (KVConnectorRole.WORKER, {"distributed_executor_backend": "ray"}, logging.WARNING),
    ],
)
def test_each_node_says_that_its_daemon_is_absent(role: KVConnectorRole, parallel: dict[str, Any], level: int) -> None:
    config = vllm_config()
    vars(config.parallel_config).update(parallel)
    assert _options(config, role, SimpleNamespace(manifest=b"{}")).absent_level == level  # type: ignore[arg-type]


@pytest.mark.parametrize("size", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_context_parallelism_is_refused(size: str) -> None:
    config = vllm_config()
    setattr(config.parallel_config, size, 2)
    with pytest.raises(ValueError, match=size):
        _check(config, kv_config(FullAttentionSpec()))


def test_windows_are_refused_where_a_failed_load_would_kill_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "TransferResults", None)
    with pytest.raises(ValueError, match="failed_recving"):
        _check(vllm_config(), kv_config(SlidingWindowSpec(sliding_window=8)))


@pytest.mark.parametrize("error", [UnknownIdentity("why"), RuntimeError("odd version")])
@pytest.mark.parametrize(("role", "warnings"), [(KVConnectorRole.SCHEDULER, 1), (KVConnectorRole.WORKER, 0)])
def test_an_engine_that_nothing_tells_apart_runs_without_cache(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    role: KVConnectorRole,
    warnings: int,
) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(entry, "Identity", unknown)
    monkeypatch.setattr(entry.logger, "propagate", True)
    connector = KVConnConnector(vllm_config(), role, kv_config(FullAttentionSpec()))  # type: ignore[arg-type]
    request = SimpleNamespace(request_id="r")
    assert connector.get_mem_pool_context() is None
    connector.register_kv_caches({})
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)  # type: ignore[arg-type]
    assert not connector.build_connector_meta(None)  # type: ignore[arg-type]
    assert connector.reset_cache() is True
    connector.shutdown()
    said = [r for r in caplog.records if r.levelname == "WARNING" and "neither loaded nor saved" in r.getMessage()]
    assert (len(said), str(error) in caplog.text) == (warnings, bool(warnings))


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_no_exception_reaches_the_engine_core() -> None:
    watcher = object.__new__(entry.CoreWatcher)
    watcher._broken = set()
    watcher.adapters = Adapters(0, True, "", logging.getLogger("test"))
    watcher.weights_exchanged("reload_weights")
    watcher.side = Broken()
    watcher.weights_exchanged("reload_weights")
    assert watcher.adapter_loads(SimpleNamespace(lora_name="a"), lambda: 5) == 5


def test_exchanged_weights_stop_the_side() -> None:
    watcher = object.__new__(entry.CoreWatcher)
    watcher._broken = set()
    why: list[str] = []
    watcher.side = SimpleNamespace(stop=why.append)
    watcher.weights_exchanged("reload_weights")
    assert why == ["its weights may have been exchanged, by reload_weights"]


def test_no_exception_reaches_the_engine() -> None:
    connector = object.__new__(KVConnConnector)
    connector._broken = set()
    connector._scheduler = connector._worker = connector._client = Broken()  # type: ignore[assignment]
    connector._connector_metadata = StepMetadata(b"x")
    request = SimpleNamespace(request_id="r")
    connector.register_kv_caches({})
    connector.handle_preemptions(StepMetadata(b"x"))
    connector.start_load_kv(None)  # type: ignore[arg-type]
    connector.wait_for_save()
    connector.update_state_after_alloc(request, None, 5)  # type: ignore[arg-type]
    connector.update_connector_output(None)  # type: ignore[arg-type]
    connector.on_new_request(request)  # type: ignore[arg-type]
    connector.shutdown()
    assert connector.get_mem_pool_context() is None
    assert connector.get_finished({"r"}) == (None, None)
    results = connector.get_transfer_results({"r"})
    if releases.TransferResults is not None:
        assert (results.finished_sending, results.finished_recving, results.failed_recving) == (set(), set(), set())
    assert connector.get_block_ids_with_load_errors() == set()
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)  # type: ignore[arg-type]
    assert not connector.build_connector_meta(None)  # type: ignore[arg-type]
    assert connector.request_finished(request, []) == (False, None)  # type: ignore[arg-type]
    assert connector.request_finished_all_groups(request, ([], [])) == (False, None)  # type: ignore[arg-type]
    assert connector.reset_cache() is False
    assert connector.requires_kv_delivery is False
    assert connector.get_kv_connector_stats() is None
    assert connector.build_connector_worker_meta() is None
    assert connector.get_external_cache_hit_sources(request, 5) == {}  # type: ignore[arg-type]
    assert tuple(connector.take_events()) == ()


@pytest.fixture
def fake(socket_dir: Path) -> Any:
    daemon = FakeDaemon(socket_dir / "s")
    daemon.on[LOAD] = lambda _: {"n": 1}
    daemon.on[SAVE] = lambda _: {"taken": 1}
    daemon.on[POLL] = lambda _: {"finished": [["a", b"\x05\0\0\0"]]}
    yield daemon
    daemon.stop()


def worker_side(fake: FakeDaemon, spec_type: type = FullAttentionSpec) -> tuple[WorkerSide, WorkerClient]:
    client = WorkerClient(Options(socket=str(fake.path), engine="e", manifest=b"{}", timeout=20), rank=0)
    spec = spec_type(page_size_bytes=64, sliding_window=8)
    placed = SimpleNamespace(layers=["l"], offset=0, layer_stride=256, block_stride=64, host_resident=False)
    config = SimpleNamespace(
        num_blocks=4,
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["l"])],
        kv_cache_tensors=[placed],
    )
    side = WorkerSide(client, config, logging.getLogger("test"))  # type: ignore[arg-type]
    with side.allocation_context():
        buffer = torch.zeros(256, dtype=torch.int8, device="cpu")
    side.register({"l": buffer.view(4, 1, 8, 8)})
    return side, client


def test_a_step_is_begun_once_however_often_it_is_bound(fake: FakeDaemon) -> None:
    side, client = worker_side(fake)
    meta = StepMetadata(b"m", [PlannedLoad("a", [5, 6])])
    side.begin(meta)
    side.begin(meta)
    side.save(meta)
    assert side.ended_loads() == ({"a"}, set())
    assert side.take_invalid() == {5}
    assert (side.ended_loads(), side.take_invalid()) == ((set(), set()), set())
    assert [op for op in fake.ops() if op != HELLO][1:] == [LOAD, SAVE, POLL]
    client.close()


def test_what_loads_and_saves_did_is_reported_once(fake: FakeDaemon) -> None:
    fake.on[POLL] = lambda _: {
        "finished": [["a", b"\x05\0\0\0"], ["b", b""]],
        "loaded": [[2000, {"host": [1, 64]}], [1000, {"disk": [2, 128], "host": [1, 64]}]],
    }
    fake.on[SAVE] = lambda _: {"taken": 2, "dropped": 1}
    side, client = worker_side(fake)
    assert (side.stats.take(), side.take_reported()) == (None, None)
    meta = StepMetadata(b"m", [PlannedLoad("a", [5, 6]), PlannedLoad("b", [1, 2, 3])], number=7)
    side.begin(meta)
    side.save(meta)
    side.ended_loads()
    stats = side.stats.take()
    assert stats is not None
    assert stats.data == {
        "saved_blocks": {"taken": 2, "dropped": 1},
        "load_seconds": [0.002, 0.001],
        "load_failed_blocks": 1,
        "loaded_bytes": {"host": 128, "disk": 128},
    }
    want = Reported({"a": {"host": 1}, "b": {"disk": 2, "host": 1}}, {7: SaveResult(2, 1, 0)})
    assert side.take_reported() == want
    assert (side.stats.take(), side.take_reported()) == (None, None)
    client.close()


def test_loads_have_ended_also_where_their_figures_fail(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.on[POLL] = lambda _: {"finished": [["a", b"\x05\0\0\0"], ["b", b""]]}
    side, client = worker_side(fake)
    monkeypatch.setattr(side, "stats", None)
    side.begin(StepMetadata(b"m", [PlannedLoad("a", [5, 6]), PlannedLoad("b", [1, 2, 3])]))
    assert side.ended_loads() == ({"a", "b"}, set())
    assert side.take_invalid() == {5}
    client.close()


def test_a_step_whose_adapter_was_touched_is_not_saved(
    fake: FakeDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side, client = worker_side(fake)
    path = tmp_path / "adapter_model.bin"
    path.write_bytes(b"x")
    meta = StepMetadata(b"m", untouched=[FileId.of(path)])
    side.save(meta)
    assert fake.ops()[-1] == SAVE
    os.replace(path, tmp_path / "other")
    side.save(meta)
    path.write_bytes(b"x")
    side.save(meta)
    assert fake.ops() == []
    assert len([r for r in caplog.records if "not saved" in r.getMessage()]) == 1
    client.close()


def test_an_empty_step_makes_no_call(fake: FakeDaemon) -> None:
    side, client = worker_side(fake)
    fake.ops()
    for _ in range(3):
        meta = StepMetadata()
        side.begin(meta)
        side.save(meta)
        assert side.ended_loads() == (set(), set())
    assert fake.ops() == []
    client.close()


def test_loads_that_no_leader_planned_are_reported_as_failed(fake: FakeDaemon) -> None:
    side, client = worker_side(fake)
    fake.ops()
    side.begin(StepMetadata(lost=[PlannedLoad("b", [1, 2])]))
    assert side.ended_loads() == ({"b"}, set())
    assert side.take_invalid() == {1, 2}
    assert fake.ops() == []
    client.close()


def test_where_blocks_leave_windows_a_load_fails_as_a_whole(fake: FakeDaemon) -> None:
    side, client = worker_side(fake, SlidingWindowSpec)
    side.begin(StepMetadata(b"m", [PlannedLoad("a", [5, 6])], lost=[PlannedLoad("b", [1, 2])]))
    assert side.ended_loads() == ({"a", "b"}, {"a", "b"})
    assert side.take_invalid() == set()
    client.close()


def test_the_memory_is_registered_with_its_layout(fake: FakeDaemon) -> None:
    _, client = worker_side(fake)
    bodies = [fake.asked.get()[1] for _ in range(2)]
    assert bodies[1] == {"groups": [{"blocks": 4, "runs": [list(Run(0, 0, 1, 256, 64, 64))]}]}
    assert client.poll() == list[FinishedLoad]()
    client.close()
