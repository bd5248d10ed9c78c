"""How KV tensors on a GPU lie in the memory that the daemon gets: one region of all their storages, end to end.

vLLM gives each layer an allocation of its own, several layers one, or all of them one. Only the tensors tell: a block
is what has its number along their first dimension, or along the second where keys and values come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvconn.client import GroupLayout, Run
from kvconn.cuda.regions import Range
from kvconn.vllm.layout import LayoutError
from kvconn.vllm.manifest import layer_spec

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

_KEYS_AND_VALUES = 2


class Storage(Protocol):
    """What is used of torch's storages."""

    def data_ptr(self) -> int:
        """Return the address."""

    def nbytes(self) -> int:
        """Return the size."""


class Tensor(Protocol):
    """What is used of torch's tensors."""

    shape: Sequence[int]

    def data_ptr(self) -> int:
        """Return the address of the first element."""

    def stride(self) -> Sequence[int]:
        """Return the strides, in elements."""

    def element_size(self) -> int:
        """Return the bytes of an element."""

    def untyped_storage(self) -> Storage:
        """Return the memory that it is a view of."""


def storages(kv_caches: Mapping[str, Tensor]) -> list[Range]:
    """Return the storages of all layers, each once, by address."""
    found = {s.data_ptr(): s.nbytes() for t in kv_caches.values() for s in [t.untyped_storage()]}
    return [Range(address, found[address]) for address in sorted(found)]


def group_layouts(
    kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, Tensor], memory: Sequence[Range]
) -> list[GroupLayout]:
    """Return how the blocks of each KV cache group lie in a region of that memory, end to end.

    Raises LayoutError where a block is not where the engine's configuration says.
    """
    blocks = kv_cache_config.num_blocks
    layouts = []
    for group in kv_cache_config.kv_cache_groups:
        planes: list[_Plane] = []
        for layer in group.layer_names:
            page = int(layer_spec(group.kv_cache_spec, layer).page_size_bytes)
            planes += _planes(kv_caches[layer], layer, blocks, page, memory)
        runs = list(_merged(planes))
        layouts.append(GroupLayout(blocks if runs else 0, runs))
    if not any(layout.runs for layout in layouts):
        raise LayoutError("the model has no KV cache")
    return layouts


class _Plane(NamedTuple):
    """Where block b of a layer, or of its keys or values, lies: `size` bytes at `offset + b * block_stride`."""

    offset: int
    block_stride: int
    size: int


def _planes(t: Tensor, layer: str, blocks: int, page: int, memory: Sequence[Range]) -> list[_Plane]:
    offset = _offset(t.data_ptr(), layer, memory)
    item, shape, strides = t.element_size(), list(t.shape), list(t.stride())
    # An attention kernel with smaller blocks sees each block as several.
    if shape and shape[0] >= blocks and shape[0] % blocks == 0:
        planes = [_plane(offset, shape, strides, item, blocks)]
    elif len(shape) > 1 and shape[0] == _KEYS_AND_VALUES and shape[1] >= blocks and shape[1] % blocks == 0:
        starts = [offset + i * strides[0] * item for i in range(_KEYS_AND_VALUES)]
        planes = [_plane(start, shape[1:], strides[1:], item, blocks) for start in starts]
    else:
        planes = []
    if not planes or any(plane is None for plane in planes) or sum(plane.size for plane in planes if plane) != page:
        raise LayoutError(
            f"{layer}: {tuple(shape)} of {item} bytes with strides {tuple(strides)} is not {blocks} blocks of {page}"
            " bytes in one piece, or in one of keys and one of values"
        )
    return [plane for plane in planes if plane]


def _plane(offset: int, shape: Sequence[int], strides: Sequence[int], item: int, blocks: int) -> _Plane | None:
    """Return where blocks lie along the first dimension, None where a block is not in one piece."""
    split = shape[0] // blocks
    elements, span = 1, 1
    for n, stride in zip(shape[1:], strides[1:], strict=True):
        elements *= n
        span += (n - 1) * stride
    if span != elements or (split > 1 and strides[0] != elements):
        return None
    return _Plane(offset, split * strides[0] * item, split * elements * item)


def _offset(address: int, layer: str, memory: Sequence[Range]) -> int:
    """Return the offset of an address in the region of that memory."""
    before = 0
    for first, size in memory:
        if first <= address < first + size:
            return before + address - first
        before += size
    raise LayoutError(f"{layer} is outside of the KV memory")


def _merged(planes: Sequence[_Plane]) -> Iterator[Run]:
    """Yield runs, equally spaced neighbours of one kind as the layers of one."""
    for (block_stride, size), same in groupby(planes, lambda plane: (plane.block_stride, plane.size)):
        first: int | None = None
        layers, spacing = 0, 0
        for plane in same:
            if first is not None and layers == 1 and plane.offset > first:
                spacing = plane.offset - first
            if first is not None and spacing and plane.offset == first + layers * spacing:
                layers += 1
                continue
            if first is not None:
                yield Run(0, first, layers, spacing, block_stride, size)
            first, layers, spacing = plane.offset, 1, 0
        if first is not None:
            yield Run(0, first, layers, spacing, block_stride, size)
