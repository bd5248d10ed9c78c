"""The storage backend without SGLang: how it is registered, what it must survive, and when it has to stop."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_stub import PAGES, Engine, HeadsPool, HiCacheStorage, HostPool, PoolTransfer, engine, slots

KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(4)]
NONE = [False] * len(KEYS)


@pytest.fixture
def sglang(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with engine(daemon, monkeypatch) as made:
        yield made


@pytest.fixture
def alone(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine without a daemon."""
    with engine(socket_dir / "s", monkeypatch) as made:
        yield made


def fill(pool: HostPool, first: int = 0) -> None:
    for i in range(len(KEYS)):
        pool.fill(first + i, i + 1)


def content(pool: HostPool, first: int) -> list[set[int]]:
    return [pool.read(first + i) for i in range(len(KEYS))]


SAVED = [{i + 1} for i in range(len(KEYS))]


def found(backend: Any, want: int, keys: list[str] = KEYS) -> None:
    until = time.monotonic() + 20
    while (got := backend.batch_exists(keys)) != want:
        assert time.monotonic() < until, f"{got} pages, want {want}"
        time.sleep(0.01)


def stored(sglang: Engine) -> tuple[HostPool, Any]:
    pool = HostPool()
    backend = sglang.backend(("kv", pool))
    fill(pool)
    assert all(backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)))
    found(backend, len(KEYS))
    return pool, backend


def test_pages_come_back(sglang: Engine) -> None:
    pool, backend = stored(sglang)
    assert all(backend.batch_get_v1(KEYS, slots(8, 9, 10, 11)))
    assert content(pool, 8) == SAVED
    assert backend.batch_get_v1(KEYS, slots(8, 9, 10, PAGES)) == NONE
    backend.close()


def test_a_release_that_does_not_say_when_all_pools_are_there(sglang: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.22: the anchor first, a hybrid model's other pools later, and nothing after them."""
    monkeypatch.delattr(HiCacheStorage, "on_host_pools_registered")
    pool, draft = HostPool(), HostPool()
    backend = sglang.backend(register=False)
    backend.register_mem_pool_host(pool)
    backend.register_mem_host_pool_v2(pool, "kv")
    backend.register_mem_host_pool_v2(draft, "draft")
    for p in (pool, draft):
        fill(p)
    moves = [PoolTransfer(name, slots(0, 1, 2, 3), KEYS) for name in ("kv", "draft")]
    assert all(all(taken) for taken in backend.batch_set_v2(moves).values())
    until = time.monotonic() + 20
    while backend.batch_exists_v2(KEYS, moves[1:]).kv_hit_pages != len(KEYS):
        assert time.monotonic() < until
        time.sleep(0.01)
    moves = [PoolTransfer(name, slots(8, 9, 10, 11), KEYS) for name in ("kv", "draft")]
    assert all(all(loaded) for loaded in backend.batch_get_v2(moves).values())
    assert content(pool, 8) == content(draft, 8) == SAVED
    backend.close()


def test_weights_exchanged_while_the_backend_was_away_stop_the_next_one(sglang: Engine) -> None:
    pool, backend = stored(sglang)
    backend.close()
    del backend
    sglang.Manager().update_weights_from_disk("r")
    backend = sglang.backend(("kv", pool))
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)) == NONE
    backend.close()


@pytest.mark.parametrize("method", ["update_weights_from_disk", "check_weights"])
def test_what_may_exchange_weights_stops_the_cache(
    sglang: Engine, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    _, backend = stored(sglang)
    getattr(sglang.Manager(), method)("r")
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, slots(8, 9, 10, 11)) == NONE
    assert method in caplog.text
    backend.close()


def test_ends_are_told_after_one_that_failed(sglang: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, backend = stored(sglang)
    told: list[str] = []

    def touch(request: str, *_: Any) -> None:
        told.append(request)
        raise MemoryError

    side = backend._side
    monkeypatch.setattr(side._end, "touch", touch)
    for request in ("a", "b"):
        side._ends.put((request, [], 0, 0.0))
    until = time.monotonic() + 20
    while len(told) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    backend.close()


def test_a_pool_that_comes_again_with_other_memory_stops_the_cache(
    sglang: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    pool, backend = stored(sglang)
    backend.register_mem_pool_host(pool)
    backend.register_mem_host_pool_v2(pool, "kv")
    backend.on_host_pools_registered()
    assert backend.batch_exists(KEYS) == len(KEYS), "it is the same"
    backend.register_mem_host_pool_v2(HostPool(), "kv")
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS, slots(8, 9, 10, 11)) == NONE
    assert "other memory" in caplog.text
    backend.close()


def test_two_pools_of_one_name_are_refused_at_start(alone: Engine) -> None:
    backend = alone.backend(register=False)
    backend.register_mem_pool_host(HostPool())
    with pytest.raises(ValueError, match="other memory"):
        backend.register_mem_host_pool_v2(HostPool(), "kv")


@pytest.mark.parametrize("missing", ["model_path", "revision", "trust_remote_code"])
def test_an_engine_that_is_not_as_expected_starts_without_cache(
    alone: Engine, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    del alone.args[missing]
    backend = alone.backend(("kv", HostPool()))
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)) == NONE
    assert missing in caplog.text
    backend.register_mem_host_pool_v2(object(), "draft")  # in a running engine
    backend.close()


def test_an_engine_without_pools_starts_without_cache(alone: Engine) -> None:
    backend = alone.backend(register=False)
    backend.on_host_pools_registered()
    assert backend.batch_exists(KEYS) == 0
    backend.close()


