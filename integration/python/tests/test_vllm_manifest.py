from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

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
        revision="r",
        hf_config=SimpleNamespace(),
        get_total_num_hidden_layers=lambda: 8,
    )
    parallel = SimpleNamespace(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    config: Any = SimpleNamespace(model_config=model, parallel_config=parallel, cache_config=None)
    decoded: dict[str, Any] = json.loads(manifest.build_manifest(config, kv, "vllm/x"))
    return decoded


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


def directory(path: Path, weights: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_the_fingerprint_does_not_depend_on_the_place(tmp_path: Path) -> None:
    weights = bytes(3 << 20)
    first, second = directory(tmp_path / "a", weights), directory(tmp_path / "b", weights)
    assert manifest.fingerprint_directory(first) == manifest.fingerprint_directory(second)


@pytest.mark.parametrize("changed", [0, 1 << 20, (3 << 20) - 1])
def test_other_weights_have_another_fingerprint(tmp_path: Path, changed: int) -> None:
    weights = bytearray(3 << 20)
    first = manifest.fingerprint_directory(directory(tmp_path / "a", bytes(weights)))
    # A retrained tensor is many bytes long.
    end = min(len(weights), changed + (256 << 10))
    weights[changed:end] = b"\x01" * (end - changed)
    assert manifest.fingerprint_directory(directory(tmp_path / "b", bytes(weights))) != first


def test_another_config_has_another_fingerprint(tmp_path: Path) -> None:
    first = directory(tmp_path / "a", b"w")
    before = manifest.fingerprint_directory(first)
    (first / "config.json").write_text('{"rope_theta": 1}')
    assert manifest.fingerprint_directory(first) != before


def test_a_hub_model_is_known_by_its_commit() -> None:
    config = SimpleNamespace(model="o/m", revision="main", hf_config=SimpleNamespace(_commit_hash="abc"))
    assert manifest.model_revision(config) == "abc"
    config.hf_config._commit_hash = None
    assert manifest.model_revision(config) == "main"


def test_weights_that_nothing_tells_apart_are_refused() -> None:
    config = SimpleNamespace(model="o/m", revision=None, hf_config=SimpleNamespace())
    with pytest.raises(ValueError, match="which weights"):
        manifest.model_revision(config)
