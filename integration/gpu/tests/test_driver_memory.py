"""Device memory of the fake driver and pinned memory of the host."""

from __future__ import annotations

import signal

import driver


def allocations() -> None:
    cu = driver.Driver()
    address = cu.alloc(5000)
    data = bytes(range(250)) * 20
    cu.write(address, data)
    assert cu.read(address, 5000) == data
    assert cu.range(address + 4999) == (address, 5000)
    with driver.refused(driver.NOT_FOUND):
        cu.range(address + 5000)
    with driver.refused(driver.INVALID_VALUE):
        cu.write(address + 1, data)
    assert cu.code.cuMemFree_v2(address + 1) == driver.INVALID_VALUE
    driver.counted(allocated_bytes=5000)
    cu.cuMemFree_v2(address)
    assert cu.code.cuMemFree_v2(address) == driver.INVALID_VALUE
    with driver.refused(driver.INVALID_VALUE):
        cu.read(address, 1)
    driver.counted(descriptors=0, mappings=0)


def test_memory_is_allocated_copied_and_freed(scenes):
    scenes.run(allocations)


def host_access() -> None:
    import ctypes

    address = driver.Driver().alloc(4096)
    print("allocated", flush=True)
    ctypes.string_at(address, 1)


def test_a_host_that_reads_device_memory_faults(scenes):
    assert scenes.run(host_access, status=-signal.SIGSEGV) == "allocated\n"


def view() -> None:
    import ctypes

    cu = driver.Driver()
    address = cu.alloc(4096)
    cu.library.fakecuda_view.restype = ctypes.c_void_p
    bytes_of = cu.library.fakecuda_view
    cu.write(address, b"engine")
    assert ctypes.string_at(bytes_of(ctypes.c_uint64(address), ctypes.c_size_t(4096)), 6) == b"engine"
    assert bytes_of(ctypes.c_uint64(address), ctypes.c_size_t(4097)) is None


def test_a_test_sees_the_bytes_elsewhere(stand_in, scenes):
    scenes.run(view)


def out_of_memory() -> None:
    import ctypes

    cu = driver.Driver()
    first = cu.alloc(3 << 20)
    with driver.refused(driver.OUT_OF_MEMORY):
        cu.alloc(2 << 20)
    with driver.refused(driver.OUT_OF_MEMORY):
        cu.create()
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (1 << 20, 4 << 20)
    cu.cuMemFree_v2(first)
    cu.alloc(4 << 20)
    cu.use(1)
    assert cu.read(cu.alloc(4 << 20), 4) == b"\xa5" * 4


def test_a_device_has_so_much_memory_and_it_is_not_zero(scenes):
    scenes.run(out_of_memory, MEM_BYTES=4 << 20, DEVICES=2, POISON=1)


def pointers() -> None:
    import ctypes

    cu = driver.Driver()
    address, here = cu.alloc(4096), driver.host(8192)
    assert cu.pointer(2, address + 5, ctypes.c_uint) == 2
    assert (cu.pointer(11, address + 5), cu.pointer(12, address + 5)) == (address, 4096)
    assert cu.pointer(9, address, ctypes.c_int) == 0
    assert cu.pointer(10, address, ctypes.c_bool)
    assert cu.pointer(7, address) != cu.pointer(7, cu.alloc(4096))
    with driver.refused(driver.INVALID_VALUE):
        cu.pointer(2, here)
    cu.cuMemHostRegister_v2(here, 8192, 3)
    assert cu.pointer(2, here, ctypes.c_uint) == 1
    assert cu.pointer(4, here + 1) == here + 1
    # Several at once: an unknown address is no error.
    kinds = (ctypes.c_int * 3)(2, 9, 11)
    kind, ordinal, start = ctypes.c_uint(7), ctypes.c_int(7), ctypes.c_uint64(7)
    where = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in (kind, ordinal, start)))
    cu.cuPointerGetAttributes(3, kinds, where, address)
    assert (kind.value, ordinal.value, start.value) == (2, 0, address)
    cu.cuPointerGetAttributes(3, kinds, where, 4096)
    assert (kind.value, ordinal.value, start.value) == (0, -2, 0)


def test_what_is_known_of_an_address(scenes):
    scenes.run(pointers)


def registration() -> None:
    cu = driver.Driver()
    here, chunk = driver.host(1 << 20), 256 << 10
    assert cu.code.cuMemHostRegister_v2(here, 0, 3) == driver.INVALID_VALUE
    assert cu.code.cuMemHostRegister_v2(here, chunk, 16) == driver.INVALID_VALUE
    assert cu.code.cuMemHostRegister_v2(here, chunk, 4) == driver.NOT_PERMITTED
    assert cu.code.cuMemHostRegister_v2(16 << 12, chunk, 3) == driver.INVALID_VALUE
    assert cu.code.cuMemHostRegister_v2(cu.alloc(4096), 4096, 3) == driver.INVALID_VALUE
    cu.cuMemHostRegister_v2(here, chunk, 3)
    for at, size in ((here, chunk), (here + chunk - 1, 10), (here - 5, 2 * chunk)):
        assert cu.code.cuMemHostRegister_v2(at, size, 3) in (driver.ALREADY_REGISTERED, driver.INVALID_VALUE)
    assert cu.code.cuMemHostRegister_v2(here + chunk - 1, 10, 3) == driver.ALREADY_REGISTERED
    cu.cuMemHostRegister_v2(here + chunk, chunk, 3)
    assert cu.get("cuMemHostGetDevicePointer_v2", here + 10, 0) == here + 10
    with driver.refused(driver.OUT_OF_MEMORY):
        cu.cuMemHostRegister_v2(here + 2 * chunk, chunk, 3)
    driver.counted(registered_bytes=2 * chunk)
    # A copy over the border of two registrations is refused, and so is one that is half registered.
    device, stream = cu.alloc(4096), cu.stream()
    for at in (here + chunk - 8, here + 2 * chunk - 8, here - 8):
        assert cu.code.cuMemcpyHtoDAsync_v2(device, at, 16, stream) == driver.INVALID_VALUE
        assert cu.code.cuMemcpyDtoHAsync_v2(at, device, 16, stream) == driver.INVALID_VALUE
        assert cu.batch([(device, here, 16), (device + 64, at, 16)], [1], stream) == (driver.INVALID_VALUE, 1)
    cu.cuMemcpyHtoDAsync_v2(device, here + chunk - 8, 8, stream)
    assert cu.code.cuMemHostUnregister(here + 8) == driver.NOT_REGISTERED
    cu.cuMemHostUnregister(here)
    assert cu.code.cuMemHostUnregister(here) == driver.NOT_REGISTERED
    own = cu.get("cuMemHostAlloc", 4096, 3)
    driver.put(own, b"mine")
    assert cu.code.cuMemHostUnregister(own) == driver.NOT_REGISTERED
    cu.cuMemFreeHost(own)
    assert cu.code.cuMemFreeHost(own) == driver.INVALID_VALUE
    driver.counted(registrations=1)


def test_host_memory_is_registered_in_chunks_that_no_copy_crosses(scenes):
    scenes.run(registration, PIN_BYTES=512 << 10)
