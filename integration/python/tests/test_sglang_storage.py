"""The storage backend against SGLang's own host pools and a real daemon."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import DaemonProcess

pytest.importorskip("sglang.srt.mem_cache.hicache_storage")

import torch
from sglang.srt import runtime_context
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.server_args import ServerArgs
from sglang_pools import MHA_LAYOUTS, MLA_LAYOUTS, PAGE, mamba, mha, mla, slots

from kvconn.identity import files
from kvconn.sglang import manifest, weight_updates
from kvconn.sglang.storage import KVConnStorage

PAGES = 6
DEADLINE_S = 5.0
Make = Callable[..., KVConnStorage]


def keys(salt: str = "", count: int = PAGES) -> list[str]:
    chain, out = hashlib.sha256(salt.encode()), []
    for i in range(count):
        chain.update(bytes([i]))
        out.append(chain.copy().hexdigest())
    return out


KEYS = keys()


def after(*before: str) -> HiCacheStorageExtraInfo:
    return HiCacheStorageExtraInfo(prefix_keys=list(before) or None)


def fill(pool: Any, pages: range) -> list[torch.Tensor]:
    """Fill pages with random bytes, which are returned."""
    for p in pages:
        pool.set_from_flat_data_page(p * pool.page_size, torch.rand_like(pool.get_data_page(p * pool.page_size)))
    return content(pool, pages)


def content(pool: Any, pages: range) -> list[torch.Tensor]:
    return [pool.get_data_page(p * pool.page_size).clone() for p in pages]


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


@pytest.fixture
def make(daemon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes backends of an engine with weights in a directory."""
    monkeypatch.setattr(files, "started_at", lambda: time.time() + 60)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    made: list[KVConnStorage] = []

    def storage(
        *pools: tuple[str, Any],
        rank: int = 0,
        ranks: int = 1,
        latent: bool = False,
        engine: dict[str, Any] | None = None,
        **own: Any,
    ) -> Any:
        extra = {"socket": str(daemon), "deadline": DEADLINE_S, "digest_cache": str(tmp_path / "digests")} | own
        told = extra | {"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": True}
        memory = SimpleNamespace(hicache_storage_backend_extra_config=json.dumps(told))
        monkeypatch.setattr(runtime_context, "get_memory", lambda: memory)
        monkeypatch.setattr(runtime_context, "get_server_args", lambda: args(model, **(engine or {})))
        config = HiCacheStorageConfig(
            tp_rank=rank,
            tp_size=ranks,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=latent,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name="m",
            extra_config=extra,
        )
        backend = KVConnStorage(config, {})
        made.append(backend)
        backend.register_mem_pool_host(pools[0][1])
        for name, pool in pools:
            backend.register_mem_host_pool_v2(pool, PoolName(name))
        backend.on_host_pools_registered()
        return backend

    yield storage
    for backend in made:
        backend.close()
    if weight_updates._EXCHANGED in vars(Manager):  # each test is an engine of its own
        delattr(Manager, weight_updates._EXCHANGED)


def args(model: Path, **fields: Any) -> Any:
    defaults = {"model_path": str(model), "revision": None, "load_format": "auto", "quantization": None}
    return SimpleNamespace(**defaults, trust_remote_code=False, **fields)


def present(backend: KVConnStorage, want: int, asked: list[str] = KEYS) -> None:
    """Wait until that many pages are there: they are found once they are written, soon after a save."""
    until = time.monotonic() + 20
    while (got := backend.batch_exists(asked)) != want:
        assert time.monotonic() < until, f"{got} pages, want {want}"
        time.sleep(0.01)


def stored(make: Make) -> tuple[Any, KVConnStorage, list[torch.Tensor]]:
    """Return a pool, its backend, and what the pages have that are stored."""
    pool = mha("page_first_direct")
    backend = make(("kv", pool))
    saved = fill(pool, range(PAGES))
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    present(backend, PAGES)
    return pool, backend, saved


POOLS = [(mha, layout) for layout in MHA_LAYOUTS] + [(mla, layout) for layout in MLA_LAYOUTS]