def test_a_draft_pool_that_comes_after_the_others_is_a_part_of_the_block(sglang: Engine) -> None:
    kv, draft = HostPool(), HostPool()
    backend = sglang.backend(("kv", kv))
    backend.register_mem_host_pool_v2(draft, "draft")  # SGLang has no other order
    fill(kv)
    fill(draft, 4)
    moved = PoolTransfer("draft", slots(4, 5, 6), KEYS[:3])
    assert backend.batch_set_v2([moved]) == {"draft": [True] * 3}
    assert all(backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)))
    found(backend, 3)
    assert backend.batch_exists_v2(KEYS, [PoolTransfer("draft", keys=KEYS)]).restorable_prefix_pages == [3]
    moved = PoolTransfer("draft", slots(20, 21, 22), KEYS[:3])
    assert backend.batch_get_v2([moved]) == {"draft": [True] * 3}
    assert content(draft, 20)[:3] == SAVED[:3]
    backend.close()


def test_a_pool_that_comes_after_the_first_call_stops_the_cache(
    sglang: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    _, backend = stored(sglang)
    backend.register_mem_host_pool_v2(HostPool(), "draft")
    assert backend.batch_exists(KEYS) == 0
    assert "draft" in caplog.text
    backend.close()


def test_heads_beside_latent_vectors_are_not_taken_for_another_ranks(
    alone: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    alone.latent, alone.ranks = True, 2
    backend = alone.backend(("kv", HostPool()), ("draft", HeadsPool()))
    assert backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)) == NONE
    assert "draft" in caplog.text
    backend.close()


def test_pages_that_move_in_their_pool_are_refused(alone: Engine) -> None:
    pool = HostPool()
    pool.shared_allocation_domain = object()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="move"):
        alone.backend(("kv", pool))


def test_a_socket_path_that_is_too_long_is_refused_at_start(alone: Engine) -> None:
    alone.extra["socket"] = "/" + "s" * 107
    with pytest.raises(ValueError, match="socket"):
        alone.backend(register=False)


def test_a_child_process_touches_nothing(sglang: Engine) -> None:
    pool, backend = stored(sglang)
    child = os.fork()
    if child == 0:
        answers = [backend.batch_exists(KEYS), any(backend.batch_get_v1(KEYS, slots(8, 9, 10, 11)))]
        backend.close()
        os._exit(any(answers))
    assert os.waitpid(child, 0)[1] == 0
    pool.fill(8, 99)
    assert all(backend.batch_get_v1(KEYS, slots(8, 9, 10, 11))), "its connection is as it was"
    assert content(pool, 8) == SAVED
    backend.close()


def test_of_a_very_long_prompt_the_beginning_is_found(sglang: Engine, caplog: pytest.LogCaptureFixture) -> None:
    _, backend = stored(sglang)
    long = [*KEYS, *(hashlib.sha256(b"%d" % i).hexdigest() for i in range(200_000))]
    assert backend.batch_exists(long) == len(KEYS)
    assert backend.batch_exists_v2(long).kv_hit_pages == len(KEYS)
    assert "refused" not in caplog.text
    backend.close()


def test_a_call_that_meets_the_end_of_the_backend_finds_nothing(
    sglang: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, backend = stored(sglang)
    side = backend._side
    backend.close()
    monkeypatch.setattr(backend, "_off", False)  # as it was when the call began
    assert backend._side is side
    assert backend.batch_exists(KEYS) == 0
    assert not caplog.records


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("weight_cache_mode", "client"),
        ("forward_hooks", [{"name": "steer"}]),
        ("modelopt_checkpoint_restore_path", "/elsewhere"),
        ("quantize_and_serve", True),
    ],
)
def test_weights_and_code_that_nothing_tells_apart_are_not_cached(
    alone: Engine, caplog: pytest.LogCaptureFixture, setting: str, value: Any
) -> None:
    alone.args[setting] = value
    backend = alone.backend(("kv", HostPool()))
    assert backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)) == NONE
    assert setting in caplog.text
    backend.close()


def test_a_setting_that_is_off_is_no_reason(sglang: Engine) -> None:
    sglang.args["weight_cache_mode"] = "off"
    stored(sglang)[1].close()


@pytest.mark.parametrize(
    ("setting", "value"), [("flashinfer_mxfp4_moe_precision", "fp8"), ("enable_quant_communications", True)]
)
def test_another_precision_finds_nothing(sglang: Engine, setting: str, value: Any) -> None:
    _, backend = stored(sglang)
    backend.close()
    sglang.args[setting] = value
    backend = sglang.backend(("kv", HostPool()))
    assert backend.batch_exists(KEYS) == 0
    assert all(backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)))
    backend.close()


def test_models_of_another_package_are_not_cached(
    alone: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "my.models")
    backend = alone.backend(("kv", HostPool()))
    assert backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)) == NONE
    assert "SGLANG_EXTERNAL_MODEL_PACKAGE" in caplog.text
    backend.close()


def test_another_layout_by_a_variable_finds_nothing(sglang: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    _, backend = stored(sglang)
    backend.close()
    monkeypatch.setenv("SGLANG_AITER_KV_CACHE_LAYOUT", "vectorized")
    backend = sglang.backend(("kv", HostPool()))
    assert backend.batch_exists(KEYS) == 0
    assert all(backend.batch_set_v1(KEYS, slots(0, 1, 2, 3)))
    backend.close()
