"""An engine's KV cache in tensors of torch, on a real kvconnd: a scheduler and one rank."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from kvconn.client import Alloc, GroupLayout, Options, PlannedLoad, Run, Scheduled, SchedulerClient, Step, WorkerClient
from kvconn.cuda import DeviceMemory
from kvconn.cuda.regions import Range

BLOCK_SIZE = 16
WAIT_S = 60
REGISTRATION_S = 120


def memory_of(tensors: Sequence[torch.Tensor]) -> DeviceMemory:
    """Tensors as what a rank registers, in order with the stream that is current in torch."""
    ranges = [Range(t.data_ptr(), t.nbytes) for t in tensors]
    return DeviceMemory([[r] for r in ranges], 0, lambda: torch.cuda.current_stream().cuda_stream)


def expect_held_open(socket: str, held: bool) -> None:
    """Check whether engines' memory is mapped in the daemon's copiers: allocations and imports.

    The stand-in counts them, a real driver does not.
    """
    total = 0
    for stats in Path(socket).parent.glob("stats.*"):
        for name, number in struct.iter_unpack("<24sq", stats.read_bytes()):
            total += number if name.rstrip(b"\0") in (b"mappings", b"vmm_handles", b"ipc_imports") else 0
    assert (total > 0) == held or "KVCONN_CUDA_LIBRARY" in os.environ, total


class Cache:
    """Blocks in bytes of tensors, and a copy of them in plain memory that is changed alike.

    A run's pieces are written and read one by one: torch makes a kernel of anything that is not contiguous, and the
    fake runs none.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], runs: Sequence[Run], blocks: int, seed: int) -> None:
        self.tensors, self.runs, self.blocks = list(tensors), list(runs), blocks
        self._random = torch.Generator().manual_seed(seed)
        self._held: dict[int, list[torch.Tensor]] = {}

    def _pieces(self, block: int) -> list[torch.Tensor]:
        starts = [
            (run, run.offset + layer * run.layer_stride + block * run.block_stride)
            for run in self.runs
            for layer in range(run.layers)
        ]
        return [self.tensors[run.region][at : at + run.size] for run, at in starts]

    def fill(self) -> None:
        """Give all blocks new bytes."""
        for block in range(self.blocks):
            pieces = self._pieces(block)
            self._held[block] = [
                torch.randint(0, 256, p.shape, dtype=torch.uint8, generator=self._random).pin_memory() for p in pieces
            ]
            for piece, data in zip(pieces, self._held[block], strict=True):
                piece.copy_(data, non_blocking=True)  # what follows is ordered by the stream

    def held(self) -> dict[int, list[torch.Tensor]]:
        """What the blocks should be."""
        return dict(self._held)

    def expect(self, block: int, data: list[torch.Tensor]) -> None:
        """Say that a block was loaded."""
        self._held[block] = data

    def wrong(self) -> list[int]:
        """The blocks that are not what they should be."""
        torch.cuda.synchronize()
        return [
            block
            for block, data in self._held.items()
            if not all(torch.equal(p.cpu(), d) for p, d in zip(self._pieces(block), data, strict=True))
        ]


class Engine:
    """A scheduler and a rank, with one layer group."""

    def __init__(self, socket: str, cache: Cache) -> None:
        groups = [{"layers": 2, "kv_heads": 1, "head_size": 64, "layout": "LB"}]
        manifest = {
            "engine": "test/1",
            "model": "m",
            "kv_dtype": "bfloat16",
            "block_size": BLOCK_SIZE,
            "groups": groups,
        }
        manifest |= {"tensor_parallel": 1, "pipeline_parallel": 1, "key_scheme": "tokens", "hash_scheme": "kvconn-1"}
        options = Options(socket=socket, engine="e", manifest=json.dumps(manifest).encode(), timeout=10.0)
        self.cache = cache
        self.scheduler, self.worker = SchedulerClient(options), WorkerClient(options, 0)
        self.requests = 0
        assert self.scheduler.connect()

    def register(self) -> None:
        """Hand the daemon the cache, and wait until it has it."""
        self.worker.register_memory(memory_of(self.cache.tensors), [GroupLayout(self.cache.blocks, self.cache.runs)])
        self._await_registration()

    def connect_again(self) -> None:
        """Wait for another daemon on the same socket."""
        until = time.monotonic() + WAIT_S
        while not self.scheduler.connect():
            assert time.monotonic() < until, "there is no daemon"
            time.sleep(0.005)
        self._await_registration()

    def _await_registration(self) -> None:
        until = time.monotonic() + REGISTRATION_S
        while self.worker._registration() is None:
            assert time.monotonic() < until, "the daemon does not take the memory"
            time.sleep(0.005)

    def unregister(self) -> None:
        """Take the cache back."""
        assert self.worker.unregister(WAIT_S)

    def save(self, tokens: list[int], blocks: list[int]) -> None:
        """Save a prompt whose blocks lie in the given ones."""
        request = self._request()
        self.scheduler.match(request, tokens)
        scheduled = Scheduled(request, [blocks], True, 0, len(tokens), [])
        plan = self.scheduler.step(Step(scheduled=[scheduled]), self.scheduler.session)
        result = self.worker.save(plan.meta)
        assert (result.taken, result.dropped) == (len(blocks), 0), result
        self.scheduler.step(Step(finished=[request]), self.scheduler.session)

    def load(self, tokens: list[int], blocks: list[int]) -> None:
        """Load a prompt into the given blocks."""
        request, wanted = self._request(), len(blocks) * BLOCK_SIZE
        until = time.monotonic() + WAIT_S
        while self.scheduler.match(request, tokens).tokens < wanted:
            assert time.monotonic() < until, "what was saved is not offered"
            time.sleep(0.005)
        plan = self.scheduler.step(Step(allocs=[Alloc(request, [blocks], 0, wanted)]), self.scheduler.session)
        assert plan.loads == [PlannedLoad(request, blocks)]
        self.worker.load(plan.meta, plan.loads)
        while self.worker.busy:
            for ended in self.worker.poll():
                assert (ended.request, ended.failed_blocks) == (request, [])
            assert time.monotonic() < until, "the load does not end"
            time.sleep(0.001)
        self.scheduler.loaded([request], [], self.scheduler.session)
        self.scheduler.step(Step(finished=[request]), self.scheduler.session)

    def round_trip(self, seed: int) -> None:
        """Save half of the blocks, give all of them other bytes, and load into some: those alone change."""
        rng = random.Random(seed)
        tokens = [rng.randrange(1 << 16) for _ in range(self.cache.blocks // 2 * BLOCK_SIZE + 1)]
        self.cache.fill()
        saved, before = rng.sample(range(self.cache.blocks), self.cache.blocks // 2), self.cache.held()
        self.save(tokens, saved)
        assert self.cache.wrong() == []
        self.cache.fill()
        self.reload(tokens, rng.sample(range(self.cache.blocks), len(saved)), [before[b] for b in saved])

    def reload(self, tokens: list[int], blocks: list[int], data: list[list[torch.Tensor]]) -> None:
        """Load a prompt whose bytes are known, and compare all of the cache."""
        self.load(tokens, blocks)
        for block, bytes_of_it in zip(blocks, data, strict=True):
            self.cache.expect(block, bytes_of_it)
        assert self.cache.wrong() == []

    def close(self) -> None:
        """End both connections."""
        self.scheduler.close()
        self.worker.close()

    def _request(self) -> str:
        self.requests += 1
        return f"r{self.requests}"