@pytest.mark.parametrize(("kind", "layout"), POOLS)
def test_pages_come_back_into_other_slots(make: Make, kind: Callable[[str], Any], layout: str) -> None:
    pool = kind(layout)
    backend = make(("kv", pool))
    saved = fill(pool, range(PAGES))
    rest = content(pool, range(PAGES, pool.page_num))
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_set_v1(KEYS[:4], slots(0, 1, 2, 3), after()) == [True] * 4
    assert backend.batch_set_v1(KEYS[4:], slots(4, 5), after(*KEYS[:4])) == [True] * 2
    present(backend, PAGES)
    assert backend.batch_get_v1(KEYS, slots(16, 15, 14, 13, 12, 11), after()) == [True] * PAGES
    assert same(content(pool, range(11, 17)), saved[::-1])
    assert same(content(pool, range(PAGES, 11)), rest[:5]), "other pages are untouched"


def test_keys_and_values_of_different_sizes_are_in_two_buffers(make: Make) -> None:
    pool = mha("page_first_direct", v_dim=4)
    backend = make(("kv", pool))
    assert len(pool.allocator.fds) == 2
    pool.k_buffer.copy_(torch.rand_like(pool.k_buffer))
    pool.v_buffer.copy_(torch.rand_like(pool.v_buffer))
    k, v = pool.k_buffer[:PAGES].clone(), pool.v_buffer[:PAGES].clone()
    assert backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()) == [True] * PAGES
    present(backend, PAGES)
    pool.k_buffer.zero_()
    pool.v_buffer.zero_()
    assert backend.batch_get_v1(KEYS, slots(*range(PAGES)), after()) == [True] * PAGES
    assert torch.equal(pool.k_buffer[:PAGES], k)
    assert torch.equal(pool.v_buffer[:PAGES], v)


def test_a_prompt_is_loaded_in_batches(make: Make) -> None:
    pool, backend, saved = stored(make)
    assert backend.batch_get_v1(KEYS[:3], slots(10, 11, 12), after()) == [True] * 3
    assert backend.batch_get_v1(KEYS[3:], slots(20, 21, 22), after()) == [True] * 3
    assert same(content(pool, range(20, 23)), saved[3:])


def test_the_rest_of_a_prompt_is_loaded_without_its_beginning(make: Make) -> None:
    pool, backend, saved = stored(make)
    # SGLang holds the first pages on its device, and leaves out what is before those that it asks for. Nor does the
    # backend know from earlier questions.
    backend = make(("kv", pool))
    present(backend, 3, KEYS[3:])
    assert backend.batch_get_v1(KEYS[3:], slots(20, 21, 22), after()) == [True] * 3
    assert same(content(pool, range(20, 23)), saved[3:])


def test_a_second_pool_is_a_part_of_the_block(make: Make) -> None:
    pools = {"kv": mha("page_first_direct"), "draft": mha("layer_first")}
    backend = make(("kv", pools["kv"]))
    backend.register_mem_host_pool_v2(pools["draft"], PoolName.DRAFT)  # always after the others
    saved = {name: fill(pool, range(PAGES)) for name, pool in pools.items()}

    def transfer(first: int, of: list[str]) -> PoolTransfer:
        return PoolTransfer(PoolName.DRAFT, host_indices=slots(*range(first, first + len(of))), keys=of)

    asked = [PoolTransfer(PoolName.DRAFT, keys=KEYS, hit_policy=PoolHitPolicy.ALL_PAGES)]
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    assert backend.batch_set_v2([transfer(0, KEYS[:4])], after()) == {PoolName.DRAFT: [True] * 4}
    until = time.monotonic() + 20
    while (found := backend.batch_exists_v2(KEYS, asked)).kv_hit_pages != 4:
        assert time.monotonic() < until, found
        time.sleep(0.01)
    assert found.restorable_prefix_pages == [4]
    assert found.extra_pool_hit_pages == {PoolName.KV: 4, PoolName.DRAFT: 4}
    assert backend.batch_exists(KEYS) == 4, "also for a question that names one pool"
    assert backend.batch_get_v1(KEYS[:4], slots(10, 11, 12, 13), after()) == [True] * 4
    assert backend.batch_get_v2([transfer(20, KEYS[:4])], after()) == {PoolName.DRAFT: [True] * 4}
    assert same(content(pools["kv"], range(10, 14)), saved["kv"][:4])
    assert same(content(pools["draft"], range(20, 24)), saved["draft"][:4])


