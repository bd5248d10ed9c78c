"""Memory that two real processes share: legacy IPC, and allocations of cuMemCreate."""

from __future__ import annotations

import select
import signal

import driver
import pytest


def line(process, seconds: float = 30) -> str:
    """The next line that a scene printed."""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    text = process.stdout.readline() if ready else ""
    assert text, process.communicate(timeout=10)[1] if process.poll() is not None else "nothing in time"
    return text.strip()


def tell(process, text: str = "") -> None:
    process.stdin.write(text + "\n")
    process.stdin.flush()


def finish(process, status: int = 0) -> str:
    out, err = process.communicate(timeout=30)
    assert process.returncode == status, f"{process.returncode}\n{out}\n{err}"
    return out


def exporter(device: int) -> None:
    import ctypes

    cu = driver.Driver(device=device)
    address = cu.alloc(10_000)
    cu.write(address, b"from the exporter")
    handle = ctypes.create_string_buffer(64)
    cu.cuIpcGetMemHandle(handle, address + 5000)
    print(handle.raw.hex(), flush=True)
    input()
    print(cu.read(address, 17).decode(), flush=True)
    input()
    cu.cuMemFree_v2(address)
    print("freed", flush=True)
    input()


def importer(device: int) -> None:
    import ctypes

    cu = driver.Driver(device=device)
    handle = driver.Handle64.from_buffer_copy(bytes.fromhex(input()))
    assert cu.code.cuIpcOpenMemHandle_v2(ctypes.byref(ctypes.c_uint64()), handle, 0) == driver.INVALID_VALUE
    address = cu.get("cuIpcOpenMemHandle_v2", handle, 1)
    assert cu.get("cuIpcOpenMemHandle_v2", handle, 1) == address
    assert cu.range(address + 9_999) == (address, 10_000)
    assert not cu.pointer(10, address, ctypes.c_bool)
    assert cu.read(address, 17) == b"from the exporter"
    assert cu.code.cuMemFree_v2(address) == driver.INVALID_VALUE
    with driver.refused(driver.INVALID_VALUE):
        cu.cuIpcGetMemHandle(ctypes.create_string_buffer(64), address)
    cu.write(address, b"from the importer")
    print("written", flush=True)
    input()
    # The exporter has freed it, which leaves what is open.
    assert cu.read(address, 17) == b"from the importer"
    cu.cuIpcCloseMemHandle(address)
    cu.cuIpcCloseMemHandle(address)
    assert cu.code.cuIpcCloseMemHandle(address) == driver.INVALID_VALUE
    driver.counted(ipc_imports=0, mappings=0, descriptors=0)
    with driver.refused(driver.MAP_FAILED):
        cu.get("cuIpcOpenMemHandle_v2", handle, 1)


@pytest.mark.parametrize("visible", ["", "0,1", "1,0"])
def test_two_processes_share_an_allocation_whatever_the_ordinal(scenes, visible):
    settings = {"DEVICES": 2} if visible else {}
    a = scenes.start(exporter, 0, **settings)
    if visible:
        b = scenes.start(importer, visible.split(",").index("0"), CUDA_VISIBLE_DEVICES=visible, **settings)
    else:
        b = scenes.start(importer, 0)
    tell(b, line(a))
    assert line(b) == "written"
    tell(a)
    assert line(a) == "from the importer"
    tell(a)
    assert line(a) == "freed"
    tell(b)
    finish(b)
    tell(a)
    finish(a)


def opening(device: int, wanted: int) -> None:
    cu = driver.Driver(device=device)
    with driver.refused(wanted):
        cu.get("cuIpcOpenMemHandle_v2", driver.Handle64.from_buffer_copy(bytes.fromhex(input())), 1)
    driver.counted(descriptors=0)


@pytest.mark.parametrize(
    ("device", "settings", "code"),
    [
        (1, {"DEVICES": 2}, driver.PEER_UNSUPPORTED),
        (0, {"DEVICES": 2, "CUDA_VISIBLE_DEVICES": "1"}, driver.INVALID_DEVICE),
    ],
)
def test_a_handle_of_another_device_is_refused(scenes, device, settings, code):
    a = scenes.start(exporter, 0, DEVICES=2)
    b = scenes.start(opening, device, code, **settings)
    tell(b, line(a))
    finish(b)


