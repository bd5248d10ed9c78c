"""Streams, events, values in memory, copies and batches of the fake driver."""

from __future__ import annotations

import driver
import pytest


def order() -> None:
    cu = driver.Driver()
    device, here = cu.alloc(4096), driver.host(4096)
    cu.cuMemHostRegister_v2(here, 4096, 3)
    one, two, done, never = cu.stream(), cu.stream(), cu.event(), cu.event()
    go = cu.hold(one)
    cu.cuMemsetD8Async(device, 7, 4096, one)
    cu.cuMemsetD32Async(device, 0x01020304, 2, one)
    cu.cuEventRecord(done, one)
    assert cu.code.cuStreamQuery(one) == cu.code.cuEventQuery(done) == driver.NOT_READY
    cu.cuStreamWaitEvent(two, done, 0)
    cu.cuStreamWaitEvent(two, never, 0)
    cu.cuMemcpyDtoHAsync_v2(here, device, 4096, two)
    assert cu.code.cuStreamQuery(two) == driver.NOT_READY
    go()
    cu.cuStreamSynchronize(two)
    import ctypes

    assert ctypes.string_at(here, 10) == bytes([4, 3, 2, 1] * 2 + [7, 7])
    assert cu.code.cuStreamQuery(one) == cu.code.cuEventQuery(done) == cu.code.cuEventQuery(never) == 0
    # The legacy stream is in order with a blocking stream, and not with one that is not.
    blocking = cu.stream(0)
    go = cu.hold(blocking)
    cu.cuMemsetD8Async(device, 1, 4096, blocking)
    cu.cuMemcpyDtoHAsync_v2(here, device, 1, 0)
    cu.cuMemsetD8Async(device, 1, 1, one)
    cu.cuStreamSynchronize(one)
    assert cu.code.cuStreamQuery(0) == cu.code.cuStreamQuery(blocking) == driver.NOT_READY
    go()
    cu.cuStreamSynchronize(0)
    assert ctypes.string_at(here, 1) == b"\1"
    go = cu.hold(0)
    cu.cuMemsetD8Async(device, 2, 1, blocking)
    cu.cuMemsetD8Async(device, 2, 1, one)
    cu.cuStreamSynchronize(one)
    assert cu.code.cuStreamQuery(blocking) == driver.NOT_READY
    go()
    cu.cuStreamSynchronize(blocking)
    assert cu.code.cuStreamQuery(blocking) == 0
    if not driver.stand_in():
        return
    # A real driver is not asked about stale handles, which may crash it.
    cu.cuStreamDestroy_v2(two)
    assert cu.stream() != two, "a stale handle is no other's"
    assert cu.code.cuStreamQuery(two) == cu.code.cuMemsetD8Async(device, 1, 1, two) == driver.INVALID_HANDLE
    cu.cuEventDestroy_v2(done)
    assert cu.code.cuEventQuery(done) == cu.code.cuStreamQuery(0x77777770) == driver.INVALID_HANDLE


@pytest.mark.parametrize("delay", [0, 2000])
def test_streams_take_their_time_and_keep_their_order(scenes, delay):
    scenes.run(order, DELAY_US=delay)


def destroyed() -> None:
    import ctypes

    cu = driver.Driver()
    device, here, stream, event = cu.alloc(64), driver.host(4096), cu.stream(), cu.event()
    cu.cuMemHostRegister_v2(here, 4096, 3)
    cu.cuMemsetD8Async(device, 9, 64, stream)
    cu.cuMemcpyDtoHAsync_v2(here, device, 64, stream)
    cu.cuEventRecord(event, stream)
    cu.cuStreamDestroy_v2(stream)
    cu.cuEventDestroy_v2(event)
    cu.cuMemFree_v2(device)
    assert ctypes.string_at(here, 64) == b"\t" * 64
    driver.counted(streams=0, events=0, allocations=0)


def test_what_was_submitted_is_done_though_stream_event_and_memory_end(scenes):
    scenes.run(destroyed, DELAY_US=20000)


