"""SGLang's kernels that copy pages between GPU and host memory, in torch.

Names and arguments are those of sgl_kernel.kvcacheio. "lf" is the layout of a GPU: one tensor a layer, [tokens, ...].
"pf" is that of the host pool: one tensor, [pages, layers, tokens of a page, ...].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy tokens between layers of the same layout."""
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[dst_indices] = src[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copy one layer of host pages to the GPU."""
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        dst[dst_indices] = src[src_indices // page_size, layer_id, src_indices % page_size]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy all layers of GPU tokens to host pages. The sources are all layers of the first destination, and so on."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for i, src in enumerate(src_ptrs):
        pages = dst_ptrs[i // layers]
        pages[dst_indices // page_size, i % layers, dst_indices % page_size] = src[src_indices]
