"""KV caches in tensors of a CUDA build of torch, on a real kvconnd: every way in which torch allocates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # scenes have it in their processes
    import torch

REAL = bool(os.environ.get("KVCONN_CUDA_LIBRARY"))
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
# vLLM's allocator makes memory that can be shared only where the device knows fabric handles, and shares it by
# descriptors where fabric handles are refused.
CUMEM = {"FAKECUDA_ATTR": "128=1", "FAKECUDA_IMEX": 0}


def test_the_caching_allocator(scenes, daemon):
    def scene(socket):
        from kvconn.client import Run
        from torch_engine import Cache, Engine, expect_held_open

        piece, blocks = 1 << 16, 32
        # Both lie in one allocation of torch's, so one begins in its midst.
        keys, values = (torch.empty(2 * blocks * piece, dtype=torch.uint8, device="cuda") for _ in range(2))
        runs = [Run(region, 0, 2, blocks * piece, piece, piece) for region in range(2)]
        engine = Engine(socket, Cache([keys, values], runs, blocks, seed=1))
        assert values.data_ptr() - keys.data_ptr() == keys.nbytes
        engine.register()
        engine.round_trip(1)
        expect_held_open(socket, True)
        engine.unregister()
        expect_held_open(socket, False)
        engine.register()
        engine.round_trip(2)
        engine.close()

    scenes.run(scene, daemon)


def test_one_tensor_over_several_allocations(scenes, daemon):
    def scene(socket):
        from kvconn.client import Run
        from torch_engine import Cache, Engine

        # No piece divides torch's 20 MiB, so some lie in two allocations.
        piece, blocks = 704 << 10, 64
        tensor = torch.empty(2 * blocks * piece, dtype=torch.uint8, device="cuda")
        engine = Engine(socket, Cache([tensor], [Run(0, 0, 2, blocks * piece, piece, piece)], blocks, seed=2))
        engine.register()
        engine.round_trip(3)
        engine.close()

    scenes.run(scene, daemon, **EXPANDABLE)


def test_thousands_of_allocations(scenes, daemon):
    def scene(socket, count):
        from kvconn.client import Run
        from torch_engine import Cache, Engine

        unit, piece, blocks = 20 << 20, 1 << 16, count // 66
        tensor = torch.empty(count * unit, dtype=torch.uint8, device="cuda")
        # Each piece begins in one allocation and ends in the next.
        run = Run(0, unit - piece // 2, 4, 16 * unit, 66 * unit, piece)
        engine = Engine(socket, Cache([tensor], [run], blocks, seed=3))
        engine.register()
        engine.round_trip(4)
        engine.close()

    # A real GPU's memory has room for fewer.
    scenes.run(scene, daemon, 200 if REAL else 4000, **EXPANDABLE)


def test_the_daemon_copies_what_the_stream_has_written(scenes, daemon):
    def scene(socket):
        from kvconn.client import Run
        from torch_engine import Cache, Engine

        piece, blocks = 1 << 16, 16
        tensor = torch.zeros(2 * blocks * piece, dtype=torch.uint8, device="cuda")
        engine = Engine(socket, Cache([tensor], [Run(0, 0, 2, blocks * piece, piece, piece)], blocks, seed=5))
        engine.register()
        for seed in range(3):
            # What is saved is written late, each time by another stream, and the engine does not wait.
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                engine.round_trip(seed)
        engine.close()

    # Each of the copies that fill the cache waits this long.
    scenes.run(scene, daemon, FAKECUDA_DELAY_US=5000)


def test_a_daemon_that_comes_back(scenes, daemons):
    def scene(socket):
        import sys

        from kvconn.client import Run
        from torch_engine import Cache, Engine

        piece, blocks = 704 << 10, 32
        tensor = torch.empty(2 * blocks * piece, dtype=torch.uint8, device="cuda")
        engine = Engine(socket, Cache([tensor], [Run(0, 0, 2, blocks * piece, piece, piece)], blocks, seed=6))
        engine.register()
        engine.round_trip(6)
        print("ready", flush=True)
        sys.stdin.readline()  # the daemon was killed, and another started
        engine.connect_again()
        engine.round_trip(7)
        engine.close()

    process = scenes.start(scene, daemons.start(), **EXPANDABLE)
    try:
        assert process.stdout.readline() == "ready\n"
        daemons.kill()
        daemons.start()
        out, err = process.communicate("go\n", timeout=120)
        assert process.returncode == 0, out + err
    finally:
        process.kill()
        process.wait()


def test_vllms_own_allocator_sleeps_and_wakes(scenes, daemon, allocator_folder):
    def scene(socket, folder):
        from cumem_pool import Pool
        from kvconn.client import Run
        from torch_engine import Cache, Engine, expect_held_open

        pool = Pool(folder)
        piece, blocks = 1 << 16, 32
        with pool:
            tensor = torch.empty(2 * blocks * piece, dtype=torch.uint8, device="cuda")
        engine = Engine(socket, Cache([tensor], [Run(0, 0, 2, blocks * piece, piece, piece)], blocks, seed=4))
        engine.register()
        engine.round_trip(5)

        # What was saved before the sleep is loaded into the memory that comes after it, at the same addresses.
        tokens, first = list(range(8 * 16 + 1)), list(range(8))
        engine.cache.fill()
        before = engine.cache.held()
        engine.save(tokens, first)
        used = torch.cuda.mem_get_info()[0]
        expect_held_open(socket, True)
        engine.unregister()
        expect_held_open(socket, False)  # it would stay allocated
        pool.sleep()
        assert torch.cuda.mem_get_info()[0] > used
        pool.wake()
        engine.cache.fill()
        engine.register()
        engine.reload(tokens, list(range(20, 28)), [before[b] for b in first])
        engine.close()
        del engine, tensor
        pool.close()

    scenes.run(scene, daemon, str(allocator_folder), **CUMEM)


def test_vllms_own_allocator_may_make_memory_that_nobody_can_share(stand_in, scenes, torch_folder):
    def scene(folder):
        from cumem_pool import Pool
        from kvconn.cuda import NotShareable
        from torch_engine import memory_of

        pool = Pool(folder)
        with pool:
            tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(NotShareable, match="without sleep mode"):
            memory_of([tensor])
        del tensor
        pool.close()

    scenes.run(scene, str(torch_folder))
