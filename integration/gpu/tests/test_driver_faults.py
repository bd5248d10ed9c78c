"""Faults on order, by the environment and by a file, and the counters."""

from __future__ import annotations

import re
import select
import signal
import subprocess
from pathlib import Path

import driver
import pytest

pytestmark = pytest.mark.usefixtures("stand_in")


def third_call() -> None:
    cu = driver.Driver()
    addresses = [cu.alloc(4096), cu.alloc(4096)]
    with driver.refused(driver.OUT_OF_MEMORY):
        cu.alloc(4096)
    addresses.append(cu.alloc(4096))
    for address in addresses:
        with driver.refused(999):
            cu.cuMemFree_v2(address)
    counts = driver.stats()
    assert (counts["allocations"], counts["faults"]) == (3, 4)


def test_the_nth_call_and_every_call(scenes):
    scenes.run(third_call, FAULT="cuMemAlloc:3:2,cuMemFree_v2:*:999")


def each(entries: list[str]) -> None:
    cu = driver.Driver(device=None)
    for entry in entries:
        assert getattr(cu.code, entry)(*[0] * 11) == 46, entry


def test_each_entry_that_is_exported_can_fail(scenes):
    table = (Path(__file__).resolve().parent.parent / "fakecuda" / "table.c").read_text()
    entries = re.findall(r"\bX\(cu\w+, \d+, (\w+)\)", table)
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", str(scenes.library)], capture_output=True, text=True, check=True
    )
    assert {name for name in re.findall(r" T (\w+)", exported.stdout) if name.startswith("cu")} == set(entries)
    scenes.run(each, entries, FAULT=",".join(f"{entry}:*:46" for entry in entries))


def from_second() -> None:
    cu = driver.Driver()
    here = driver.host(3 * 4096)
    assert [cu.code.cuMemHostRegister_v2(here + 4096 * i, 4096, 3) for i in range(3)] == [0, 2, 2]


def test_registration_fails_from_the_second_chunk_on(scenes):
    scenes.run(from_second, FAULT="cuMemHostRegister:2+:2")


def sticky() -> None:
    import ctypes

    cu = driver.Driver()
    address, stream = cu.alloc(4096), cu.stream()
    cu.use(1)
    other = cu.alloc(4096)
    cu.use(0)
    for code in (
        cu.code.cuMemcpyHtoDAsync_v2(address, b"x", 1, stream),
        cu.code.cuStreamSynchronize(stream),
        cu.code.cuMemFree_v2(address),
        cu.code.cuStreamQuery(stream),
        cu.code.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_uint64()), 0),
    ):
        assert code == 719
    # Another device serves on.
    cu.use(1)
    cu.write(other, b"fine")
    assert cu.read(other, 4) == b"fine"


def test_a_sticky_error_loses_one_device(scenes):
    scenes.run(sticky, FAULT="cuMemcpyHtoDAsync:1:sticky=719", DEVICES=2)


def later() -> None:
    cu = driver.Driver()
    address, stream, event = cu.alloc(4096), cu.stream(), cu.event()
    go = cu.hold(stream)
    cu.cuMemsetD8Async(address, 1, 4096, stream)
    assert cu.code.cuMemsetD8Async(address, 2, 4096, stream) == 0
    assert cu.code.cuEventRecord(event, stream) == 0
    go()
    assert cu.code.cuStreamSynchronize(stream) == cu.code.cuEventQuery(event) == 700


def test_an_error_comes_later_in_the_stream(scenes):
    scenes.run(later, FAULT="cuMemsetD8Async:2:async=700")


def on_device() -> None:
    cu = driver.Driver()
    cu.alloc(4096)
    cu.use(1)
    with driver.refused(2):
        cu.alloc(4096)


def test_a_fault_of_one_device_by_its_physical_index(scenes):
    scenes.run(on_device, FAULT="cuMemAlloc@1:1:2", DEVICES=2)
    scenes.run(on_device, FAULT="cuMemAlloc@0:1:2", DEVICES=2, CUDA_VISIBLE_DEVICES="1,0")


def endless(entry: str) -> None:
    cu = driver.Driver()
    address, stream = cu.alloc(4096), cu.stream()
    print("calling", flush=True)
    if entry == "cuMemsetD8Async":
        cu.cuMemsetD8Async(address, 1, 1, stream)
        print("submitted", flush=True)
        cu.cuStreamSynchronize(stream)
    else:
        getattr(cu, entry)()
    print("over", flush=True)


