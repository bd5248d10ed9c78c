"""Versions, entries, devices, contexts and names of errors of the fake driver."""

from __future__ import annotations

import glob
import os

import driver
import pytest


def versions(version: int, batch: bool) -> None:
    cu = driver.Driver(device=None)
    assert cu.get("cuDriverGetVersion", of=__import__("ctypes").c_int) == version
    code, old, status = cu.proc("cuMemcpyBatchAsync", min(version, 12080))
    assert (code, old != 0, status) == (0, batch, 0 if batch else 1)
    assert cu.proc("cuMemcpyBatchAsync", version + 10)[0] == driver.INVALID_VALUE
    if version >= 13000:
        code, new, status = cu.proc("cuMemcpyBatchAsync", 13000)
        assert (code, status) == (0, 0)
        assert new not in (0, old)
    if batch:
        assert cu.proc("cuMemcpyBatchAsync", 12040) == (0, 0, 2)
    assert cu.proc("cuMemAlloc", 3020)[1:] == cu.proc("cuMemAlloc", version)[1:] != (0, 0)
    assert cu.proc("cuMemAlloc", 2000) == (0, 0, 2)
    assert cu.proc("cuNoSuchEntry", version) == (0, 0, 1)


@pytest.mark.parametrize(("name", "version"), [("12040", 12040), ("12080", 12080), ("13000", 13000), ("newest", 13050)])
def test_a_version_decides_which_entries_there_are(scenes, name, version):
    scenes.run(versions, version, version >= 12080, VERSION=name)


def newer(first: int, second: int) -> None:
    cu = driver.Driver()
    assert cu.batch([(0, 0, 1)], [1], 2)[0] == first
    assert cu.batch([(0, 0, 1)], [1], 2, 13000)[0] == second


def test_an_entry_that_the_driver_is_too_old_for_says_so_if_it_is_called(scenes):
    scenes.run(newer, driver.NOT_FOUND, driver.NOT_FOUND, VERSION=12040)
    scenes.run(newer, driver.INVALID_VALUE, driver.NOT_FOUND, VERSION=12080)
    scenes.run(newer, driver.INVALID_VALUE, driver.INVALID_VALUE, VERSION=13000)


def test_every_entry_is_as_in_the_headers_of_nvidia(build):
    """The headers are those of nvidia-cuda-runtime wheels, unpacked; the folders are in KVCONN_CUDA_HEADERS."""
    folders = [f for f in os.environ.get("KVCONN_CUDA_HEADERS", "").split(":") if f]
    if not folders:
        pytest.skip("set KVCONN_CUDA_HEADERS: integration/gpu/registry.py brings NVIDIA's headers")
    for folder in folders:
        assert glob.glob(f"{folder}/cuda.h")
        build("-fsyntax-only", "-DFAKECUDA_REAL_HEADER", f"-I{folder}")


def test_a_wrong_prototype_and_an_unknown_entry_do_not_compile_with_those_headers(build, tmp_path):
    folders = [f for f in os.environ.get("KVCONN_CUDA_HEADERS", "").split(":") if f]
    if not folders:
        pytest.skip("set KVCONN_CUDA_HEADERS: integration/gpu/registry.py brings NVIDIA's headers")
    wrong = tmp_path / "wrong.c"
    for text, says in (
        ("CUresult cuCtxGetFlags(unsigned long *flags) { return !flags; }", "conflicting types for 'cuCtxGetFlags'"),
        ("CUresult cuNoSuchEntry(void) { return 0; }", "no previous prototype for 'cuNoSuchEntry'"),
    ):
        wrong.write_text(f"#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n{text}\n")
        errors = build("-fsyntax-only", "-DFAKECUDA_REAL_HEADER", f"-I{folders[0]}", str(wrong), check=False)
        assert says in errors


def devices() -> None:
    import ctypes

    cu = driver.Driver(device=None)
    assert cu.code.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == driver.NOT_INITIALIZED
    cu.cuInit(0)
    assert cu.get("cuDeviceGetCount", of=ctypes.c_int) == 3
    uuids = [ctypes.create_string_buffer(16) for _ in range(3)]
    for index, uuid in enumerate(uuids):
        cu.cuDeviceGetUuid_v2(uuid, index)
        assert uuid.raw == b"fakecuda-gpu\xc0\xda" + bytes([0, index])
    text = ctypes.create_string_buffer(32)
    cu.cuDeviceGetPCIBusId(text, 32, 2)
    assert text.value == b"0000:03:00.0"
    assert cu.get("cuDeviceGetByPCIBusId", text, of=ctypes.c_int) == 2
    assert cu.code.cuDeviceGetName(text, 32, 3) == driver.INVALID_DEVICE
    assert [cu.attribute(75), cu.attribute(76), cu.attribute(102), cu.attribute(122)] == [9, 0, 1, 1]
    assert [cu.attribute(134, device) for device in range(3)] == [0, 1, 0]
    assert [cu.attribute(128), cu.attribute(18)] == [1, 0]


