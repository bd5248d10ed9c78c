"""The manifest of what vLLM's host region holds."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from kvconn.vllm import manifest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_HASHES = ("sha256", "sha256_cbor")


def check_hashes(vllm_config: VllmConfig) -> None:
    """Raise ValueError where blocks are named by hashes that anybody could find a second block for."""
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if algorithm not in _HASHES:
        raise ValueError(
            f"kvconn: prefix_caching_hash_algo {algorithm!r} is not cryptographic, set one of {', '.join(_HASHES)}"
        )


def describe(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, engine: str, spec: Any, chunk_tokens: int
) -> dict[str, Any]:
    """Return the manifest, without the weights, of chunks that are rows of vLLM's region.

    A row holds the bytes of all ranks, so there is one rank. In the canonical layout it has whole heads
    in order, whatever the number of tensor-parallel ranks: they share the cache.
    """
    described = manifest.describe(vllm_config, kv_cache_config, engine)
    parallel = vllm_config.parallel_config
    canonical = is_canonical(spec)
    for group in described["groups"]:
        group["kv_heads"] = _all_heads(vllm_config, group, canonical)
        group["replicated"] = False
    layout = "canonical"
    if not canonical:
        # Of layers that vLLM can't bring into whole heads the canonical layout has the ranks' bytes tensor by tensor.
        order = "tensors:" if spec.config.canonical_layout else ""
        layout = f"{order}{parallel.tensor_parallel_size}x{parallel.pipeline_parallel_size}"
    seed = os.environ.get("PYTHONHASHSEED", "")
    described |= {
        "block_size": chunk_tokens,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "key_scheme": "engine",
    }
    # vLLM picks the backend by the device, and its two model runners lay KV out each in its own way.
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability()
    described["extra"] |= {
        "tier.device": "" if capability is None else f"{capability.major}.{capability.minor}",
        "tier.runner": "v2" if getattr(vllm_config, "use_v2_model_runner", False) else "v1",
        "tier.layout": layout,
        "tier.page": str(spec.config.cache.blocks_per_chunk),
        "tier.hash": str(vllm_config.cache_config.prefix_caching_hash_algo),
    }
    if seed:  # it may be a secret
        described["extra"]["tier.hash_seed"] = hashlib.sha256(seed.encode()).hexdigest()
    return described


def is_canonical(spec: Any) -> bool:
    """Whether rows have the same bytes for all numbers of tensor-parallel ranks."""
    return bool(spec.config.canonical_layout and spec.config.parallel.is_parallelism_agnostic)


def parts(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, spec: Any) -> int:
    """Return how many parts, each as large as one rank's, make a row.

    That many ranks, except where ranks hold the same heads, which the canonical layout has once.
    """
    if spec.replicated_layout:
        return 1
    if not is_canonical(spec):
        return int(spec.config.parallel.world_size)
    heads = manifest.group_specs(kv_cache_config)[0].num_kv_heads
    return max(1, vllm_config.model_config.get_total_num_kv_heads() // heads)


def _all_heads(vllm_config: VllmConfig, group: dict[str, Any], canonical: bool) -> int:
    if group["replicated"]:  # latent vectors, which all ranks have
        return int(group["kv_heads"])
    if canonical:
        return int(vllm_config.model_config.get_total_num_kv_heads())
    return int(group["kv_heads"] * vllm_config.parallel_config.tensor_parallel_size)
