from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.vllm import manifest


class FullAttentionSpec(SimpleNamespace):
    pass


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


class SlidingWindowMLASpec(SlidingWindowSpec):
    pass


class MambaSpec(SimpleNamespace):
    pass


class UniformTypeKVCacheSpecs(SimpleNamespace):
    pass


def spec(kind: type = FullAttentionSpec, **fields: Any) -> Any:
    shape = {"block_size": 128, "num_kv_heads": 2, "head_size": 64, "head_size_v": None, "dtype": "torch.float32"}
    return kind(**{**shape, **fields})


def kv_config(*groups: tuple[list[str], Any]) -> Any:
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(layer_names=names, kv_cache_spec=s) for names, s in groups],
        kv_cache_layout="LBHNC",
    )


def built(monkeypatch: pytest.MonkeyPatch, kv: Any, tensor: int = 1, pipeline: int = 1) -> dict[str, Any]:
    monkeypatch.setattr(manifest, "_extra", lambda config, specs: {})
    model = SimpleNamespace(
        model="m",
        get_total_num_hidden_layers=lambda: 8,
    )
    parallel = SimpleNamespace(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    config: Any = SimpleNamespace(model_config=model, parallel_config=parallel, cache_config=None)
    return manifest.describe(config, kv, "vllm/x")


def test_each_kv_cache_group_is_a_layer_group_with_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    sliding = spec(SlidingWindowSpec, sliding_window=256, extra_retained_tokens=3)
    kv = kv_config((["0", "3"], sliding), (["2"], spec(sliding_window=256)))
    shape = {"kv_heads": 2, "head_size": 128, "layout": "LBHNC", "replicated": False}
    assert built(monkeypatch, kv)["groups"] == [
        {"layers": 2, "window": 259, **shape},
        {"layers": 1, "window": 0, **shape},
    ]
    assert manifest.keeps_windows(kv)
    assert manifest.keeps_windows(kv_config((["0"], sliding)))
    assert not manifest.keeps_windows(kv_config((["0"], spec(sliding_window=256))))


def test_latent_vectors_are_the_same_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = kv_config((["0"], spec(MLAAttentionSpec, num_kv_heads=1, head_size=576, head_size_v=0)))
    body = built(monkeypatch, kv, tensor=2)
    assert (body["groups"][0]["replicated"], body["groups"][0]["head_size"], body["tensor_parallel"]) == (True, 576, 2)


def test_all_ranks_of_a_pipeline_and_the_scheduler_send_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = spec(), spec()
    ranks = [
        kv_config((["0", "1", "2"], UniformTypeKVCacheSpecs(kv_cache_specs={"0": first, "1": second}))),
        kv_config((["3", "4"], UniformTypeKVCacheSpecs(kv_cache_specs={"3": first}))),
        kv_config((["0", "1", "2"], first)),
    ]
    bodies = [built(monkeypatch, kv, pipeline=2) for kv in ranks]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0]["groups"][0]["layers"] == 8


@pytest.mark.parametrize(
    ("groups", "pipeline", "message"),
    [
        ([spec(), spec(SlidingWindowSpec, sliding_window=9)], 2, "pipeline"),
        ([spec(), spec(block_size=64)], 1, "64, 128"),
        ([spec(), spec(MambaSpec)], 1, "MambaSpec"),
        ([spec(SlidingWindowMLASpec, sliding_window=9)], 1, "SlidingWindowMLASpec"),
    ],
)
def test_caches_that_cannot_be_kept_by_blocks_are_refused(
    monkeypatch: pytest.MonkeyPatch, groups: list[Any], pipeline: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        built(monkeypatch, kv_config(*((["l"], g) for g in groups)), pipeline=pipeline)


def test_ranks_that_hold_the_same_save_it_once() -> None:
    parallel = SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=3)
    config: Any = SimpleNamespace(parallel_config=parallel)
    kv = kv_config((["0"], spec(MLAAttentionSpec)), (["1"], spec()))
    assert manifest.shards(config, kv) == [3, 6]
