"""Each entry of the driver that the engine's side calls fails in turn: the engine goes on, and learns why."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import DaemonProcess, start_daemon
from cuda_device import Cuda, library
from test_cuda import BLOCK_BYTES, TOKENS, Engine, daemon, descriptors, is_closed
from test_daemon import wait_until

from kvconn import link
from kvconn.client import FinishedLoad, PlannedLoad, SaveResult
from kvconn.cuda import DeviceMemory
from kvconn.cuda.driver import _PROTOTYPES, Device
from kvconn.cuda.regions import Range
from kvconn.engine_memory import EngineMemoryError

__all__ = ["daemon"]

UNKNOWN = 999
LEGACY = {
    *("cuInit", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"),
    *("cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuMemGetAddressRange_v2", "cuPointerGetAttribute"),
    "cuIpcGetMemHandle",
}
VIRTUAL = {"cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemRelease"}
"""Called when memory is prepared: for all memory, and only for that of cuMemCreate."""
REGISTRATION = {
    *("cuMemExportToShareableHandle", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuEventCreate"),
    "cuDeviceGetAttribute",
}
CALL = {
    *("cuStreamWriteValue64_v2", "cuLaunchHostFunc", "cuEventRecord", "cuStreamIsCapturing", "cuStreamWaitEvent"),
}
END = {"cuEventQuery", "cuMemHostUnregister", "cuEventDestroy_v2"}


class Faults:
    """Orders for the stand-in in this process; the daemon's copier has none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def of(self, entry: str, what: str = str(UNKNOWN)) -> Iterator[None]:
        """Have all calls of an entry fail, or whatever the stand-in is to do in them."""
        part = self._path.with_suffix(".part")
        part.write_text(f"{entry}:*:{what}\n")
        part.rename(self._path)
        try:
            yield
        finally:
            self._path.unlink()


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    if os.environ.get("KVCONN_CUDA_LIBRARY"):
        pytest.skip("the stand-in alone fails on order")
    return Faults(tmp_path_factory.mktemp("faults") / "control")


@pytest.fixture(scope="module")
def cuda(faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Cuda:
    """A stand-in of this module's own, which reads where its orders are when it is loaded."""
    built = library(tmp_path_factory.mktemp("cuda"))
    own = built.with_name("libcuda-faults.so.1")
    shutil.copy(built, own)
    os.environ["FAKECUDA_CONTROL"] = str(faults._path)
    try:
        return Cuda(own)
    finally:
        del os.environ["FAKECUDA_CONTROL"]


@pytest.fixture
def stream(cuda: Cuda) -> int:
    return cuda.stream()


def memory_for(cuda: Cuda, entry: str) -> Range:
    virtual = entry in VIRTUAL or entry == "cuMemExportToShareableHandle"
    return cuda.virtual(2) if virtual else cuda.alloc(16 * BLOCK_BYTES)


def serves(engine: Engine) -> None:
    """Check that all is well: what is saved comes back."""
    engine.save()
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]


@pytest.fixture
def stuck(
    cuda: Cuda, socket_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[DaemonProcess, Faults]]:
    """A kvconnd that waits five seconds for copies, and orders for its copiers, which are told by `of`."""
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    more = ("--cuda-library", str(cuda.path), "--load-timeout", "5s")
    with monkeypatch.context() as patched:
        patched.setenv("FAKECUDA_CONTROL", str(tmp_path / "control"))
        process = start_daemon(binary, socket_dir / "store", socket_dir / "s", *more)
    yield DaemonProcess(process, socket_dir / "s", more), Faults(tmp_path / "control")
    process.kill()
    process.wait()


@pytest.mark.parametrize("freed", [False, True])
def test_memory_is_taken_back_in_the_middle_of_a_copy_that_never_ends(
    cuda: Cuda, stuck: tuple[DaemonProcess, Faults], stream: int, freed: bool
) -> None:
    """Its copier is ended, also where the engine does not wait for that and frees the memory."""
    daemon, orders = stuck
    memory = cuda.alloc(16 * BLOCK_BYTES)
    engine = Engine(cuda, daemon, memory, lambda: stream)
    engine.save()
    with orders.of("cuMemcpyBatchAsync", "stall"):
        engine.start_load((9, 8, 7, 6))
        registration = engine.worker._registration()
        wait_until(lambda: not registration._page.idle())
        if freed:
            assert not registration.release_within(0.01)
            assert not engine.worker.unregister(0)  # it says that a copy is under way
            cuda.free(memory)
        else:
            assert engine.worker.unregister(60)
        wait_until(lambda: engine.worker.poll() == [FinishedLoad("again", [9, 8, 7, 6])], 60)
        engine.end_load()
    engine.memory = cuda.alloc(16 * BLOCK_BYTES)
    engine.device = DeviceMemory([[engine.memory]], 0, lambda: stream, str(cuda.path))
    engine.worker.register_memory(engine.device, engine.layout)
    wait_until(lambda: engine.worker._registration() is not None, 90)
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_no_entry_is_left_out() -> None:
    assert {*LEGACY, *VIRTUAL, *REGISTRATION, *CALL, *END, "cuGetErrorName"} == set(_PROTOTYPES)


