"""vLLM's host region, as the daemon maps it: a row for each chunk, with the bytes of all ranks."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from kvconn.client import GroupLayout, Run

_MAX_CHUNK_BYTES = 64 << 20
_MAX_CHUNK_TOKENS = 4096
_NAME = "/dev/shm/vllm_offload_{engine}.mmap"  # noqa: S108


def descriptor(spec: Any) -> int:
    """Return a descriptor of the region of its own. Raises ValueError where vLLM does not show one."""
    fd = getattr(getattr(spec, "_scheduler_mmap", None), "fd", None)
    if not isinstance(fd, int):
        raise ValueError("kvconn: this vLLM keeps its host region elsewhere than 0.31 and 0.32 do")
    return os.dup(fd)


def layout(spec: Any, size: int) -> list[GroupLayout]:
    """Return how chunks of `size` bytes lie in the region: those of every layer group take whole rows."""
    run = Run(0, 0, 1, 0, spec.kv_bytes_per_chunk, size)
    return [GroupLayout(spec.num_chunks, [run]) for _ in spec.config.groups]


def chunk_bytes(spec: Any, parts: int) -> int:
    """Return the bytes of a row that are KV, of that many ranks' parts. Raises ValueError where they are too many."""
    size = int(spec.cpu_page_size_per_worker * parts)
    if size > spec.kv_bytes_per_chunk:
        raise ValueError(
            f"kvconn: {parts} parts of {spec.cpu_page_size_per_worker} bytes exceed a row of"
            f" {spec.kv_bytes_per_chunk}: this canonical layout is not supported yet"
        )
    if size > _MAX_CHUNK_BYTES:
        raise ValueError(f"kvconn: a chunk has {size} bytes, at most {_MAX_CHUNK_BYTES}: lower blocks_per_chunk")
    return size


def chunk_tokens(spec: Any, layer_groups: int) -> int:
    """Return the tokens of a chunk, of a model with that many layer groups.

    Raises ValueError where it is not the same in all groups, or beyond bounds.
    """
    groups = spec.config.groups
    sizes = {group.tokens_per_block * spec.blocks_per_chunk for group in groups}
    if len(sizes) != 1:
        raise ValueError(f"kvconn: layer groups with chunks of {sorted(sizes)} tokens are not supported yet")
    if [group.group_id for group in groups] != list(range(layer_groups)):
        raise ValueError("kvconn: a model whose layer groups vLLM offloads in part is not supported yet")
    tokens = int(sizes.pop())
    if tokens > _MAX_CHUNK_TOKENS:
        raise ValueError(f"kvconn: a chunk has {tokens} tokens, at most {_MAX_CHUNK_TOKENS}: lower blocks_per_chunk")
    if spec.num_chunks < 1:
        raise ValueError(
            f"kvconn: cpu_bytes_to_use is less than one chunk of {spec.kv_bytes_per_chunk} bytes:"
            " raise it, or lower blocks_per_chunk"
        )
    return tokens


def unlink(engine: str, fd: int) -> None:
    """Remove the region's name, under which it would outlive an engine that is killed.

    All workers have mapped it: the scheduler opens it last. A file of that name that is another stays.
    """
    path = _NAME.format(engine=engine)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            os.unlink(path)