def test_devices_have_uuids_and_attributes_that_a_test_may_set(scenes):
    scenes.run(devices, DEVICES=3, ATTR="128=1,1:134=1")


def visible() -> None:
    import ctypes

    cu = driver.Driver()
    assert cu.get("cuDeviceGetCount", of=ctypes.c_int) == 2
    uuid = ctypes.create_string_buffer(16)
    cu.cuDeviceGetUuid_v2(uuid, 0)
    assert uuid.raw[15] == 2


def test_visible_devices_change_ordinals_and_no_uuid(scenes):
    scenes.run(visible, DEVICES=4, CUDA_VISIBLE_DEVICES="2,0,9,1")


def no_device() -> None:
    assert driver.Driver(device=None).code.cuInit(0) == driver.NO_DEVICE


def test_no_device(scenes):
    scenes.run(no_device, DEVICES=0)


def contexts() -> None:
    import ctypes
    import threading

    cu = driver.Driver()
    context = cu.get("cuCtxGetCurrent")
    address = cu.alloc(4096)
    codes = []

    def other() -> None:
        codes.append(cu.code.cuMemFree_v2(address))
        cu.cuCtxSetCurrent(context)
        codes.append(cu.code.cuMemFree_v2(address))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert codes == [driver.INVALID_CONTEXT, 0]
    cu.cuCtxPushCurrent_v2(context)
    cu.cuCtxPopCurrent_v2(None)
    cu.cuCtxPopCurrent_v2(None)
    assert cu.code.cuCtxPopCurrent_v2(None) == driver.INVALID_CONTEXT
    cu.cuCtxSetCurrent(context)
    cu.cuCtxSetCurrent(0)
    out = ctypes.c_uint64()
    assert cu.code.cuMemAlloc_v2(ctypes.byref(out), 4096) == driver.INVALID_CONTEXT
    if driver.stand_in():
        assert cu.code.cuCtxSetCurrent(0x1234560) == driver.INVALID_CONTEXT
    cu.use(0)
    cu.alloc(4096), cu.stream(), cu.event()
    cu.cuMemHostRegister_v2(driver.host(4096), 4096, 3)
    cu.cuDevicePrimaryCtxRelease_v2(0)
    cu.cuDevicePrimaryCtxRelease_v2(0)
    assert cu.code.cuMemAlloc_v2(ctypes.byref(out), 4096) == driver.DESTROYED
    assert cu.code.cuDevicePrimaryCtxRelease_v2(0) == driver.INVALID_CONTEXT
    if not driver.stand_in():
        return
    left = {
        k: v
        for k, v in driver.stats().items()
        if k in ("contexts", "allocations", "streams", "events", "registrations", "descriptors") and v
    }
    assert left == {}


def test_a_context_is_current_on_one_thread_and_takes_with_it_what_was_made_in_it(scenes):
    scenes.run(contexts)


def forked() -> None:
    import os

    cu = driver.Driver()
    child = os.fork()
    if child == 0:
        os._exit(cu.code.cuCtxSynchronize())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == driver.NOT_INITIALIZED


def test_a_forked_child_has_no_driver(scenes):
    scenes.run(forked)


def errors() -> None:
    import ctypes

    cu = driver.Driver(device=None)
    for number, name, says in (
        (700, b"CUDA_ERROR_ILLEGAL_ADDRESS", b"illegal memory access"),
        (0, b"CUDA_SUCCESS", b"no error"),
    ):
        text = ctypes.c_char_p()
        cu.cuGetErrorName(number, ctypes.byref(text))
        assert text.value == name
        cu.cuGetErrorString(number, ctypes.byref(text))
        assert says in text.value
    assert cu.code.cuGetErrorName(12345, ctypes.byref(text)) == driver.INVALID_VALUE
    assert text.value is None


def test_errors_have_names(scenes):
    scenes.run(errors)