def values(wide: bool) -> None:
    import ctypes
    import threading

    cu = driver.Driver()
    write = cu.code.cuStreamWriteValue64_v2 if wide else cu.code.cuStreamWriteValue32_v2
    wait = cu.code.cuStreamWaitValue64_v2 if wide else cu.code.cuStreamWaitValue32_v2
    page, device, compute, store = driver.host(4096), cu.alloc(4096), cu.stream(), cu.stream()
    assert write(compute, page, 1, 0) == driver.INVALID_VALUE, "not pinned"
    cu.cuMemHostRegister_v2(page, 4096, 3)
    assert write(compute, page + 2, 1, 0) == wait(compute, page + 2, 1, 0) == driver.INVALID_VALUE
    assert write(compute, page + 4096, 1, 0) == driver.INVALID_VALUE
    assert write(compute, page, 41, 0) == write(compute, page, 42, 1) == 0
    cu.cuStreamSynchronize(compute)
    number = (ctypes.c_uint64 if wide else ctypes.c_uint32).from_address(page)
    assert number.value == 42
    ones = 2 ** (64 if wide else 32) - 1
    for flags, value, before, reaches in ((0, 43, 42, 44), (1, 7, 8, 7), (2, 8, 7, 12), (3, 1, ones - 1, 0xF0)):
        number.value = before
        assert wait(store, page, value, flags) == 0
        assert cu.code.cuStreamQuery(store) == driver.NOT_READY
        threading.Timer(0.01, lambda to: setattr(number, "value", to), [reaches]).start()
        cu.cuStreamSynchronize(store)
    # GEQ is cyclic: a number that has just wrapped is reached.
    number.value = 3
    assert wait(store, page, ones - 4, 0) == 0
    cu.cuStreamSynchronize(store)
    assert wait(store, device, 5, 1) == 0
    assert write(compute, device, 5, 0) == 0
    cu.cuStreamSynchronize(store)


@pytest.mark.parametrize("wide", [True, False])
def test_a_stream_writes_values_and_waits_for_them(scenes, wide):
    scenes.run(values, wide)


def no_values() -> None:
    cu = driver.Driver()
    assert cu.code.cuStreamWriteValue64_v2(cu.stream(), cu.alloc(8), 1, 0) == driver.NOT_SUPPORTED


def test_a_device_without_values_of_64_bits(scenes):
    scenes.run(no_values, ATTR="122=0")


def host_function() -> None:
    import ctypes

    cu, seen = driver.Driver(), []
    here, stream = driver.host(4096), cu.stream()

    def function(data: int) -> None:
        seen.append((data, ctypes.string_at(here, 3), cu.code.cuMemFree_v2(0)))

    kept = driver.HOST_FUNCTION(function)
    device = cu.alloc(3)
    cu.cuMemHostRegister_v2(here, 4096, 3)
    cu.cuMemsetD8Async(device, 65, 3, stream)
    cu.cuMemcpyDtoHAsync_v2(here, device, 3, stream)
    cu.cuLaunchHostFunc(stream, kept, 99)
    cu.cuStreamSynchronize(stream)
    assert seen == [(99, b"AAA", driver.NOT_PERMITTED)]


def test_a_function_of_the_host_has_its_turn_and_calls_no_driver(scenes):
    scenes.run(host_function)


def pageable() -> None:
    import ctypes

    cu = driver.Driver()
    device, here, there, stream = cu.alloc(4096), driver.host(4096), driver.host(4096), cu.stream()
    driver.put(here, b"early")
    cu.cuMemcpyHtoDAsync_v2(device, here, 5, stream)
    driver.put(here, b"later")
    cu.cuMemcpyDtoHAsync_v2(there, device, 5, stream)
    assert ctypes.string_at(there, 5) == b"early"
    driver.counted(pageable_copies=2)
    assert cu.code.cuMemcpyHtoDAsync_v2(here, here, 5, stream) == driver.INVALID_VALUE
    assert cu.code.cuMemcpyHtoDAsync_v2(device, device + 64, 5, stream) == driver.INVALID_VALUE
    cu.cuMemcpyAsync(device + 64, device, 5, stream)
    cu.cuMemcpyDtoDAsync_v2(device + 128, device + 64, 5, stream)
    cu.cuMemcpyAsync(there + 64, device + 128, 5, stream)
    assert ctypes.string_at(there + 64, 5) == b"early"


