from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from kvconn.client import GroupLayout, Run
from kvconn.vllm import memory, populate

BLOCKS, LAYERS, PAGE = 6, 3, 64


def layers_of(buffer: torch.Tensor, block_stride: int = PAGE) -> dict[str, torch.Tensor]:
    """Views of a buffer in vLLM's LBHNC layout: int8 pages of 2 heads, 4 tokens and 8 bytes."""
    size, stride = (BLOCKS, 2, 4, 8), (block_stride, 32, 8, 1)
    return {f"l{i}": torch.as_strided(buffer, size, stride, i * PAGE * BLOCKS) for i in range(LAYERS)}


def config(**placed: Any) -> Any:
    spec = SimpleNamespace(page_size_bytes=PAGE)
    tensor = {
        "layers": [f"l{i}" for i in range(LAYERS)],
        "offset": 0,
        "layer_stride": PAGE * BLOCKS,
        "block_stride": PAGE,
        "host_resident": False,
        **placed,
    }
    return SimpleNamespace(
        num_blocks=BLOCKS,
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=tensor["layers"])],
        kv_cache_tensors=[SimpleNamespace(**tensor)],
    )


def allocate_as_vllm_does(size: int) -> tuple[list[memory.SharedMemory], torch.Tensor]:
    allocated: list[memory.SharedMemory] = []
    with memory.AllocationMode(allocated.append):
        other = torch.zeros(size, dtype=torch.float32, device="cpu")
        kv = torch.zeros(size, dtype=torch.int8, device=torch.device("cpu"))
    assert other.untyped_storage().nbytes() == 4 * size
    return allocated, kv


def test_its_pages_are_made_before_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "available_bytes", lambda: 1 << 40)
    (shared,), _ = allocate_as_vllm_does(5 << 20)
    shared.populating.join()
    assert os.fstat(shared.fd).st_blocks * 512 >= 5 << 20


def test_pages_are_left_to_their_use_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populate, "available_bytes", lambda: 1 << 30)
    (shared,), _ = allocate_as_vllm_does(5 << 20)
    shared.populating.join()
    assert os.fstat(shared.fd).st_blocks == 0


def test_what_the_machine_can_give_is_bounded_by_control_groups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    inner = groups / "pod" / "engine"
    for directory in (proc / "self", inner):
        directory.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    (proc / "self" / "cgroup").write_text("3:memory:/old\n0::/pod/engine\n")
    for directory, limit, current in ((inner, "max", 5), (inner.parent, "3000000", 1000000)):
        (directory / "memory.max").write_text(f"{limit}\n")
        (directory / "memory.current").write_text(f"{current}\n")
    assert populate.available_bytes(proc, groups) == 2000000
    (inner / "memory.max").write_text("1500\n")
    assert populate.available_bytes(proc, groups) == 1495
    (inner / "memory.high").write_text("1200\n")
    assert populate.available_bytes(proc, groups) == 1195
    (proc / "self" / "cgroup").write_text("3:cpu:/pod\n")
    assert populate.available_bytes(proc, groups) == 4000 << 10


@pytest.mark.parametrize("seen_from_here", [True, False])
def test_control_groups_of_version_1_bound_it_too(tmp_path: Path, seen_from_here: bool) -> None:
    # In a container the path is the machine's, and the container's own group is the mount's root.
    proc, memory_groups = tmp_path / "proc", tmp_path / "cgroup" / "memory"
    group = memory_groups / "pod" if seen_from_here else memory_groups
    for directory in (proc / "self", group):
        directory.mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable:    4000 kB\n")
    (proc / "self" / "cgroup").write_text("4:cpu,memory:/pod\n0::/\n")
    (group / "memory.limit_in_bytes").write_text("3000000\n")
    (group / "memory.usage_in_bytes").write_text("1000000\n")
    assert populate.available_bytes(proc, tmp_path / "cgroup") == 2000000


def test_memory_is_shared_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    (shared,), kv = allocate_as_vllm_does(BLOCKS * LAYERS * PAGE)
    assert shared.holds(kv.untyped_storage())


def test_the_allocation_lies_behind_the_descriptor() -> None:
    (shared,), kv = allocate_as_vllm_does(BLOCKS * LAYERS * PAGE)
    assert shared.holds(kv.untyped_storage())
    assert not kv.any()
    kv[5] = 7
    with mmap.mmap(shared.fd, len(kv)) as seen:
        assert seen[5] == 7
        seen[6] = 8
    assert kv[6] == 8


def test_the_descriptor_cannot_be_resized() -> None:
    (shared,), _ = allocate_as_vllm_does(4096)
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fd, size)