@pytest.mark.parametrize("entry", sorted(LEGACY | VIRTUAL))
def test_memory_that_cannot_be_prepared_says_why(cuda: Cuda, faults: Faults, stream: int, entry: str) -> None:
    memory = memory_for(cuda, entry)
    before, times = descriptors(), 10
    for _ in range(times):
        with faults.of(entry), pytest.raises(EngineMemoryError, match=f"{entry} with CUDA_ERROR_UNKNOWN"):
            DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))
        cuda.use()  # what could not be popped is no longer current
        DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))
    assert descriptors() < before + times  # threads of earlier tests open and close some, too


def test_an_error_without_a_name_has_its_number(cuda: Cuda, faults: Faults, stream: int) -> None:
    memory = cuda.alloc(BLOCK_BYTES)
    with faults.of("cuGetErrorName:*:1\ncuDeviceGet"), pytest.raises(EngineMemoryError, match="cuDeviceGet with 999"):
        DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))


@pytest.mark.parametrize("entry", sorted(REGISTRATION))
def test_a_registration_that_fails_is_made_again(
    cuda: Cuda,
    daemon: DaemonProcess,
    faults: Faults,
    stream: int,
    entry: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "_HOPELESS_RETRY_FACTOR", 1)
    engine = Engine(cuda, daemon, memory_for(cuda, entry), lambda: stream)
    assert engine.worker.unregister(20)
    wait_until(lambda: engine.worker._link.connection is not None)  # its socket counts before and after
    before = descriptors()
    with faults.of(entry):
        engine.worker.register_memory(engine.device, engine.layout)
        wait_until(lambda: f"{entry} with CUDA_ERROR_UNKNOWN" in caplog.text)
        # No step waits, and none fails.
        assert engine.worker.save(b"x") == SaveResult()
        engine.worker.load(b"x", [PlannedLoad("x", [1])])
        assert engine.worker.poll() == [FinishedLoad("x", [1])]
    wait_until(lambda: engine.worker._registration() is not None, 60)
    serves(engine)
    assert engine.worker.unregister(20)
    wait_until(lambda: engine.worker._link.connection is not None)
    wait_until(lambda: descriptors() <= before)
    engine.close()


@pytest.mark.parametrize("entry", sorted(CALL))
def test_a_call_that_cannot_be_numbered_costs_itself(
    cuda: Cuda,
    daemon: DaemonProcess,
    faults: Faults,
    entry: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if entry == "cuLaunchHostFunc":
        monkeypatch.setattr(Device, "has", lambda *_: False)
    streams = [cuda.stream(), cuda.stream()]
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: streams[0])
    serves(engine)
    former = engine.worker._registration()
    streams.reverse()  # where the stream changes the new one waits for the old one
    tries: list[Callable[[], object]] = [
        lambda: engine.worker.save(b"x") == SaveResult(),
        lambda: engine.worker.load(b"x", [PlannedLoad("x", [1])]) or engine.worker.poll() == [FinishedLoad("x", [1])],
    ]
    for number, attempt in enumerate(tries):
        with faults.of(entry):
            assert attempt()
        assert f"does not say how far it is: the CUDA driver answers {entry} with CUDA_ERROR_UNKNOWN" in caplog.text
        # The numbers of engine and daemon are no longer the same: they begin again.
        wait_until(lambda former=former: engine.worker._registration() not in (None, former), 60)
        former = engine.worker._registration()
        assert engine.worker.save(engine.planned_save(f"y{number}", [9 + number] * len(TOKENS))) == SaveResult(4)
        streams.reverse()
    engine.close()


@pytest.mark.parametrize("entry", sorted(END))
def test_what_cannot_be_ended_ends_with_the_process(
    cuda: Cuda, daemon: DaemonProcess, faults: Faults, stream: int, entry: str
) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    serves(engine)
    page = engine.worker._registration()._page
    retired = engine.device._retired
    with faults.of(entry):
        assert engine.worker.unregister(20)  # the daemon has nothing any more
        wait_until(lambda: not retired._running)
    # The device may still write to a page that stays registered.
    assert is_closed(page) == (entry != "cuMemHostUnregister")
    assert len(retired._broken) == (entry == "cuMemHostUnregister")
    engine.register()
    assert engine.load((9, 8, 7, 6)) == [[]]
    engine.close()
