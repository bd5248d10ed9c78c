"""SGLang's own host pools, in shared memory and without an engine."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # these pools are small, and must not depend on what else runs
PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 3, 2, 8, 256
MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
_COMMON: dict[str, Any] = {
    "host_to_device_ratio": 2.0,
    "host_size": 0,
    "page_size": PAGE,
    "pin_memory": False,
    "allocator_type": "shm",
    "device_capacity_tokens": TOKENS,
    "start_layer": 0,
    "end_layer": LAYERS,
}


def mha(layout: str, v_dim: int = DIM) -> Any:
    """Return a pool of keys and values, whose sizes may differ."""
    k = tuple(torch.zeros(TOKENS + PAGE, HEADS, DIM) for _ in range(LAYERS))
    v = tuple(torch.zeros(TOKENS + PAGE, HEADS, v_dim) for _ in range(LAYERS))
    pointers = [torch.tensor([t.data_ptr() for t in ts], dtype=torch.uint64) for ts in (k, v)]
    info = MHABufferInfo(
        buffers=KVBuffers(k=k, v=v, k_data_ptrs=pointers[0], v_data_ptrs=pointers[1], layout=KVBufferLayout.NHD),
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=v_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    pool = MHATokenToKVPoolHost if v_dim == DIM else AsymmetricMHATokenToKVPoolHost
    return pool(info, layout=layout, **_COMMON)


def mla(layout: str) -> Any:
    """Return a pool of latent vectors."""
    rank, rope = 24, 8
    rows = tuple(torch.zeros(TOKENS + PAGE, 1, rank + rope) for _ in range(LAYERS))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=torch.tensor([t.data_ptr() for t in rows], dtype=torch.uint64),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        kv_cache_dim=rank + rope,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return MLATokenToKVPoolHost(info, layout=layout, target_layer_num=LAYERS, **_COMMON)


def mamba() -> Any:
    """Return a pool of states, whose pages are single slots."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, TOKENS // PAGE, 4, 8), conv=(torch.zeros(LAYERS, TOKENS // PAGE, 6, 3),)
    )
    return MambaPoolHost(
        info,
        2.0,
        0,
        device_capacity=TOKENS // PAGE,
        pin_memory=False,
        allocator_type="shm",
        layout="page_first_direct",
    )


def slots(*pages: int) -> torch.Tensor:
    """Return the indices of all slots of pages."""
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE, dtype=torch.int64) for p in pages])