def test_a_handle_of_a_dead_process_and_no_handle_at_all_are_refused(scenes):
    a = scenes.start(exporter, 0)
    handle = line(a)
    a.send_signal(signal.SIGKILL)
    a.wait()
    for text, code in (
        (handle, driver.MAP_FAILED),
        ("00" * 64, driver.INVALID_VALUE),
        ("5a" * 64, driver.INVALID_VALUE),
    ):
        b = scenes.start(opening, 0, code)
        tell(b, text)
        finish(b)


def freed() -> None:
    import ctypes

    cu, handle = driver.Driver(), ctypes.create_string_buffer(64)
    address = cu.alloc(4096)
    cu.cuIpcGetMemHandle(handle, address)
    cu.cuMemFree_v2(address)
    cu.alloc(4096)
    print(handle.raw.hex(), flush=True)
    input()


def test_a_handle_of_freed_memory_opens_nothing_that_came_after_it(scenes):
    a = scenes.start(freed)
    b = scenes.start(opening, 0, driver.MAP_FAILED)
    tell(b, line(a))
    finish(b)


def same_process() -> None:
    import ctypes

    cu, handle = driver.Driver(), driver.Handle64()
    cu.cuIpcGetMemHandle(ctypes.byref(handle), cu.alloc(64))
    with driver.refused(driver.INVALID_CONTEXT):
        cu.get("cuIpcOpenMemHandle_v2", handle, 1)
    address = cu.reserve(driver.GRANULE)
    cu.cuMemMap(address, driver.GRANULE, 0, cu.create(), 0)
    cu.allow(address, driver.GRANULE)
    assert cu.code.cuIpcGetMemHandle(ctypes.byref(handle), address) == driver.INVALID_VALUE
    assert not cu.pointer(10, address, ctypes.c_bool)


def test_a_process_opens_no_handle_of_its_own_and_mapped_memory_has_none(scenes):
    scenes.run(same_process)


def recorder() -> None:
    import ctypes

    cu, handle = driver.Driver(), driver.Handle64()
    event, stream, device = cu.event(2 | 4), cu.stream(), cu.alloc(4096)
    cu.write(device, bytes(8))
    assert cu.code.cuEventCreate(ctypes.byref(ctypes.c_uint64()), 4) == driver.INVALID_VALUE, "with timing"
    assert cu.code.cuIpcGetEventHandle(ctypes.byref(handle), cu.event(2)) == driver.INVALID_HANDLE
    cu.cuIpcGetEventHandle(ctypes.byref(handle), event)
    print(bytes(handle).hex(), flush=True)
    input()
    cu.cuStreamWaitValue64_v2(stream, device, 5, 0)
    cu.cuEventRecord(event, stream)
    print("recorded", flush=True)
    input()
    cu.cuStreamWriteValue64_v2(cu.stream(), device, 5, 0)
    input()


def waiter() -> None:
    cu = driver.Driver()
    handle = driver.Handle64.from_buffer_copy(bytes.fromhex(input()))
    with driver.refused(driver.INVALID_VALUE):
        cu.get("cuIpcOpenMemHandle_v2", handle, 1)
    event, stream = cu.get("cuIpcOpenEventHandle", handle), cu.stream()
    assert cu.code.cuEventQuery(event) == 0, "never recorded"
    print("opened", flush=True)
    input()
    cu.cuStreamWaitEvent(stream, event, 0)
    assert cu.code.cuEventQuery(event) == cu.code.cuStreamQuery(stream) == driver.NOT_READY
    print("waiting", flush=True)
    cu.cuStreamSynchronize(stream)
    cu.cuEventSynchronize(event)
    cu.cuEventDestroy_v2(event)
    driver.counted(descriptors=0, events=0)


@pytest.mark.parametrize("poison", [0, 1])
def test_a_process_waits_for_the_event_of_another(scenes, poison):
    a, b = scenes.start(recorder, POISON=poison), scenes.start(waiter)
    tell(b, line(a))
    assert line(b) == "opened"
    tell(a)
    assert line(a) == "recorded"
    tell(b)
    assert line(b) == "waiting"
    tell(a)
    finish(b)


