"""How pages lie in SGLang's host pools, as the daemon maps them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvconn.client import GroupLayout, Run

_MAX_REGIONS = 16


@dataclass(frozen=True)
class Pool:
    """A host pool: its name for SGLang, the pool itself, and where its pages are in the session's regions.

    Slot n of `layout` is the pool's page n.
    """

    name: str
    host: Any
    layout: GroupLayout

    @property
    def page_slots(self) -> int:
        """SGLang's own slots in a page: an index of its pool, divided by this, is the page's number."""
        return int(self.host.page_size)

    @property
    def shape(self) -> str:
        """The sizes of a page's pieces in their order: part of what tells one form of KV from another."""
        sizes = [run.size for run in self.layout.runs]
        return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes))

    def pages(self, indices: Any, count: int) -> list[int] | None:
        """Return the numbers of `count` pages, given the indices of their slots; None if they aren't whole pages."""
        size = self.page_slots
        if indices is None or len(indices) != count * size:
            return None
        starts: list[int] = indices[::size].tolist()
        pages = [start // size for start in starts]
        whole = all(start == page * size for start, page in zip(starts, pages, strict=True))
        rows = indices.reshape(count, size)
        whole = whole and bool((rows[:, 1:] - rows[:, :-1] == 1).all())
        return pages if whole and all(0 <= page < self.layout.blocks for page in pages) else None


class Pools:
    """The host pools of a rank, and the descriptors of the shared memory that they are in."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.fds: list[int] = []
        self.windows: dict[str, int] = {}
        """How many of a prompt's last pages are needed to go on, of the pools where not all are."""

    def add(self, name: str, host: Any) -> bool:
        """Add a pool. Returns false where it is there already: the anchor pool is registered twice.

        Raises ValueError for a pool that no other process can map, whose pages are not at fixed distances, or whose
        name another one has.
        """
        if any(pool.host is host for pool in self.pools):
            return False
        if self.group(name) is not None:
            raise ValueError(f"kvconn: SGLang's host pool {name!r} has come again with other memory")
        if getattr(host, "shared_allocation_domain", None) is not None:
            raise ValueError(f"kvconn: SGLang may move pages in its host pool {name!r}, which is not supported")
        maps = _maps(name, host)
        if len(self.fds) + len(maps) > _MAX_REGIONS:
            raise ValueError(f"kvconn: SGLang's host pools have more than {_MAX_REGIONS} buffers")
        layout = _layout(name, host, maps, len(self.fds))
        self.fds += [m.fd for m in maps]
        self.pools.append(Pool(name, host, layout))
        return True

    def group(self, name: str) -> int | None:
        """Return the number of a pool's layer group, None where there is no such pool."""
        for i, pool in enumerate(self.pools):
            if pool.name == name:
                return i
        return None


@dataclass(frozen=True)
class _Map:
    fd: int
    base: int
    size: int


def _maps(name: str, host: Any) -> list[_Map]:
    """Return the shared memory that a pool is in."""
    allocator = getattr(host, "allocator", None)
    fds, maps = getattr(allocator, "fds", None), getattr(allocator, "mms", None)
    if not fds or not maps or len(fds) != len(maps) or any(fd is None for fd in fds):
        raise ValueError(
            f"kvconn: SGLang's host pool {name!r} is not in shared memory: put"
            ' "allocator": "shm" in --hicache-storage-backend-extra-config, as text (SGLang ignores it in an @file)'
        )
    return [_Map(fd, ctypes.addressof(ctypes.c_char.from_buffer(m)), len(m)) for fd, m in zip(fds, maps, strict=True)]


def _layout(name: str, host: Any, maps: Sequence[_Map], first_region: int) -> GroupLayout:
    """Return where a pool's pages are, by the addresses that the pool gives of three of them."""
    pages = int(host.page_num)
    if pages < 1:
        raise ValueError(f"kvconn: SGLang's host pool {name!r} has no pages")
    pointers, sizes = _pieces(name, host, 0)
    second = _pieces(name, host, 1)[0] if pages > 1 else pointers
    last = _pieces(name, host, pages - 1)[0]
    runs = []
    for pointer, size, after, end in zip(pointers, sizes, second, last, strict=True):
        stride = after - pointer if pages > 1 else size
        if stride < size or pointer + (pages - 1) * stride != end:
            raise ValueError(f"kvconn: pages of SGLang's host pool {name!r} are not at fixed distances")
        region = _region(maps, pointer, end + size)
        if region is None:
            raise ValueError(f"kvconn: SGLang's host pool {name!r} has pages outside of its shared memory")
        runs.append(Run(first_region + region, pointer - maps[region].base, 1, size, stride, size))
    return GroupLayout(pages, runs)


def _pieces(name: str, host: Any, page: int) -> tuple[list[int], list[int]]:
    """Return the addresses and sizes of a page's pieces."""
    import torch

    size = int(host.page_size)
    try:
        pointers, sizes = host.get_page_buffer_meta(torch.arange(page * size, (page + 1) * size, dtype=torch.int64))
    except (ValueError, NotImplementedError, TypeError) as err:
        raise ValueError(f"kvconn: layout {host.layout!r} of SGLang's host pool {name!r}: {err}") from err
    if not pointers or len(pointers) != len(sizes):
        raise ValueError(f"kvconn: SGLang's host pool {name!r} does not say where its pages are")
    return [int(p) for p in pointers], [int(s) for s in sizes]


def _region(maps: Sequence[_Map], begin: int, end: int) -> int | None:
    for i, m in enumerate(maps):
        if m.base <= begin and end <= m.base + m.size:
            return i
    return None
