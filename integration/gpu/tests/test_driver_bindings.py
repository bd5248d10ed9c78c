"""NVIDIA's own bindings drive the fake driver and play the engine. They find the entries themselves."""

from __future__ import annotations

import os

import driver
import pytest

FOLDERS = [folder for folder in os.environ.get("KVCONN_CUDA_BINDINGS", "").split(":") if folder]


def engine() -> None:
    """Allocate both kinds of memory, fill them by copies, and hand them to a daemon."""
    import ctypes

    from cuda.bindings import driver as nvidia

    def ok(answer):
        assert answer[0] == nvidia.CUresult.CUDA_SUCCESS, answer[0]
        return answer[1] if len(answer) == 2 else answer[1:]

    ok(nvidia.cuInit(0))
    version = ok(nvidia.cuDriverGetVersion())
    device = ok(nvidia.cuDeviceGet(0))
    uuid = bytes(ok(nvidia.cuDeviceGetUuid(device)).bytes)
    assert not driver.stand_in() or uuid == b"fakecuda-gpu\xc0\xda\0\0"
    ok(nvidia.cuCtxSetCurrent(ok(nvidia.cuDevicePrimaryCtxRetain(device))))
    stream, event = ok(nvidia.cuStreamCreate(1)), ok(nvidia.cuEventCreate(2))
    memory, here = ok(nvidia.cuMemAlloc(8192)), ok(nvidia.cuMemHostAlloc(8192, 3))
    ctypes.memmove(here, b"legacy" * 1000, 6000)
    at = nvidia.CUdeviceptr
    try:
        order = nvidia.CUmemcpyAttributes()
        order.srcAccessOrder = nvidia.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        pairs = [memory, at(int(memory) + 3000)], [at(here), at(here + 3000)]
        ok(nvidia.cuMemcpyBatchAsync(*pairs, [3000, 3000], 2, [order], [0], 1, stream))
    except RuntimeError:
        # The bindings miss an entry, which each of them needs its own version for.
        assert version < (13000 if hasattr(nvidia, "cuMemcpyWithAttributesAsync") else 12080)
        ok(nvidia.cuMemcpyHtoDAsync(memory, here, 6000, stream))
    ok(nvidia.cuStreamWriteValue64(stream, int(memory) + 8000, 77, 0))
    ok(nvidia.cuStreamWaitValue64(stream, int(memory) + 8000, 77, 0))
    ok(nvidia.cuEventRecord(event, stream))
    ok(nvidia.cuEventSynchronize(event))
    properties, access = nvidia.CUmemAllocationProp(), nvidia.CUmemAccessDesc()
    properties.type = nvidia.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = nvidia.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind = nvidia.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    properties.requestedHandleTypes = kind
    access.location = properties.location
    access.flags = nvidia.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    size = ok(nvidia.cuMemGetAllocationGranularity(properties, nvidia.CUmemAllocationGranularity_flags(0)))
    created, mapped = ok(nvidia.cuMemCreate(size, properties, 0)), ok(nvidia.cuMemAddressReserve(size, 0, 0, 0))
    ok(nvidia.cuMemMap(mapped, size, 0, created, 0))
    ok(nvidia.cuMemSetAccess(mapped, size, [access], 1))
    ok(nvidia.cuMemsetD8(mapped, 86, size))
    ok(nvidia.cuMemRelease(created))
    kept = ok(nvidia.cuMemRetainAllocationHandle(int(mapped)))
    handle = ok(nvidia.cuIpcGetMemHandle(memory))
    exported = int(ok(nvidia.cuMemExportToShareableHandle(kept, kind, 0)))
    print(ctypes.string_at(handle.getPtr(), 64).hex(), exported, flush=True)
    input()


def daemon(pid: int) -> None:
    import os

    cu = driver.Driver()
    handle, fd = input().split()
    legacy = cu.get("cuIpcOpenMemHandle_v2", driver.Handle64.from_buffer_copy(bytes.fromhex(handle)), 1)
    assert cu.range(legacy) == (legacy, 8192)
    assert cu.read(legacy, 6000) == b"legacy" * 1000
    assert cu.read(legacy + 8000, 8) == b"M" + bytes(7)
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    mapped = cu.reserve(driver.GRANULE)
    cu.cuMemMap(mapped, driver.GRANULE, 0, cu.get("cuMemImportFromShareableHandle", own, driver.POSIX_FD), 0)
    cu.allow(mapped, driver.GRANULE)
    assert cu.read(mapped, driver.GRANULE) == b"V" * driver.GRANULE


@pytest.mark.parametrize("version", ["12040", "12080", "13000", "newest"])
def test_bindings_of_nvidia_play_the_engine(scenes, version):
    if not FOLDERS:
        pytest.skip("set KVCONN_CUDA_BINDINGS: integration/gpu/registry.py brings NVIDIA's bindings")
    settings = {} if version == "newest" else {"VERSION": version}
    for folder in FOLDERS:
        a = scenes.start(engine, path=folder, **settings)
        printed = a.stdout.readline()
        assert printed, a.communicate()[1]
        b = scenes.start(daemon, a.pid)
        _, errors = b.communicate(printed, timeout=60)
        assert b.returncode == 0, errors
        _, errors = a.communicate("\n", timeout=60)
        assert a.returncode == 0, errors