def vmm() -> None:
    import ctypes

    cu, g = driver.Driver(), driver.GRANULE
    assert cu.get("cuMemGetAllocationGranularity", cu.properties(), 0) == g
    for size in (0, g - 1, g + 4096):
        with driver.refused(driver.INVALID_VALUE):
            cu.create(size)
    first, second, base = cu.create(), cu.create(2 * g), cu.reserve(4 * g)
    assert (
        cu.code.cuMemMap(base + 4096, g, 0, first, 0) == cu.code.cuMemMap(base, g, g, second, 0) == driver.INVALID_VALUE
    )
    assert cu.code.cuMemMap(base + 3 * g, 2 * g, 0, second, 0) == driver.INVALID_VALUE
    cu.cuMemMap(base, g, 0, first, 0)
    assert cu.code.cuMemMap(base, g, 0, first, 0) == driver.INVALID_VALUE, "mapped already"
    cu.cuMemMap(base + g, 2 * g, 0, second, 0)
    with driver.refused(driver.INVALID_VALUE):
        cu.write(base, b"no access yet")
    assert cu.allow(base, 2 * g) == driver.INVALID_VALUE, "half a mapping"
    assert cu.allow(base, 3 * g, device=7) == driver.INVALID_DEVICE
    assert cu.allow(base, 3 * g) == 0
    # One copy over two mappings. The range is of a mapping, the attributes are of the reservation.
    data = bytes(range(256)) * 16
    cu.write(base + g - 2048, data)
    assert cu.read(base + g - 2048, 4096) == data
    assert cu.range(base + g + 1) == (base + g, 2 * g)
    assert (cu.pointer(11, base + g), cu.pointer(12, base + g)) == (base, 4 * g)
    assert (cu.pointer(13, base, ctypes.c_bool), cu.pointer(14, base)) == (True, 1)
    assert not cu.pointer(13, base + 3 * g, ctypes.c_bool)
    with driver.refused(driver.NOT_FOUND):
        cu.range(base + 3 * g)
    assert cu.allow(base, g, flags=1) == 0
    with driver.refused(driver.INVALID_VALUE):
        cu.write(base, b"read only")
    # The memory lives on without its handle, and a handle is found again.
    cu.cuMemRelease(second)
    assert cu.code.cuMemRelease(second) == driver.INVALID_VALUE
    again = cu.get("cuMemRetainAllocationHandle", base + 2 * g)
    out = ctypes.create_string_buffer(32)
    cu.cuMemGetAllocationPropertiesFromHandle(out, again)
    assert out.raw == cu.properties().raw
    assert cu.code.cuMemUnmap(base, 2 * g) == cu.code.cuMemAddressFree(base, 4 * g) == driver.INVALID_VALUE
    cu.cuMemUnmap(base, 3 * g)
    assert cu.code.cuMemUnmap(base, 3 * g) == driver.INVALID_VALUE
    with driver.refused(driver.NOT_FOUND):
        cu.range(base)
    for handle in (first, again):
        cu.cuMemRelease(handle)
    assert cu.code.cuMemMap(base, g, 0, first, 0) == driver.INVALID_VALUE
    assert cu.code.cuMemAddressFree(base, 3 * g) == driver.INVALID_VALUE
    cu.cuMemAddressFree(base, 4 * g)
    assert cu.code.cuMemAddressFree(base, 4 * g) == driver.INVALID_VALUE
    driver.counted(vmm_handles=0, reservations=0, mappings=0, descriptors=0)


def test_memory_is_created_mapped_and_given_back(scenes):
    scenes.run(vmm)


def vmm_exporter(path: str, count: int) -> None:
    import os
    import socket

    cu, g = driver.Driver(), driver.GRANULE
    base = cu.reserve(count * g)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    for i in range(count):
        handle = cu.create()
        cu.cuMemMap(base + i * g, g, 0, handle, 0)
        fd = cu.export(handle)
        cu.cuMemRelease(handle)
        socket.send_fds(peer, [b"x"], [fd])
        os.close(fd)
    cu.allow(base, count * g)
    for i in range(count):
        cu.write(base + i * g + g - 4, i.to_bytes(4, "little"))
    print("ready", flush=True)
    input()


def vmm_importer(path: str, count: int) -> None:
    import os
    import socket

    cu, g = driver.Driver(), driver.GRANULE
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    print("listening", flush=True)
    peer, _ = server.accept()
    base = cu.reserve(count * g)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(count):
        fd = socket.recv_fds(peer, 1, 1)[1][0]
        handle = cu.get("cuMemImportFromShareableHandle", fd, driver.POSIX_FD)
        os.close(fd)
        cu.cuMemMap(base + i * g, g, 0, handle, 0)
        cu.cuMemRelease(handle)
    cu.allow(base, count * g)
    print("mapped", flush=True)
    input()
    for i in range(count):
        assert cu.read(base + i * g + g - 4, 4) == i.to_bytes(4, "little")
    cu.cuMemUnmap(base, count * g)
    cu.cuMemAddressFree(base, count * g)
    assert len(os.listdir("/proc/self/fd")) == before
    driver.counted(vmm_handles=0, mappings=0, descriptors=0, reservations=0)