def test_other_memory_is_moved_with_all_its_views() -> None:
    buffer = torch.zeros(BLOCKS * LAYERS * PAGE, dtype=torch.int8)
    layers = layers_of(buffer)
    layers["l1"][2, 0, 0, 3] = 9
    fd = memory.move_to_shared_memory(memory.backing_storage(layers))
    offset = (PAGE * BLOCKS) + 2 * PAGE + 3
    assert os.pread(fd, 1, offset) == b"\x09"
    os.pwrite(fd, b"\x05", offset)
    assert layers["l1"][2, 0, 0, 3] == 5


def test_the_layout_is_what_the_engine_says() -> None:
    layers = layers_of(torch.zeros(BLOCKS * LAYERS * PAGE, dtype=torch.int8))
    want = [GroupLayout(BLOCKS, [Run(0, 0, LAYERS, PAGE * BLOCKS, PAGE, PAGE)])]
    assert memory.group_layouts(config(), layers) == want
    older = config()
    del older.kv_cache_tensors[0].host_resident
    assert memory.group_layouts(older, layers) == want


def test_groups_alias_the_same_bytes() -> None:
    pages = PAGE * BLOCKS
    buffer = torch.zeros(2 * pages, dtype=torch.int8)
    size, stride = (BLOCKS, 2, 4, 8), (PAGE, 32, 8, 1)
    spec = SimpleNamespace(page_size_bytes=PAGE)
    names = [["a0", "a1"], ["b0", "b1"], ["c0"]]
    layers = {n: torch.as_strided(buffer, size, stride, i * pages) for group in names for i, n in enumerate(group)}
    placed = {"offset": 0, "layer_stride": pages, "block_stride": PAGE, "host_resident": False}
    kv = SimpleNamespace(
        num_blocks=BLOCKS,
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=group) for group in [*names, []]],
        kv_cache_tensors=[SimpleNamespace(layers=group, **placed) for group in names],
    )
    two, one = (GroupLayout(BLOCKS, [Run(0, 0, n, pages, PAGE, PAGE)]) for n in (2, 1))
    assert memory.group_layouts(kv, layers) == [two, two, one, GroupLayout(0, [])]


def test_groups_share_a_placement() -> None:
    pages = PAGE * BLOCKS
    layers = layers_of(torch.zeros(LAYERS * pages, dtype=torch.int8))
    kv = config()
    spec = kv.kv_cache_groups[0].kv_cache_spec
    kv.kv_cache_groups = [
        SimpleNamespace(kv_cache_spec=spec, layer_names=["l0", "l2"]),
        SimpleNamespace(kv_cache_spec=spec, layer_names=["l1"]),
    ]
    assert memory.group_layouts(kv, layers) == [
        GroupLayout(BLOCKS, [Run(0, i * pages, 1, pages, PAGE, PAGE) for i in (0, 2)]),
        GroupLayout(BLOCKS, [Run(0, pages, 1, pages, PAGE, PAGE)]),
    ]


def test_a_kernel_with_smaller_blocks_sees_the_same_pages() -> None:
    buffer = torch.zeros(BLOCKS * LAYERS * PAGE, dtype=torch.int8)
    size, stride = (2 * BLOCKS, 1, 4, 8), (32, 32, 8, 1)
    layers = {f"l{i}": torch.as_strided(buffer, size, stride, i * PAGE * BLOCKS) for i in range(LAYERS)}
    assert memory.group_layouts(config(), layers)[0].runs[0].size == PAGE


@pytest.mark.parametrize(
    "placed", [{"offset": 64}, {"layer_stride": PAGE}, {"block_stride": 2 * PAGE}, {"host_resident": True}]
)
def test_a_layout_that_the_tensors_do_not_have_is_refused(placed: dict[str, Any]) -> None:
    layers = layers_of(torch.zeros(BLOCKS * LAYERS * PAGE, dtype=torch.int8))
    with pytest.raises(memory.LayoutError):
        memory.group_layouts(config(**placed), layers)


def test_pages_with_gaps_are_refused() -> None:
    buffer = torch.zeros(4 * BLOCKS * LAYERS * PAGE, dtype=torch.int8)
    size, stride = (BLOCKS, 2, 4, 8), (PAGE, 8, 16, 1)
    layers = {f"l{i}": torch.as_strided(buffer, size, stride, i * PAGE * BLOCKS) for i in range(LAYERS)}
    layers["l0"] = torch.as_strided(buffer, size, (PAGE, 8, 32, 1), 0)
    with pytest.raises(memory.LayoutError):
        memory.group_layouts(config(), layers)


def test_memory_of_several_allocations_is_refused() -> None:
    layers = {f"l{i}": torch.zeros(8, dtype=torch.int8) for i in range(2)}
    with pytest.raises(memory.LayoutError):
        memory.backing_storage(layers)
