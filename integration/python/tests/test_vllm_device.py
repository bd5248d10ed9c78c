from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.client import Run
from kvconn.cuda.regions import Range
from kvconn.vllm import device
from kvconn.vllm.layout import LayoutError

BLOCKS = 3


@dataclass(frozen=True)
class Memory:
    address: int
    size: int

    def data_ptr(self) -> int:
        return self.address

    def nbytes(self) -> int:
        return self.size


@dataclass(frozen=True)
class View:
    """A tensor of 2-byte elements."""

    memory: Memory
    shape: Sequence[int]
    strides: Sequence[int]
    first: int = 0

    def data_ptr(self) -> int:
        return self.memory.address + self.first

    def stride(self) -> Sequence[int]:
        return self.strides

    def element_size(self) -> int:
        return 2

    def untyped_storage(self) -> Memory:
        return self.memory

    def bytes_of(self, block: int, dimension: int, split: int = 1) -> set[int]:
        """The addresses of a block's bytes, by enumeration."""
        found: set[int] = set()
        for index in itertools.product(*(range(n) for n in self.shape)):
            if index[dimension] // split == block:
                at = self.data_ptr() + 2 * sum(i * s for i, s in zip(index, self.strides, strict=True))
                found |= {at, at + 1}
        return found


def contiguous(memory: Memory, *shape: int, first: int = 0) -> View:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return View(memory, shape, strides, first)


def config(layers: Mapping[str, Any], page: int) -> Any:
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(page_size_bytes=page), layer_names=list(layers))
    return SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[group])


def addresses(runs: Sequence[Run], block: int, memory: Sequence[Range]) -> Iterator[int]:
    """The addresses that runs say a block has, in order."""
    flat = [first + i for first, size in memory for i in range(size)]
    for run in runs:
        for layer in range(run.layers):
            start = run.offset + layer * run.layer_stride + block * run.block_stride
            yield from flat[start : start + run.size]


def check(layers: Mapping[str, View], page: int, dimension: int, split: int = 1) -> list[Run]:
    """Check that blocks are where the tensors have them, and return the runs."""
    memory = device.storages(layers)
    (layout,) = device.group_layouts(config(layers, page), layers, memory)
    assert layout.blocks == BLOCKS
    for block in range(BLOCKS):
        got = list(addresses(layout.runs, block, memory))
        assert len(got) == page * len(layers)
        for i, t in enumerate(layers.values()):
            assert set(got[i * page : (i + 1) * page]) == t.bytes_of(block, dimension, split)
    return list(layout.runs)


def test_an_allocation_for_each_layer() -> None:
    sizes = {"a": 0x3000, "b": 0x1000, "c": 0x5000}
    layers = {name: contiguous(Memory(at, BLOCKS * 16), BLOCKS, 4, 2) for name, at in sizes.items()}
    # The region has them by address, the block by layer.
    assert check(layers, 16, 0) == [Run(0, 48, 1, 0, 16, 16), Run(0, 0, 2, 96, 16, 16)]


def test_layers_in_one_allocation_are_one_run() -> None:
    memory = Memory(0x1000, 4 * BLOCKS * 16)
    layers = {f"l{i}": contiguous(memory, BLOCKS, 4, 2, first=i * BLOCKS * 16) for i in range(4)}
    assert check(layers, 16, 0) == [Run(0, 0, 4, 48, 16, 16)]


def test_block_outermost_layers_are_one_run() -> None:
    memory = Memory(0x1000, 4 * BLOCKS * 16)
    layers = {f"l{i}": View(memory, (BLOCKS, 4, 2), (32, 2, 1), i * 16) for i in range(4)}
    assert check(layers, 16, 0) == [Run(0, 0, 4, 16, 64, 16)]


def test_heads_may_be_before_tokens_in_memory() -> None:
    layers = {"l": View(Memory(0x1000, BLOCKS * 16), (BLOCKS, 2, 2, 2), (8, 2, 4, 1))}
    assert check(layers, 16, 0) == [Run(0, 0, 1, 0, 16, 16)]


def test_keys_and_values_apart() -> None:
    layers = {f"l{i}": contiguous(Memory(0x1000 * (i + 1), 2 * BLOCKS * 8), 2, BLOCKS, 4) for i in range(2)}
    assert check(layers, 16, 1) == [Run(0, 0, 4, 24, 8, 8)]


def test_as_many_blocks_as_two_halves() -> None:
    # Two blocks of keys and values each: the first dimension is that of blocks.
    layers = {"l": contiguous(Memory(0x1000, 2 * 16), 2, 2, 4)}
    (layout,) = device.group_layouts(
        SimpleNamespace(num_blocks=2, kv_cache_groups=config(layers, 16).kv_cache_groups), layers, [Range(0x1000, 32)]
    )
    assert layout.runs == [Run(0, 0, 1, 0, 16, 16)]


def test_a_kernel_with_smaller_blocks() -> None:
    layers = {"l": contiguous(Memory(0x1000, BLOCKS * 4 * 16), BLOCKS * 4, 4, 2)}
    assert check(layers, 64, 0, split=4) == [Run(0, 0, 1, 0, 64, 64)]


def test_layers_of_other_sizes() -> None:
    layers = {
        "a": contiguous(Memory(0x1000, BLOCKS * 16), BLOCKS, 8),
        "b": contiguous(Memory(0x2000, BLOCKS * 16), BLOCKS, 8),
        "c": contiguous(Memory(0x4000, BLOCKS * 16), BLOCKS, 8),
    }
    memory = device.storages(layers)
    (layout,) = device.group_layouts(config(layers, 16), layers, memory)
    assert layout.runs == [Run(0, 0, 3, 48, 16, 16)]


@pytest.mark.parametrize(
    "view",
    [
        View(Memory(0x1000, 1024), (BLOCKS, 4, 2), (16, 4, 1)),  # gaps within a block
        View(Memory(0x1000, 1024), (BLOCKS * 2, 4, 1), (16, 1, 1)),  # gaps between the parts of a block
        View(Memory(0x1000, 1024), (BLOCKS + 1, 8), (8, 1)),
        View(Memory(0x1000, 1024), (3, BLOCKS + 1, 8), (32, 8, 1)),
        View(Memory(0x1000, 1024), (BLOCKS, 9), (9, 1)),  # larger than a page
        View(Memory(0x1000, 1024), (), ()),
    ],
)
def test_what_is_no_block_is_refused(view: View) -> None:
    layers = {"l": view}
    with pytest.raises(LayoutError, match="is not 3 blocks of 16"):
        device.group_layouts(config(layers, 16), layers, device.storages(layers))


def test_a_model_without_cache_is_refused() -> None:
    with pytest.raises(LayoutError, match="no KV cache"):
        device.group_layouts(config({}, 16), {}, [])


def test_a_tensor_elsewhere_is_refused() -> None:
    layers = {"l": contiguous(Memory(0x1000, BLOCKS * 16), BLOCKS, 8)}
    with pytest.raises(LayoutError, match="outside"):
        device.group_layouts(config(layers, 16), layers, [Range(0x9000, 4096)])
