from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_offload.tiering.base")

from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.base import TransferJob

from kvconn.memfd import sealed_memfd
from kvconn.vllm import tier, tier_identity, tier_region
from kvconn.vllm.tier_side import Ended
from kvconn.vllm.wishes import WishReader

ROW = 8192


def config(**cache: Any) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(**{"prefix_caching_hash_algo": "sha256", **cache}),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: 8),
    )


def group(number: int = 0, tokens: int = 16) -> Any:
    return SimpleNamespace(group_id=number, tokens_per_block=tokens, layer_names=("l",))


def spec(fd: int | None, groups: tuple[Any, ...] = (group(),), **fields: Any) -> Any:
    own = {
        "num_chunks": 4,
        "kv_bytes_per_chunk": ROW,
        "cpu_page_size_per_worker": 3000,
        "blocks_per_chunk": 8,
        "replicated_layout": False,
        "_scheduler_mmap": SimpleNamespace(fd=fd),
        "config": SimpleNamespace(
            groups=groups,
            engine_id="e",
            canonical_layout=False,
            cache=SimpleNamespace(blocks_per_chunk=8),
            parallel=SimpleNamespace(world_size=2, is_parallelism_agnostic=True),
        ),
    }
    return SimpleNamespace(**{**own, **fields})


@pytest.fixture
def region() -> Iterator[int]:
    fd = sealed_memfd("region", 4 * ROW)
    yield fd
    os.close(fd)


def made(monkeypatch: pytest.MonkeyPatch, region: int, vllm_config: Any = None, **own: Any) -> tier.KVConnTier:
    """Make a tier that is not started."""
    monkeypatch.setattr(tier.KVConnTier, "_start", lambda *_: None)
    engine = tier._Engine(vllm_config or config(), SimpleNamespace(kv_cache_groups=[0]))  # type: ignore[arg-type]
    token = tier._making.set(engine)
    try:
        view = memoryview(bytearray(4 * ROW)).cast("b", (4, ROW))
        return tier.KVConnTier(spec(region), view, "KVConnTier", None, **{"socket": "/s", **own})
    finally:
        tier._making.reset(token)


class Side:
    """Stands where TierSide does, and fails."""

    busy = True

    def __init__(self) -> None:
        self.gave_up: list[int | None] = []
        self.over: list[Ended] = []

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def give_up(self, submitted: int | None = None) -> None:
        self.gave_up.append(submitted)


@pytest.mark.parametrize(
    ("cache", "own", "message"),
    [
        ({"prefix_caching_hash_algo": "xxhash"}, {}, "not cryptographic"),
        ({"prefix_caching_hash_algo": "xxhash_cbor"}, {}, "not cryptographic"),
        ({}, {"sokcet": "/s"}, r"unknown settings \['sokcet'\]"),
        ({}, {"socket": None}, "needs 'socket'"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, region: int, cache: Any, own: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made(monkeypatch, region, config(**cache), **own)


def test_without_its_connector_the_tier_says_what_to_set(region: int) -> None:
    view = memoryview(bytearray(4 * ROW)).cast("b", (4, ROW))
    with pytest.raises(ValueError, match="KVConnTieringConnector"):
        tier.KVConnTier(spec(region), view, "KVConnTier", None, socket="/s")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": (group(0), group(1, 64))}, r"chunks of \[128, 512\] tokens"),
        ({"groups": (group(1), group(2))}, "offloads in part"),
        ({"groups": (group(0, 1024),)}, "8192 tokens"),
        ({"num_chunks": 0}, "less than one chunk"),
    ],
)
def test_regions_that_the_daemon_cannot_hold_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tier_region.chunk_tokens(spec(0, **fields), len(fields.get("groups", "1")))


def test_a_vllm_that_keeps_its_region_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps its host region elsewhere"):
        tier_region.descriptor(spec(None))
    with pytest.raises(ValueError, match=f"at most {64 << 20}"):
        tier_region.chunk_bytes(spec(0, kv_bytes_per_chunk=1 << 30), 100_000)
    assert tier_region.chunk_bytes(spec(0), 2) == 6000
    with pytest.raises(ValueError, match=f"exceed a row of {ROW}"):
        tier_region.chunk_bytes(spec(0), 3)


def test_the_region_s_name_goes_and_another_s_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tier_region, "_NAME", str(tmp_path / "{engine}"))
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.touch()
    other.touch()
    fd = os.open(mine, os.O_RDONLY)
    tier_region.unlink("other", fd)
    tier_region.unlink("mine", fd)
    tier_region.unlink("gone", fd)
    os.close(fd)
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("own", [{"sokcet": "/s"}, {"locality": "MOON"}])
def test_an_engine_that_does_not_start_leaves_no_region(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: dict[str, Any]
) -> None:
    monkeypatch.setattr(tier_region, "_NAME", str(tmp_path / "{engine}"))
    name = tmp_path / "e"
    name.touch()
    fd = os.open(name, os.O_RDONLY)
    with pytest.raises(ValueError, match=r"sokcet|MOON"):
        made(monkeypatch, fd, **own)
    os.close(fd)
    assert not name.exists()


def test_an_error_in_a_hook_is_an_answer_without_cache(monkeypatch: pytest.MonkeyPatch, region: int) -> None:
    it: Any = made(monkeypatch, region)
    it._side = side = Side()
    it._engine.terms["r"] = tier.Terms()
    context = ReqContext("r")
    it.on_new_request(context)
    context.set_state(tier.TierRequest("r", tier.Terms()))
    job = TransferJob(5, [b"k"], [0], True, context)  # type: ignore[list-item, arg-type]
    it.submit_load(job)
    it.submit_store(job)
    assert it.lookup(b"k", context) is LookupResult.MISS
    assert list(it.get_finished_jobs()) == []
    it.on_schedule_end(ScheduleEndContext([], []))
    it.on_request_finished(context)
    it.shutdown()
    assert side.gave_up == [5, 5, None]


