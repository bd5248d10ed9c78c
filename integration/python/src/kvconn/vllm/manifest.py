"""The namespace manifest: everything that must match for KV bytes to be reusable."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from kvconn.vllm import settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Subtypes with blocks of other kinds: none of their prefix, other gaps, or the engine's scratch.
_UNKNOWN_SPECS = ("SlidingWindowMLASpec", "RSWASpec", "HiddenStateCacheSpec")


def describe(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, engine: str) -> dict[str, Any]:
    """Return the manifest without the weights; connector/manifest.go defines the fields.

    The scheduler and every worker of an engine get the same: nothing in here depends on the rank.
    `engine` is the engine's name and version. Raises ValueError for a KV cache that cannot be kept
    block by block.
    """
    model = vllm_config.model_config
    parallel = vllm_config.parallel_config
    specs = group_specs(kv_cache_config)
    if len(specs) > 1 and parallel.pipeline_parallel_size > 1:
        raise ValueError("kvconn: several KV cache groups and pipeline parallelism together are not supported yet")
    layout = kv_cache_config.kv_cache_layout or vllm_config.cache_config.kv_cache_layout
    return {
        "engine": engine,
        "model": str(model.model),
        "kv_dtype": str(specs[0].dtype).removeprefix("torch."),
        "block_size": block_size(kv_cache_config),
        "groups": [
            {
                "layers": _layers(group, vllm_config),
                "window": _window(spec),
                "kv_heads": spec.num_kv_heads,
                "head_size": spec.head_size + (spec.head_size if spec.head_size_v is None else spec.head_size_v),
                "layout": str(layout),
                "replicated": _replicated(spec),
            }
            for group, spec in zip(kv_cache_config.kv_cache_groups, specs, strict=True)
        ],
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "key_scheme": "tokens",
        "hash_scheme": "kvconn-1",
        "extra": _extra(vllm_config, specs),
    }


def group_specs(kv_cache_config: KVCacheConfig) -> list[Any]:
    """Return the attention spec of each KV cache group, as its first layer has it.

    Raises ValueError for specs whose blocks are no function of the tokens up to them, or where
    vLLM keeps blocks other than those of a window.
    """
    specs = [layer_spec(g.kv_cache_spec, *g.layer_names[:1]) for g in kv_cache_config.kv_cache_groups]
    for spec in specs:
        if not _is_a(spec, "FullAttentionSpec", "SlidingWindowSpec") or _is_a(spec, *_UNKNOWN_SPECS):
            raise ValueError(f"kvconn: a KV cache of {type(spec).__name__} is not supported yet")
    return specs


def block_size(kv_cache_config: KVCacheConfig) -> int:
    """Return the tokens of a block, the same in all KV cache groups. Raises ValueError where it is not."""
    sizes = {spec.block_size for spec in group_specs(kv_cache_config)}
    if len(sizes) != 1:
        raise ValueError(f"kvconn: KV cache groups with blocks of {sorted(sizes)} tokens are not supported yet")
    return int(sizes.pop())


def shards(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> list[int]:
    """Return how many ranks save a part of a block, of each KV cache group."""
    parallel = vllm_config.parallel_config
    stages, parts = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    return [stages * (1 if _replicated(spec) else parts) for spec in group_specs(kv_cache_config)]


def keeps_windows(kv_cache_config: KVCacheConfig) -> bool:
    """Whether vLLM gives blocks up that have left a window, or has several groups of layers.

    Then a load that fails in part cannot be mended by computing on from the first block that failed:
    what the layers' windows need before it was not loaded.
    """
    specs = group_specs(kv_cache_config)
    return len(specs) > 1 or any(_window(spec) for spec in specs)


def layer_spec(group_spec: Any, layer: str | None = None) -> Any:
    """Return a layer's own spec out of its group's, the first layer's without a name."""
    per_layer = getattr(group_spec, "kv_cache_specs", None)
    if per_layer is None:
        return group_spec
    return per_layer[layer] if layer is not None else next(iter(per_layer.values()))


def _is_a(spec: Any, *names: str) -> bool:
    """Whether a spec has one of the types; by name, since not every version of vLLM has them all."""
    return any(base.__name__ in names for base in type(spec).__mro__)


def _replicated(spec: Any) -> bool:
    """Whether every tensor-parallel rank computes the same latent vectors (MLA)."""
    return _is_a(spec, "MLAAttentionSpec")


def _layers(group: Any, vllm_config: VllmConfig) -> int:
    """Return how many layers of the whole model are in a group; a stage knows of its own only."""
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return len(group.layer_names)
    return int(vllm_config.model_config.get_total_num_hidden_layers())


def _window(spec: Any) -> int:
    """Return the tokens that the engine keeps of a layer's past, 0 for all.

    A sliding window that is managed as full attention is kept whole.
    """
    if not _is_a(spec, "SlidingWindowSpec"):
        return 0
    return int(spec.sliding_window + getattr(spec, "extra_retained_tokens", 0))


def _extra(vllm_config: VllmConfig, specs: list[Any]) -> dict[str, str]:
    """What else changes the bytes, without their shape showing it."""
    from vllm.platforms import current_platform

    spec = specs[0]
    model, cache = vllm_config.model_config, vllm_config.cache_config
    extra = {
        "spec": ",".join(f"{type(s).__name__}/{str(s.dtype).removeprefix('torch.')}" for s in specs),
        "model_dtype": str(model.dtype).removeprefix("torch."),
        "cache_dtype": str(cache.cache_dtype),
        "attention": f"{current_platform.device_type}:{_backend_name(vllm_config)}",
    }
    if current_platform.is_cpu():
        # The kernels lay K out inside a page by instruction set.
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        extra["isa"] = _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)
        extra["arch"] = current_platform.get_cpu_architecture().name
    foreign = str(getattr(model, "architecture", "")).startswith("Transformers")
    if foreign or getattr(model, "multimodal_config", None) is not None:
        # It prepares images and the like, and computes models that vLLM has no own code for.
        extra["transformers"] = metadata.version("transformers")
    windows = [str(getattr(s, "sliding_window", None) or 0) for s in specs]
    if set(windows) != {"0"}:
        extra["sliding_window"] = ",".join(windows)
    return extra | settings.of(vllm_config)


def _backend_name(vllm_config: VllmConfig) -> str:
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    return "auto" if backend is None else str(getattr(backend, "name", backend))