def test_of_states_the_last_one_is_needed(make: Make) -> None:
    kv, states = mha("page_first_direct"), mamba()
    backend = make(("kv", kv), ("mamba", states))
    states.temporal_buffer.copy_(torch.rand_like(states.temporal_buffer))
    states.conv_buffer[0].copy_(torch.rand_like(states.conv_buffer[0]))
    temporal, conv = states.temporal_buffer[2].clone(), states.conv_buffer[0][2].clone()
    asked = [PoolTransfer(PoolName.MAMBA, keys=["__placeholder__"], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    saved = PoolTransfer(PoolName.MAMBA, host_indices=torch.tensor([2]), keys=[KEYS[3]])
    assert backend.batch_set_v2([saved], after(*KEYS[:3])) == {PoolName.MAMBA: [True]}
    until = time.monotonic() + 20
    while (found := backend.batch_exists_v2(KEYS, asked)).kv_hit_pages != 4:
        assert time.monotonic() < until, found
        time.sleep(0.01)
    assert found.restorable_prefix_pages == [4]
    loaded = PoolTransfer(PoolName.MAMBA, host_indices=torch.tensor([7]), keys=[KEYS[3]])
    assert backend.batch_get_v2([loaded], after(*KEYS[:3])) == {PoolName.MAMBA: [True]}
    assert torch.equal(states.temporal_buffer[7], temporal)
    assert torch.equal(states.conv_buffer[0][7], conv)
    wrong = [PoolTransfer(PoolName.MAMBA, keys=KEYS[:2], hit_policy=PoolHitPolicy.TRAILING_PAGES)]
    assert backend.batch_exists_v2(KEYS, wrong).kv_hit_pages == 0, "a window that is not stored so"


def windowed(monkeypatch: pytest.MonkeyPatch, tokens: int | None) -> None:
    config = SimpleNamespace(is_hybrid_swa=True, sliding_window_size=tokens, attention_chunk_size=None)
    monkeypatch.setattr(runtime_context, "process_model_config", lambda: config)


def test_of_a_sliding_window_the_last_pages_are_needed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    kv, window = mha("page_first_direct"), mha("page_first_direct")
    windowed(monkeypatch, 2 * kv.page_size)
    backend = make(("kv", kv), ("swa", window))
    saved = {"kv": fill(kv, range(PAGES)), "swa": fill(window, range(PAGES))}
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))

    def asked(pages: int) -> list[PoolTransfer]:
        return [PoolTransfer(PoolName.SWA, keys=["__placeholder__"] * pages, hit_policy=PoolHitPolicy.TRAILING_PAGES)]

    def found(pages: int, want: int) -> None:
        until = time.monotonic() + 20
        while (got := backend.batch_exists_v2(KEYS, asked(pages))).kv_hit_pages != want:
            assert time.monotonic() < until, got
            time.sleep(0.01)
        assert (got.restorable_prefix_pages or []) == ([want] if want else [])
        assert got.extra_pool_hit_pages.get(PoolName.SWA, 0) == want

    # SGLang saves the window at the end of what it has computed in one go, and nothing before it.
    def save(first: int, end: int) -> None:
        moved = PoolTransfer(PoolName.SWA, host_indices=slots(*range(first, end)), keys=KEYS[first:end])
        assert backend.batch_set_v2([moved], after()) == {PoolName.SWA: [True] * (end - first)}

    save(3, 4)
    found(2, 0)  # half of a window
    save(2, 3)
    found(2, 4)
    found(3, 0)  # more than the window that is stored
    loaded = PoolTransfer(PoolName.SWA, host_indices=slots(20, 21), keys=KEYS[2:4])
    assert backend.batch_get_v2([loaded], after(*KEYS[:2])) == {PoolName.SWA: [True] * 2}
    assert same(content(window, range(20, 22)), saved["swa"][2:4])
    assert backend.batch_get_v1(KEYS[:4], slots(10, 11, 12, 13), after()) == [True] * 4
    assert same(content(kv, range(10, 14)), saved["kv"][:4])
    save(PAGES - 2, PAGES)
    found(2, PAGES)