def test_memory_that_is_not_pinned_is_copied_in_the_call(scenes):
    scenes.run(pageable, DELAY_US=10000)


def batches(version: int) -> None:
    import ctypes

    cu = driver.Driver()
    device, here, stream = cu.alloc(1 << 20), driver.host(1 << 20), cu.stream()
    cu.cuMemHostRegister_v2(here, 1 << 20, 3)
    driver.put(here, bytes(range(256)) * 4096)
    runs = [(device + 1000 * i, here + 7 * i, 100) for i in range(256)]
    assert cu.batch(runs, [driver.ORDER_ANY, driver.ORDER_STREAM], stream, version)[0] == 0
    back = [(here + (512 << 10) + 100 * i, device + 1000 * i, 100) for i in range(256)]
    assert cu.batch(back, [driver.ORDER_STREAM], stream, version)[0] == 0
    cu.cuStreamSynchronize(stream)
    for i in range(256):
        assert ctypes.string_at(here + (512 << 10) + 100 * i, 100) == bytes((7 * i + k) % 256 for k in range(100))
    wrong = driver.INVALID_VALUE
    assert cu.batch(runs, [1], 0, version)[0] == wrong, "the legacy stream"
    assert cu.batch(runs, [0], stream, version)[0] == wrong, "no order"
    assert cu.batch(runs[:1], [1, 1], stream, version)[0] == wrong, "more attributes than copies"
    assert cu.batch(runs[:1], [1], stream + 16, version)[0] == driver.INVALID_HANDLE
    bad = [*runs[:3], (device + (1 << 20) - 99, here, 100), runs[4]]
    code, failed = cu.batch(bad, [1], stream, version)
    assert code == wrong
    assert failed == (3 if version < 13000 else 123)
    driver.counted(batches=2, batch_copies=512, pageable_copies=0)


@pytest.mark.parametrize("version", [12080, 13000])
def test_batches_of_copies(scenes, version):
    scenes.run(batches, version, VERSION=version)


def early() -> None:
    import ctypes

    cu = driver.Driver()
    device, here, stream = cu.alloc(4096), driver.host(4096), cu.stream()
    cu.cuMemHostRegister_v2(here, 4096, 3)
    for order in (driver.ORDER_STREAM, driver.ORDER_DURING_CALL, driver.ORDER_ANY):
        cu.write(device, b"old")
        cu.write(device + 64, b"new")
        go = cu.hold(stream)
        cu.cuMemcpyDtoDAsync_v2(device, device + 64, 3, stream)
        assert cu.batch([(here, device, 3)], [order], stream) == (0, 2**64 - 1)
        go()
        cu.cuStreamSynchronize(stream)
        print(ctypes.string_at(here, 3).decode(), end=" ")


@pytest.mark.parametrize(("switch", "reads"), [(0, "new old new "), (1, "new old old ")])
def test_order_any_may_read_before_the_stream_is_there(scenes, switch, reads):
    assert scenes.run(early, EARLY=switch) == reads


def capture_modes() -> None:
    import ctypes
    import threading

    cu = driver.Driver()

    def exchange(new: int) -> int:
        mode = ctypes.c_int(new)
        cu.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        return mode.value

    everything, own_thread, relaxed = 0, 1, 2
    assert (exchange(relaxed), exchange(own_thread), exchange(relaxed)) == (everything, relaxed, own_thread)
    seen = []
    other = threading.Thread(target=lambda: seen.append(exchange(own_thread)))
    other.start()
    other.join()
    assert seen == [everything], "a mode is of one thread"
    for wrong in (-1, 3):
        mode = ctypes.c_int(wrong)
        assert cu.code.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == driver.INVALID_VALUE
        assert mode.value == wrong
    assert cu.code.cuThreadExchangeStreamCaptureMode(0) == driver.INVALID_VALUE
    assert exchange(everything) == relaxed, "what is refused changes nothing"


def test_each_thread_has_its_own_mode_of_captures(scenes):
    scenes.run(capture_modes)
