"""As much of SGLang and of torch as the storage backend touches, for tests of it without either."""

from __future__ import annotations

import ctypes
import enum
import importlib
import json
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PAGE, PAGES, PAGE_BYTES = 4, 32, 8192


class Indices(list):  # type: ignore[type-arg]
    """The indices of slots, as a tensor of them behaves."""

    def __getitem__(self, key: Any) -> Any:
        got = super().__getitem__(key)
        return Indices(got) if isinstance(key, slice) else got

    def tolist(self) -> list[int]:
        return list(self)

    def reshape(self, rows: int, columns: int) -> _Rows:
        return _Rows([self[i * columns : (i + 1) * columns] for i in range(rows)])


class _Rows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __getitem__(self, key: tuple[slice, slice]) -> _Rows:
        return _Rows([row[key[1]] for row in self.rows])

    def __sub__(self, other: _Rows) -> _Rows:
        return _Rows([[a - b for a, b in zip(p, q, strict=True)] for p, q in zip(self.rows, other.rows, strict=True)])

    def __eq__(self, other: object) -> Any:
        return SimpleNamespace(all=lambda: all(a == other for row in self.rows for a in row))


def slots(*pages: int) -> Indices:
    """Return the indices of all slots of pages."""
    return Indices(p * PAGE + i for p in pages for i in range(PAGE))


class HostPool:
    """A host pool of pages of one piece, in shared memory."""

    layout, dtype, page_size, page_num = "page_first_direct", "torch.float32", PAGE, PAGES
    layer_num = 2

    def __init__(self) -> None:
        fd = os.memfd_create("pool")
        os.ftruncate(fd, PAGES * PAGE_BYTES)
        self.map = mmap.mmap(fd, PAGES * PAGE_BYTES)
        self.allocator = SimpleNamespace(fds=[fd], mms=[self.map])

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        """Return where the pages of slots are."""
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        return [base + i // PAGE * PAGE_BYTES for i in indices[::PAGE]], [PAGE_BYTES] * (len(indices) // PAGE)

    def fill(self, page: int, byte: int) -> None:
        """Fill a page with a byte."""
        self.map[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes([byte]) * PAGE_BYTES

    def read(self, page: int) -> set[int]:
        """Return the bytes that a page consists of."""
        return set(self.map[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])


class HeadsPool(HostPool):
    """A host pool of a rank's own heads."""

    head_num, head_dim, v_head_dim = 1, 32, 32


class PoolHitPolicy(enum.Enum):
    """As SGLang's."""

    ALL_PAGES = "all"
    TRAILING_PAGES = "trailing"


@dataclass
class PoolTransfer:
    """As SGLang's."""

    name: str
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclass
class PoolTransferResult:
    """As SGLang's."""

    kv_hit_pages: int = 0
    extra_pool_hit_pages: dict[str, int] = field(default_factory=dict)
    restorable_prefix_pages: list[int] | None = None

    @classmethod
    def empty(cls) -> PoolTransferResult:
        """Return what says that there is nothing."""
        return cls()


class HiCacheStorage:
    """As SGLang's."""

    def register_mem_pool_host(self, pool: Any) -> None:
        """Note the anchor pool."""

    def register_mem_host_pool_v2(self, pool: Any, name: str) -> None:
        """Note a pool."""

    def on_host_pools_registered(self) -> None:
        """Say that all pools are noted, which SGLang does from 0.5.23 on."""


class Manager:
    """As SGLang's SchedulerWeightUpdaterManager."""

    def update_weights_from_disk(self, request: Any) -> None:
        """Exchange the weights."""

    def check_weights(self, request: Any) -> None:
        """Check the weights, or set them to random values."""


class Engine:
    """A process of SGLang, whose configuration tests change before they make backends."""

    def __init__(self, socket: Path) -> None:
        self.extra: dict[str, Any] = {"socket": str(socket), "deadline": 5.0}
        self.args: dict[str, Any] = {"model_path": "m", "revision": None, "load_format": "dummy"}
        self.args |= {"quantization": None, "trust_remote_code": False}
        self.ranks, self.rank, self.latent = 1, 0, False
        self.Manager = type("Manager", (Manager,), dict(vars(Manager)))
        self.storage: Any = None

    def backend(self, *pools: tuple[str, Any], register: bool = True) -> Any:
        """Make a backend, and register its pools."""
        config = SimpleNamespace(
            tp_rank=self.rank,
            tp_size=self.ranks,
            pp_size=1,
            dp_rank=0,
            is_mla_model=self.latent,
            extra_config=self.extra,
        )
        made = self.storage.KVConnStorage(config, {})
        if register:
            made.register_mem_pool_host(pools[0][1])
            for name, pool in pools:
                made.register_mem_host_pool_v2(pool, name)
            made.on_host_pools_registered()
        return made

    def flag(self) -> str:
        """Return the flag of the engine's command line that has the backend's configuration."""
        needed = {"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": True}
        return json.dumps(self.extra | needed)


@contextmanager
def engine(socket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Put the stubs where the backend imports SGLang and torch from, until the end."""
    made = Engine(socket)
    seam = {"HiCacheStorage": HiCacheStorage, "HiCacheStorageConfig": Any, "HiCacheStorageExtraInfo": SimpleNamespace}
    seam |= {"PoolHitPolicy": PoolHitPolicy, "PoolTransfer": PoolTransfer, "PoolTransferResult": PoolTransferResult}
    context: dict[str, Callable[[], Any]] = {
        "get_memory": lambda: SimpleNamespace(hicache_storage_backend_extra_config=made.flag()),
        "get_server_args": lambda: SimpleNamespace(**made.args),
        "get_parallel": lambda: SimpleNamespace(dp_rank=0),
        "process_model_config": SimpleNamespace,
    }
    contents: dict[str, dict[str, Any]] = {
        "sglang": {"__version__": "0.5.23"},
        "sglang.srt": {},
        "sglang.srt.runtime_context": context,
        "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.hicache_storage": seam,
        "sglang.srt.managers": {},
        "sglang.srt.managers.scheduler_components": {},
        "sglang.srt.managers.scheduler_components.weight_updater": {"SchedulerWeightUpdaterManager": made.Manager},
        "torch": {"arange": lambda first, end, dtype: Indices(range(first, end)), "int64": int},
    }
    for name in [n for n in sys.modules if n.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        above, _, below = name.rpartition(".")
        if above:
            setattr(sys.modules[above], below, module)
    monkeypatch.delitem(sys.modules, "kvconn.sglang.storage", raising=False)
    made.storage = importlib.import_module("kvconn.sglang.storage")
    try:
        yield made
    finally:
        del sys.modules["kvconn.sglang.storage"]  # it has the stubs