def test_a_step_tells_all_that_run_in_it(monkeypatch: pytest.MonkeyPatch, region: int) -> None:
    it: Any = made(monkeypatch, region)
    steps: list[Any] = []
    it._side = SimpleNamespace(step_ended=lambda *args: steps.append(args))
    connector: Any = object.__new__(tier.KVConnTieringConnector)
    connector._broken, connector._engine = set(), it._engine
    # vLLM does not count a request that runs again after a preemption among the new ones.
    for scheduled, preempted in (({"again": 7}, ["p"]), ({}, [])):
        connector._measure(SimpleNamespace(num_scheduled_tokens=scheduled))
        it.on_schedule_end(ScheduleEndContext([], preempted))
    assert steps == [({"again": 7}, ["p"]), ({}, [])]


def test_a_tier_that_does_not_know_its_weights_ends_every_job(monkeypatch: pytest.MonkeyPatch, region: int) -> None:
    it: Any = made(monkeypatch, region)
    context = ReqContext("r")
    it.on_new_request(context)
    assert it.lookup(b"k", context) is LookupResult.MISS
    it.submit_store(TransferJob(5, [b"k"], [0], False, context))  # type: ignore[list-item, arg-type]
    assert [(r.job_id, r.success) for r in it.get_finished_jobs()] == [(5, False)]
    assert list(it.get_finished_jobs()) == []
    it.drain_jobs()
    it.shutdown()


def request(**fields: Any) -> Any:
    own = {
        "request_id": "r",
        "kv_transfer_params": None,
        "mm_features": [],
        "resumable": False,
        "lora_request": None,
        "cache_salt": None,
    }
    return SimpleNamespace(**{**own, **fields})


@pytest.mark.parametrize(
    ("fields", "load", "save"),
    [
        ({}, True, True),
        ({"kv_transfer_params": {"kvconn": {"load": False}}}, False, True),
        ({"kv_transfer_params": {"kvconn": {"save": False}}}, True, False),
        ({"kv_transfer_params": {"kvconn": "nonsense"}}, True, True),
        ({"kv_transfer_params": {"kvconn": {"save": "false"}}}, True, False),
        ({"resumable": True}, False, False),
        ({"request_id": "r" * 513}, False, False),
        ({"mm_features": [SimpleNamespace(identifier="my cat")]}, False, False),
        ({"mm_features": [SimpleNamespace(identifier="ab" * 32)]}, True, True),
    ],
)
def test_what_may_be_done_for_a_request(fields: Any, load: bool, save: bool) -> None:
    terms = tier._terms(request(**fields), True, WishReader(logging.getLogger("test")))
    assert (terms.load, terms.save) == (load, save)


def test_a_requests_trace_is_known() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for headers, want in (({"traceparent": trace}, trace), ({"traceparent": trace + "x"}, ""), (None, "")):
        terms = tier._terms(request(trace_headers=headers), True, WishReader(logging.getLogger("test")))
        assert terms.trace == want
    assert tier._terms(request(), True, WishReader(logging.getLogger("test"))).trace == ""


def described(monkeypatch: pytest.MonkeyPatch, ranks: int, canonical: bool, agnostic: bool = True) -> dict[str, Any]:
    heads = 8 // ranks
    monkeypatch.setattr(
        tier_identity.manifest,
        "describe",
        lambda *_: {"groups": [{"kv_heads": heads, "replicated": False}], "extra": {}, "tensor_parallel": ranks},
    )
    own = spec(0)
    own.config.canonical_layout = canonical
    own.config.parallel.is_parallelism_agnostic = agnostic
    vllm_config = config()
    vllm_config.parallel_config.tensor_parallel_size = ranks
    return tier_identity.describe(vllm_config, SimpleNamespace(), "vllm/x", own, 128)  # type: ignore[arg-type]


def test_all_numbers_of_ranks_share_the_canonical_layout_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert described(monkeypatch, 1, True) == described(monkeypatch, 2, True)
    assert described(monkeypatch, 1, False) != described(monkeypatch, 2, False)
    assert described(monkeypatch, 1, False) != described(monkeypatch, 1, True)
    # vLLM orders what it can tensor by tensor, and the rest rank by rank within a tensor.
    opaque = [described(monkeypatch, n, True, agnostic=False) for n in (1, 2)]
    assert opaque[0] != opaque[1]
    assert opaque[1] != described(monkeypatch, 2, False, agnostic=False)
    body = described(monkeypatch, 2, True)
    assert (body["block_size"], body["tensor_parallel"], body["key_scheme"]) == (128, 1, "engine")
    assert body["groups"] == [{"kv_heads": 8, "replicated": False}]


def test_devices_and_model_runners_have_caches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = described(monkeypatch, 1, True)
    monkeypatch.setattr(type(current_platform), "get_device_capability", lambda *_: DeviceCapability(9, 0))
    there = described(monkeypatch, 1, True)
    assert (here["extra"]["tier.device"], there["extra"]["tier.device"]) == ("", "9.0")
    assert there["extra"]["tier.runner"] == "v1"


def test_the_seed_of_the_hashes_is_told_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert "tier.hash_seed" not in described(monkeypatch, 1, False)["extra"]
    monkeypatch.setenv("PYTHONHASHSEED", "secret")
    seed = described(monkeypatch, 1, False)["extra"]["tier.hash_seed"]
    assert seed == hashlib.sha256(b"secret").hexdigest()