@pytest.mark.parametrize("tokens", [None, -1, 2 * PAGE + 1])
def test_a_window_that_nothing_tells_is_not_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tokens: int | None
) -> None:
    kv, window = mha("page_first_direct"), mha("page_first_direct")
    # Of the last one it makes a page of difference whether the token itself counts.
    windowed(monkeypatch, tokens)
    backend = make(("kv", kv), ("swa", window))
    assert not any(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    assert "window" in caplog.text


def test_latent_vectors_are_stored_once(make: Make) -> None:
    pools = [mla("page_first_direct") for _ in range(2)]
    ranks = [make(("kv", pool), rank=i, ranks=2, latent=True) for i, pool in enumerate(pools)]
    saved = fill(pools[0], range(PAGES))
    assert all(ranks[0].batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    for backend, pool in zip(ranks, pools, strict=True):
        present(backend, PAGES)
        assert backend.batch_get_v1(KEYS, slots(*range(10, 16)), after()) == [True] * PAGES
        assert same(content(pool, range(10, 16)), saved)


def test_a_page_is_there_once_all_ranks_have_saved_it(make: Make) -> None:
    pools = [mha("page_first_direct") for _ in range(2)]
    first, second = (make(("kv", pool), rank=i, ranks=2) for i, pool in enumerate(pools))
    saved = [fill(pool, range(PAGES)) for pool in pools]
    assert all(first.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    assert all(second.batch_set_v1(KEYS[:2], slots(0, 1), after()))
    for backend, pool, want in zip((first, second), pools, saved, strict=True):
        present(backend, 2)
        assert backend.batch_get_v1(KEYS[:2], slots(8, 9), after()) == [True] * 2
        assert same(content(pool, range(8, 10)), want[:2])


def test_another_prompt_or_tenant_finds_nothing(make: Make) -> None:
    _, backend, _ = stored(make)
    assert backend.batch_exists(keys("tenant")) == 0
    assert backend.batch_get_v1(keys("tenant"), slots(*range(PAGES)), after()) == [False] * PAGES


def test_other_weights_or_another_layout_find_nothing(make: Make, tmp_path: Path) -> None:
    pool = mha("page_first_direct")
    backend = make(("kv", pool))
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    present(backend, PAGES)
    assert make(("kv", mha("page_first"))).batch_exists(KEYS) == 0
    (tmp_path / "model" / "model.safetensors").write_bytes(b"WEIGHTS")
    assert make(("kv", mha("page_first_direct"))).batch_exists(KEYS) == 0


def test_adapters_whose_files_changed_find_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"old")
    ref = LoRARef(lora_id=LoRARef.deterministic_id("x", str(adapter)), lora_name="x", lora_path=str(adapter))
    plain = args
    monkeypatch.setitem(globals(), "args", lambda model: plain(model, enable_lora=True, lora_paths=[ref]))
    backend = make(("kv", mha("page_first_direct")))
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    present(backend, PAGES)
    assert make(("kv", mha("page_first_direct"))).batch_exists(KEYS) == PAGES, "unless they stayed the same"
    (adapter / "adapter_model.safetensors").write_bytes(b"new")
    changed = make(("kv", mha("page_first_direct")))
    assert changed.batch_exists(KEYS) == 0
    assert changed.batch_get_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES


def test_an_adapter_that_nothing_tells_apart_stops_the_cache(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, ref = args, LoRARef(lora_name="x", lora_path="someone/adapter")
    monkeypatch.setitem(globals(), "args", lambda model: plain(model, enable_lora=True, lora_paths=[ref]))
    backend = make(("kv", mha("page_first_direct")))
    assert backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES
    assert "no local directory" in caplog.text


def test_settings_of_the_namespace_are_those_of_the_engine() -> None:
    known = (
        set(ServerArgs.model_fields)
        if hasattr(ServerArgs, "model_fields")
        else set(vars(ServerArgs)) | set(getattr(ServerArgs, "__annotations__", {}))
    )
    assert not sorted({*manifest._SETTINGS, *manifest._REFUSED} - known)


def test_after_a_weight_update_nothing_is_loaded_or_saved(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    pool = mha("page_first_direct")
    backend = make(("kv", pool))
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    present(backend, PAGES)
    with pytest.raises(AttributeError):  # it has no engine
        Manager.update_weights_from_disk(SimpleNamespace(), SimpleNamespace())
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES
    assert backend.batch_set_v1(keys("more"), slots(*range(PAGES)), after()) == [False] * PAGES
    assert "update_weights_from_disk" in caplog.text


def test_a_load_under_way_when_the_weights_are_exchanged_counts_for_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, backend, _ = stored(make)
    side = backend._side
    assert side is not None
    load = side.load

    def during(*args: Any) -> Any:
        loaded = load(*args)
        backend.weights_exchanged("a test")
        return loaded

    monkeypatch.setattr(side, "load", during)
    assert backend.batch_get_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES
    backend._off = False
    transfer = PoolTransfer(PoolName.KV, host_indices=slots(*range(PAGES)), keys=KEYS)
    assert backend.batch_get_v2([transfer], after()) == {PoolName.KV: [False] * PAGES}


def test_a_new_version_of_the_weights_stops_the_cache(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scheduler:
        version = ""

        def record_weight_version_change(self, new_version: str) -> None:
            self.version = new_version

    module = SimpleNamespace(Scheduler=Scheduler)
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", module)  # type: ignore[arg-type]
    _, backend, _ = stored(make)
    scheduler = Scheduler()
    scheduler.record_weight_version_change(new_version="2")
    assert scheduler.version == "2"
    assert backend.batch_exists(KEYS) == 0


def test_calls_that_make_no_sense_do_not_raise(make: Make) -> None:
    pool, backend, saved = stored(make)
    none: Any = None
    junk = HiCacheStorageExtraInfo(prefix_keys=["no hash"])
    assert backend.batch_exists(["zz"]) == backend.batch_exists(["00"]) == backend.batch_exists(none) == 0
    assert backend.batch_get_v1(none, none) == backend.batch_set_v1(none, none) == []
    assert backend.batch_get_v1([], slots(0)[:0]) == backend.batch_set_v1([], slots(0)[:0]) == []
    assert backend.batch_get_v2(none) == backend.batch_set_v2(none) == {}
    assert backend.batch_set_v1(KEYS[:1], slots(0), junk) == [False]
    assert backend.batch_get_v1(KEYS[:1], [1, 2, 3]) == [False]
    assert backend.batch_get_v1(KEYS[:2], slots(8), after()) == [False] * 2
    assert backend.batch_get_v1([KEYS[0][:32]], slots(8), after()) == [False]
    shuffled = slots(8)
    shuffled[1] = 3
    assert backend.batch_get_v1(KEYS[:1], shuffled, after()) == [False], "slots that are not in a row"
    assert backend.batch_get_v1(KEYS[:1], slots(9).to(torch.int32), junk) == [True]
    assert same(content(pool, range(9, 10)), saved[:1])


def test_two_prompts_at_once_and_a_long_one(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    pool, backend, saved = stored(make)
    long = [*KEYS, *(hashlib.sha256(str(i).encode()).hexdigest() for i in range(100_000))]
    assert backend.batch_exists(long) == PAGES
    side = backend._side
    assert side is not None
    side._end.touch("r", [], 1000, 1.0)
    with ThreadPoolExecutor(4) as threads:
        done = threads.map(lambda i: backend.batch_get_v1(KEYS[i : i + 1], slots(10 + i), after()), range(PAGES))
    assert list(done) == [[True]] * PAGES
    assert same(content(pool, range(10, 16)), saved)
    assert "refused" not in caplog.text


def test_a_closed_backend_has_nothing(make: Make) -> None:
    _, backend, _ = stored(make)
    backend.close()
    backend.close()
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES
    assert backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES


def test_indices_that_are_no_pages_move_nothing(make: Make) -> None:
    pool = mha("page_first_direct")
    backend = make(("kv", pool))
    for wrong in (slots(0), slots(0, 1) + 1, slots(0, pool.page_num), None):
        assert backend.batch_set_v1(KEYS[:2], wrong, after()) == [False] * 2
    assert backend.batch_set_v1(["no hash", KEYS[0]], slots(0, 1), after()) == [False] * 2
    assert backend.batch_exists([]) == 0


def test_a_daemon_that_is_killed_costs_hits_alone(make: Make, daemon_process: DaemonProcess) -> None:
    pool, backend, saved = stored(make)
    daemon_process.process.terminate()
    daemon_process.process.wait()
    before = content(pool, range(10, 16))
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, slots(*range(10, 16)), after()) == [False] * PAGES
    assert backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()) == [False] * PAGES
    assert same(content(pool, range(10, 16)), before)
    daemon_process.restart()
    present(backend, PAGES)
    assert all(backend.batch_get_v1(KEYS, slots(*range(10, 16)), after()))
    assert same(content(pool, range(10, 16)), saved)


@pytest.mark.parametrize("call", ["exists", "get", "set"])
def test_a_frozen_daemon_never_touches_the_pool_after_a_call(
    make: Make, daemon_process: DaemonProcess, call: str
) -> None:
    pool = mha("page_first_direct")
    backend = make(("kv", pool), deadline=0.3)
    fill(pool, range(PAGES))
    until = time.monotonic() + 20
    while not all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after())):
        assert time.monotonic() < until
    present(backend, PAGES)
    daemon_process.freeze()
    try:
        if call == "exists":
            assert backend.batch_exists(KEYS) == 0
        elif call == "get":
            assert not any(backend.batch_get_v1(KEYS, slots(*range(10, 16)), after()))
        else:
            assert not any(backend.batch_set_v1(keys("x"), slots(*range(PAGES)), after()))
        before = fill(pool, range(10, 16))
        assert backend.batch_exists(KEYS) == 0, "nobody waits for it again"
    finally:
        daemon_process.process.send_signal(signal.SIGCONT)
    present(backend, PAGES)
    assert same(content(pool, range(10, 16)), before)


def test_a_damaged_page_ends_the_prefix_and_is_saved_again(make: Make, daemon_process: DaemonProcess) -> None:
    pool, backend, saved = stored(make)
    daemon_process.process.terminate()
    daemon_process.process.wait()
    _flip(daemon_process.socket.parent / "store", saved[3].numpy().tobytes()[:64])
    daemon_process.restart()
    present(backend, PAGES)
    assert backend.batch_get_v1(KEYS, slots(*range(10, 16)), after())[:4] == [True] * 3 + [False]
    assert same(content(pool, range(10, 13)), saved[:3])
    assert backend.batch_exists(KEYS) <= 3, "what was dropped is not there any more"
    assert all(backend.batch_set_v1(KEYS, slots(*range(PAGES)), after()))
    present(backend, PAGES)
    assert all(backend.batch_get_v1(KEYS, slots(*range(10, 16)), after()))
    assert same(content(pool, range(10, 16)), saved)


def _flip(store: Path, beginning: bytes) -> None:
    """Flip a bit of the record whose payload begins so."""
    for path in store.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(beginning)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1]))
            return
    raise AssertionError("the record is not there")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"socket": None}, "socket"),
        ({"deadline": "1"}, "no number"),
        ({"deadline": 60}, "want 0.05 to 5"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(("kv", mha("page_first_direct")), **change)


def test_a_pool_in_private_memory_is_refused(make: Make) -> None:
    pool = mha("page_first_direct")
    pool.allocator = SimpleNamespace()
    with pytest.raises(ValueError, match='"allocator": "shm"'):
        make(("kv", pool))