@pytest.mark.parametrize("count", [3, 4000])
def test_two_processes_share_thousands_of_allocations_and_one_of_them_dies(scenes, tmp_path, count):
    path = str(tmp_path / "socket")
    b = scenes.start(vmm_importer, path, count)
    assert line(b) == "listening"
    a = scenes.start(vmm_exporter, path, count)
    assert line(a) == "ready"
    assert line(b) == "mapped"
    a.kill()
    a.wait()
    tell(b)
    finish(b)


def no_export(directory: str) -> None:
    import ctypes
    import os
    import socket

    cu = driver.Driver()
    memory = os.memfd_create("memory")
    os.truncate(memory, 4 << 20)
    a, _b = socket.socketpair()
    pipe, _ = os.pipe()
    closed = os.dup(pipe)
    os.close(closed)
    for fd in (
        memory,
        pipe,
        a.fileno(),
        os.open(directory, os.O_RDONLY),
        os.open("/dev/null", os.O_RDWR),
        closed,
        -1,
        1 << 20,
    ):
        with driver.refused(driver.INVALID_VALUE):
            cu.get("cuMemImportFromShareableHandle", fd, driver.POSIX_FD)
    # The memory of a legacy allocation is no export, even if a process gets at its descriptor.
    cu.alloc(4096)
    for fd in range(3, 64) if driver.stand_in() else ():
        if os.path.exists(f"/proc/self/fd/{fd}") and "fakecuda" in os.readlink(f"/proc/self/fd/{fd}"):
            with driver.refused(driver.INVALID_VALUE):
                cu.get("cuMemImportFromShareableHandle", fd, driver.POSIX_FD)
            break
    else:
        assert not driver.stand_in(), "no descriptor of device memory"
    private, fabric = cu.create(types=0), ctypes.create_string_buffer(64)
    with driver.refused(driver.INVALID_VALUE):
        cu.export(private)
    assert cu.code.cuMemExportToShareableHandle(fabric, private, driver.FABRIC, 0) == driver.INVALID_VALUE
    if driver.stand_in():
        with driver.refused(driver.NOT_SUPPORTED):
            cu.create(types=driver.FABRIC)
        with driver.refused(driver.INVALID_VALUE):
            cu.export(0x12345670)
    driver.counted(descriptors=2)


def test_what_is_no_export_is_refused(scenes, tmp_path):
    scenes.run(no_export, str(tmp_path))


def fabric() -> None:
    import ctypes

    cu, blob = driver.Driver(), ctypes.create_string_buffer(64)
    handle = cu.create(types=driver.FABRIC)
    cu.cuMemExportToShareableHandle(blob, handle, driver.FABRIC, 0)
    with driver.refused(driver.INVALID_VALUE):
        cu.export(handle)
    other = cu.get("cuMemImportFromShareableHandle", blob, driver.FABRIC)
    address = cu.reserve(2 * driver.GRANULE)
    cu.cuMemMap(address, driver.GRANULE, 0, handle, 0)
    cu.cuMemMap(address + driver.GRANULE, driver.GRANULE, 0, other, 0)
    cu.allow(address, 2 * driver.GRANULE)
    cu.write(address, b"same")
    assert cu.read(address + driver.GRANULE, 4) == b"same"


def fabric_denied() -> None:
    with driver.refused(driver.NOT_PERMITTED):
        driver.Driver().create(types=driver.FABRIC)


def no_descriptors() -> None:
    with driver.refused(driver.NOT_SUPPORTED):
        driver.Driver().create(types=driver.POSIX_FD)


def test_fabric_and_devices_without_a_kind_of_handle(scenes):
    scenes.run(fabric, ATTR="128=1")
    scenes.run(fabric_denied, ATTR="128=1", IMEX=0)
    scenes.run(no_descriptors, ATTR="103=0")


def too_early() -> None:
    cu, g = driver.Driver(), driver.GRANULE
    address, handle, stream = cu.reserve(g), cu.create(), cu.stream()
    cu.cuMemMap(address, g, 0, handle, 0)
    cu.allow(address, g)
    go = cu.hold(stream)
    cu.cuMemsetD8Async(address, 1, 4096, stream)
    cu.cuMemUnmap(address, g)
    go()
    for code in (cu.code.cuStreamSynchronize(stream), cu.code.cuCtxSynchronize()):
        assert code == driver.ILLEGAL_ADDRESS


def test_unmapping_what_is_in_use_loses_the_device(scenes):
    scenes.run(too_early)