@pytest.mark.parametrize(
    ("fault", "entry", "printed"), [("hang", "cuCtxSynchronize", 1), ("stall", "cuMemsetD8Async", 2)]
)
def test_a_call_hangs_or_its_work_never_ends(scenes, fault, entry, printed):
    process = scenes.start(endless, entry, FAULT=f"{entry}:1:{fault}")
    for _ in range(printed):
        assert process.stdout.readline() in ("calling\n", "submitted\n")
    ready, _, _ = select.select([process.stdout], [], [], 0.3)
    assert not ready
    assert process.poll() is None
    # The counters of a process that is killed are still there.
    counts = driver.read_stats(scenes.stats_of(process))
    assert (counts["faults"], counts["pending"]) == (1, int(fault == "stall"))
    process.kill()
    process.wait()
    assert driver.read_stats(scenes.stats_of(process))["allocations"] == 1


@pytest.mark.parametrize(("fault", "status"), [("segv", -signal.SIGSEGV), ("exit", 86)])
def test_a_call_ends_the_process(scenes, fault, status):
    assert scenes.run(endless, "cuCtxSynchronize", FAULT=f"cuCtxSynchronize:1:{fault}", status=status) == "calling\n"


def nothing() -> None:
    driver.Driver()


@pytest.mark.parametrize(
    "fault", ["cuNoSuchEntry:1:2", "cuMemAlloc:0:2", "cuMemAlloc:1:melt", "cuMemAlloc:1", "cuMemAlloc:1x:2"]
)
def test_a_fault_that_can_never_come_ends_the_process(scenes, fault):
    scenes.run(nothing, FAULT=fault, status=-signal.SIGABRT)


def steered() -> None:
    cu = driver.Driver()
    while True:
        input()
        print(cu.code.cuCtxSynchronize(), flush=True)


def test_faults_are_set_and_taken_back_in_a_running_process(scenes, tmp_path):
    control = tmp_path / "control"
    process = scenes.start(steered, CONTROL=control)

    def ask() -> str:
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def order(text: str) -> None:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(control)

    assert ask() == "0"
    order("cuCtxSynchronize:2:46\n")
    assert [ask(), ask(), ask()] == ["0", "46", "0"]
    order("cuCtxSynchronize:1:46\ndelay=10\n")
    assert [ask(), ask()] == ["46", "0"]
    order("cuCtxSynchronize:*:46")
    assert [ask(), ask()] == ["46", "46"]
    control.unlink()
    assert ask() == "0"
    order("cuCtxSynchronize:1:sticky=214")
    assert [ask(), ask()] == ["214", "214"]


def crowd() -> None:
    from concurrent.futures import ThreadPoolExecutor

    cu = driver.Driver()
    context, here = cu.get("cuCtxGetCurrent"), driver.host(64 << 12)
    cu.cuMemHostRegister_v2(here, 64 << 12, 3)

    def work(mine: int) -> None:
        cu.cuCtxSetCurrent(context)
        for turn in range(20):
            address, stream, event = cu.alloc(4096), cu.stream(turn % 2), cu.event()
            cu.cuMemsetD8Async(address, mine, 4096, stream)
            assert cu.batch([(here + 4096 * mine, address, 4096)], [1], stream)[0] == 0
            cu.cuEventRecord(event, stream)
            cu.cuStreamWaitEvent(0, event, 0)
            cu.cuEventSynchronize(event)
            assert cu.read(address, 4096) == bytes([mine]) * 4096
            mapped, handle = cu.reserve(driver.GRANULE), cu.create()
            cu.cuMemMap(mapped, driver.GRANULE, 0, handle, 0)
            assert cu.allow(mapped, driver.GRANULE) == 0
            cu.cuMemcpyDtoDAsync_v2(mapped, address, 4096, stream)
            cu.cuStreamDestroy_v2(stream)
            cu.cuEventDestroy_v2(event)
            cu.cuMemFree_v2(address)
            cu.cuMemUnmap(mapped, driver.GRANULE)
            cu.cuMemRelease(handle)
            cu.cuMemAddressFree(mapped, driver.GRANULE)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    cu.cuCtxSynchronize()
    cu.cuMemHostUnregister(here)
    kinds = (
        "allocations",
        "vmm_handles",
        "reservations",
        "mappings",
        "descriptors",
        "registrations",
        "streams",
        "events",
    )
    counts = driver.stats()
    assert {kind: counts[kind] for kind in kinds if counts[kind]} == {}


def test_many_threads_leave_nothing(scenes):
    scenes.run(crowd)
