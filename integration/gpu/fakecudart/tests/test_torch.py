"""A CUDA build of torch on the fake libraries: bytes, streams, events, other processes, and what it must not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # scenes have it in their processes
    import torch

ALLOCATORS = {"caching": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


@pytest.fixture(params=ALLOCATORS)
def allocator(request):
    return ALLOCATORS[request.param]


def test_bytes_go_both_ways(scenes, allocator):
    def scene():
        assert torch.version.cuda.startswith("13.")
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        expected = torch.randint(0, 256, (50_000_000,), dtype=torch.uint8)
        tensor = torch.empty_like(expected, device="cuda")
        tensor.copy_(expected)
        assert torch.equal(tensor.cpu(), expected)
        pinned = torch.empty_like(expected, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(pinned, expected)
        again = tensor.clone()
        del tensor
        assert torch.equal(again.cpu(), expected)
        assert torch.cuda.memory_allocated() >= expected.nbytes

    scenes.run(scene, **allocator)


def test_fills_are_what_they_say(scenes, allocator):
    def scene():
        for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32):
            for value in (0, 1, 3, -1 if dtype.is_signed else 255):
                expected = torch.full((3, 1000), value, dtype=dtype)
                if dtype == torch.int64 and value in (1, 3):
                    # A value of eight bytes that differ is none that the driver can set.
                    with pytest.raises(RuntimeError, match="not supported"):
                        torch.full((3, 1000), value, dtype=dtype, device="cuda")
                    continue
                got = torch.full((3, 1000), value, dtype=dtype, device="cuda")
                assert torch.equal(got.cpu(), expected), (dtype, value)
        assert not torch.zeros(1001, device="cuda").cpu().any()

    scenes.run(scene, FAKECUDA_POISON=1, **allocator)


def test_what_it_cannot_compute_it_refuses(scenes):
    def scene():
        tensor = torch.ones(1000, device="cuda")
        for compute in (
            lambda: tensor + 1,
            lambda: tensor.sum(),
            lambda: torch.randn(10, device="cuda"),
            lambda: torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda"),
            lambda: torch.empty(9, 9, device="cuda").t().contiguous(),
        ):
            with pytest.raises(RuntimeError):
                compute()
        assert torch.equal(tensor.cpu(), torch.ones(1000))

    scenes.run(scene)


def test_streams_and_events_keep_their_order(scenes):
    def scene():
        import ctypes

        expected = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8).pin_memory()
        first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
        written, read = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
        tensor, out = torch.zeros_like(expected, device="cuda"), torch.empty_like(expected, pin_memory=True)
        torch.cuda.synchronize()
        # The first stream waits for the gate, so that the copy is not over before it is looked at.
        gate = torch.zeros(1, dtype=torch.int32).pin_memory()
        wait_for = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        wait_for.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]
        assert wait_for(first.cuda_stream, gate.data_ptr(), 1, 0) == 0
        with torch.cuda.stream(first):
            tensor.copy_(expected, non_blocking=True)
            written.record()
        was_written = written.query()
        gate[0] = 1
        assert not was_written
        with torch.cuda.stream(second):
            second.wait_event(written)
            out.copy_(tensor, non_blocking=True)
            read.record()
        read.synchronize()
        assert written.query()
        assert torch.equal(out, expected)

    scenes.run(scene, FAKECUDA_DELAY_US=50_000)


def test_devices_are_apart(scenes):
    def scene():
        assert torch.cuda.device_count() == 2
        one, two = (torch.full((100,), i, dtype=torch.uint8, device=f"cuda:{i}") for i in range(2))
        names = {str(torch.cuda.get_device_properties(i).uuid) for i in range(2)}
        assert len(names) == 2
        assert (one.cpu()[0], two.cpu()[0]) == (0, 1)
        with torch.cuda.device(1):
            assert torch.empty(1, device="cuda").device.index == 1

    scenes.run(scene, FAKECUDA_DEVICES=2)


def test_no_more_than_the_device_has(scenes, allocator):
    def scene():
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        tensor = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        assert not tensor.cpu().any()

    scenes.run(scene, FAKECUDA_MEM_BYTES=1 << 30, **allocator)


def test_an_older_driver_is_refused(scenes):
    def scene():
        assert not torch.cuda.is_available()
        with pytest.raises(RuntimeError, match=r"insufficient|too old"):
            torch.empty(1, device="cuda")

    scenes.run(scene, FAKECUDA_VERSION=12080)


def test_a_lost_device_is_an_error(scenes):
    def scene():
        tensor = torch.zeros(100, dtype=torch.uint8, device="cuda")
        with pytest.raises(RuntimeError, match="illegal"):
            tensor.copy_(torch.ones(100, dtype=torch.uint8))

    scenes.run(scene, FAKECUDA_FAULT="cuMemcpyAsync:1+:sticky=700")


def test_another_process_of_torch_reads_the_memory(scenes, allocator):
    def scene():
        import pickle
        import subprocess
        import sys

        from torch.multiprocessing.reductions import reduce_tensor

        tensor = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        expected = torch.randint(0, 256, tensor.shape, dtype=torch.uint8)
        tensor.copy_(expected)
        code = "import pickle, sys, torch; f, a = pickle.load(sys.stdin.buffer); t = f(*a).cpu(); "
        code += "sys.stdout.buffer.write(bytes(t[-1000:].tolist()))"
        shared = pickle.dumps(reduce_tensor(tensor))
        got = subprocess.run([sys.executable, "-c", code], input=shared, stdout=subprocess.PIPE, check=True).stdout
        assert got == bytes(expected[-1000:].tolist())

    scenes.run(scene, **allocator)
