"""Memory of a GPU, registered with a real kvconnd. On the stand-in for the driver, or KVCONN_CUDA_LIBRARY's."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import DaemonProcess, start_daemon
from cuda_device import FABRIC, GRANULE, NONE, Cuda, library
from test_daemon import BLOCK_BYTES, BLOCK_SIZE, options, polled, wait_until

from kvconn.client import (
    Alloc,
    FinishedLoad,
    GroupLayout,
    PlannedLoad,
    Run,
    SaveResult,
    Scheduled,
    SchedulerClient,
    Step,
    StoredPut,
    WorkerClient,
)
from kvconn.cuda import DeviceMemory, NotShareable, regions
from kvconn.cuda.calls import CallNumbers
from kvconn.cuda.driver import (
    POINTER_IPC_CAPABLE,
    POINTER_IS_MANAGED,
    POINTER_MEMORY_TYPE,
    POINTER_MEMPOOL,
    Device,
    Driver,
    DriverError,
)
from kvconn.cuda.regions import MAX_PARTS, Part, Range
from kvconn.engine_memory import EngineMemoryError
from kvconn.fence import PAGE_BYTES, REACHED_OFFSET, FencePage

TOKENS = list(range(4 * BLOCK_SIZE + 1))
LAST = 12


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Cuda:
    os.environ["FAKECUDA_ATTR"] = "128=1"  # fabric handles, in the stand-in
    return Cuda(library(tmp_path_factory.mktemp("cuda")))


@pytest.fixture
def daemon(cuda: Cuda, socket_dir: Path) -> Iterator[DaemonProcess]:
    """A kvconnd that loads the same driver."""
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    more = ("--cuda-library", str(cuda.path))
    path = socket_dir / "s"
    started = DaemonProcess(start_daemon(binary, socket_dir / "store", path, *more), path, more)
    yield started
    started.process.kill()
    started.process.wait()


class Engine:
    """A scheduler and a worker whose blocks lie one after the other in memory of a GPU."""

    def __init__(self, cuda: Cuda, daemon: DaemonProcess, memory: Range, stream: Callable[[], int]) -> None:
        self.cuda, self.memory = cuda, memory
        self.blocks = memory.size // BLOCK_BYTES
        self.device = DeviceMemory([[memory]], 0, stream, str(cuda.path))
        self.layout = [GroupLayout(self.blocks, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])]
        self.worker = WorkerClient(options(daemon.socket), 0)
        self.scheduler = SchedulerClient(options(daemon.socket))
        self.register()
        wait_until(lambda: self.scheduler.connect())

    def register(self) -> None:
        self.worker.register_memory(self.device, self.layout)
        # Thousands of allocations take long on a busy machine.
        wait_until(lambda: self.worker._registration() is not None, 120)

    def address(self, block: int) -> int:
        return self.memory.address + block * BLOCK_BYTES

    def fill(self, block: int, byte: int) -> None:
        self.cuda.write(self.address(block), bytes([byte]) * BLOCK_BYTES)

    def read(self, block: int) -> bytes:
        return self.cuda.read(self.address(block), BLOCK_BYTES)

    def planned_save(
        self, request: str = "r", tokens: list[int] = TOKENS, table: tuple[int, ...] = (0, 1, 2, 3)
    ) -> bytes:
        self.scheduler.match(request, tokens)
        scheduled = Scheduled(request, [list(table)], True, 0, len(tokens), [])
        meta = self.scheduler.step(Step(scheduled=[scheduled]), self.scheduler.session).meta
        self.scheduler.step(Step(finished=[request]), self.scheduler.session)
        return meta

    def save(self) -> None:
        for block in range(4):
            self.fill(block, block + 1)
        meta = self.planned_save()
        assert self.worker.save(meta) == SaveResult(4)

    def load(self, table: tuple[int, ...], request: str = "again") -> list[list[int]]:
        """Load all blocks of the prompt, and return those that failed."""
        self.start_load(table, request)
        failed = [report.failed_blocks for report in polled(self.worker)]
        self.end_load(request)
        return failed

    def start_load(self, table: tuple[int, ...], request: str = "again") -> None:
        wait_until(lambda: self.scheduler.match(request, TOKENS).tokens == len(table) * BLOCK_SIZE)
        step = Step(allocs=[Alloc(request, [list(table)], 0, len(table) * BLOCK_SIZE)])
        plan = self.scheduler.step(step, self.scheduler.session)
        self.worker.load(plan.meta, plan.loads)

    def end_load(self, request: str = "again") -> None:
        self.scheduler.loaded([request], [], self.scheduler.session)
        self.scheduler.step(Step(finished=[request]), self.scheduler.session)

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()


@pytest.fixture
def stream(cuda: Cuda) -> int:
    return cuda.stream()


def memory_of(cuda: Cuda, kind: str) -> Range:
    if kind == "one allocation of cuMemAlloc":
        return cuda.alloc(16 * BLOCK_BYTES)
    if kind == "inside an allocation of cuMemAlloc":
        whole = cuda.alloc(32 * BLOCK_BYTES)
        return Range(whole.address + 8 * BLOCK_BYTES, 16 * BLOCK_BYTES)
    if kind == "one allocation of cuMemCreate":
        return cuda.virtual()
    return cuda.virtual(3)


@pytest.mark.parametrize(
    "kind",
    [
        "one allocation of cuMemAlloc",
        "inside an allocation of cuMemAlloc",
        "one allocation of cuMemCreate",
        "three allocations of cuMemCreate",
    ],
)
def test_bytes_go_both_ways(cuda: Cuda, daemon: DaemonProcess, stream: int, kind: str) -> None:
    engine = Engine(cuda, daemon, memory_of(cuda, kind), lambda: stream)
    engine.save()
    last = engine.blocks - 1
    table = (last, 5, last - 1, 6)
    for block in range(engine.blocks) if engine.blocks < 100 else (*table, 4, 7, last - 2):
        engine.fill(block, 0xEE)
    assert engine.load(table) == [[]]
    assert [engine.read(b) for b in table] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    assert [engine.read(b) for b in (4, 7, last - 2)] == [bytes([0xEE]) * BLOCK_BYTES] * 3
    engine.close()


def test_a_block_may_lie_in_two_allocations(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    whole = cuda.virtual(2)
    # Block 2 begins in the first allocation, and ends in the second.
    middle = Range(whole.address + GRANULE - 2 * BLOCK_BYTES - BLOCK_BYTES // 2, 16 * BLOCK_BYTES)
    engine = Engine(cuda, daemon, middle, lambda: stream)
    engine.save()
    for block in range(16):
        engine.fill(block, 0xEE)
    assert engine.load((4, 3, 2, 1)) == [[]]
    assert [engine.read(b) for b in (4, 3, 2, 1)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_thousands_of_allocations(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    memory = cuda.virtual(4000)
    before = descriptors()
    engine = Engine(cuda, daemon, memory, lambda: stream)
    engine.save()
    table = (engine.blocks - 1, 5, engine.blocks // 2, 6)
    assert engine.load(table) == [[]]
    assert [engine.read(b) for b in table] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    assert descriptors() < before + 20
    engine.close()


def test_a_call_waits_for_the_engines_stream(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    for block in range(4):
        engine.fill(block, 0xEE)
    meta = engine.planned_save()
    go_on = cuda.hold(stream)
    for block in range(4):
        cuda.fill_later(engine.address(block), block + 1, BLOCK_BYTES, stream)
    with ThreadPoolExecutor() as pool:
        saved = pool.submit(engine.worker.save, meta)
        time.sleep(0.2)
        assert not saved.done()  # nothing is copied before the stream comes to the call
        go_on()
        assert saved.result(20) == SaveResult(4)
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def stored(worker: WorkerClient) -> list[StoredPut]:
    wait_until(lambda: not worker.poll() and bool(worker._stored))
    return worker.stored()


def test_a_save_does_not_wait_for_the_engines_stream(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    meta = engine.planned_save()
    go_on = cuda.hold(stream)
    for block in range(4):
        cuda.fill_later(engine.address(block), block + 1, BLOCK_BYTES, stream)
    engine.worker.save_later("step", meta)
    assert not engine.worker.poll() + engine.worker.stored()
    go_on()
    assert stored(engine.worker) == [StoredPut("step", 4, 0, 0)]
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_blocks_are_overwritten_as_soon_as_they_are_taken_back(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    for block in range(4):
        engine.fill(block, block + 1)
    meta = engine.planned_save()
    go_on = cuda.hold(stream)
    engine.worker.save_later("step", meta)
    engine.worker.revoke([2])
    engine.fill(2, 0xEE)
    go_on()
    assert stored(engine.worker) == [StoredPut("step", 2, 2, 0)]
    assert engine.load((9, 8)) == [[]]
    assert [engine.read(b) for b in (9, 8)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2)]
    # What takes its place is saved, though it lies in a block that was taken back.
    engine.fill(2, 9)
    engine.worker.save_later("next step", engine.planned_save("other", [7] * len(TOKENS)))
    assert stored(engine.worker) == [StoredPut("next step", 4, 0, 0)]
    engine.close()


def test_calls_on_another_stream_come_after_those_before(cuda: Cuda, daemon: DaemonProcess) -> None:
    first, second = cuda.stream(), cuda.stream()
    current = [first]
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: current[0])
    for block in range(4):
        engine.fill(block, 0xEE)
    one = engine.planned_save("one", TOKENS, (0, 1, 2, 3))
    two = engine.planned_save("two", [9] * len(TOKENS), (4, 5, 6, 7))
    go_on = cuda.hold(first)
    for block in range(4):
        cuda.fill_later(engine.address(block), block + 1, BLOCK_BYTES, first)
    with ThreadPoolExecutor() as pool:
        saved = pool.submit(engine.worker.save, one)
        wait_until(lambda: engine.worker._registration().calls._number == 1)
        current[0] = second
        other = WorkerClient.save
        again = pool.submit(other, engine.worker, two)
        time.sleep(0.2)
        # The second stream has nothing to do, but its number would speak for the first one's, too.
        assert engine.worker._registration()._page.reached == 0
        assert not saved.done()
        go_on()
        assert saved.result(20) == SaveResult(4)
        assert again.result(20) == SaveResult(4)
    engine.close()


def test_the_number_may_come_from_a_host_function(
    cuda: Cuda, daemon: DaemonProcess, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "has", lambda *_: False)
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    engine.save()
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_a_page_is_kept_until_the_stream_has_written_to_it(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    engine.save()
    registration = engine.worker._registration()
    daemons = memoryview(mmap.mmap(registration._page.fd, PAGE_BYTES)).cast("Q")
    go_on = cuda.hold(stream)
    registration.calls.announce()
    engine.close()
    assert registration._page.fd is not None
    assert registration._page.reached == 1  # the mapping is there
    go_on()
    cuda.synchronize(stream)  # the device has written, and lives
    assert daemons[REACHED_OFFSET // 8] == 2
    wait_until(lambda: is_closed(registration._page))


def is_closed(page: FencePage) -> bool:
    try:
        return page.reached < 0
    except ValueError:
        return True


def test_the_end_of_a_registration_does_not_wait_for_the_device(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    engine.save()
    page = engine.worker._registration()._page
    busy = cuda.stream()
    go_on = cuda.hold(busy)
    with ThreadPoolExecutor() as pool:
        # The driver unregisters host memory once the device is idle: an engine's step has no time for that.
        given_back = pool.submit(engine.worker.unregister, 10)
        try:
            assert given_back.result(20)
        finally:
            go_on()
    wait_until(lambda: is_closed(page))
    engine.close()


def test_a_stream_may_end_between_calls(cuda: Cuda, daemon: DaemonProcess) -> None:
    current = [cuda.stream()]
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: current[0])
    engine.save()
    before = engine.worker._registration()
    cuda.call("cuStreamDestroy_v2", current[0])
    current[0] = cuda.stream()
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    assert engine.worker._registration() is before
    engine.close()


def test_no_call_is_made_while_the_stream_is_captured(
    cuda: Cuda, daemon: DaemonProcess, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    registration = engine.worker._registration()
    meta = engine.planned_save()
    with monkeypatch.context() as patched:  # the stand-in captures nothing
        patched.setattr(CallNumbers, "_captured", lambda *_: True)
        engine.worker.save_later("captured", b"m")
        assert engine.worker.stored() == [StoredPut("captured", 0, 0, 0)]
        assert engine.worker.save(meta) == SaveResult()
        engine.worker.load(meta, [PlannedLoad("x", [1])])
        assert engine.worker.poll() == [FinishedLoad("x", [1])]
    assert engine.worker._registration() is registration
    assert engine.worker.save(meta) == SaveResult(4)  # the numbers of engine and daemon are the same
    engine.close()


def test_a_forked_child_leaves_its_parents_registration_alone(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.virtual(2), lambda: stream)
    engine.save()
    before = engine.worker._registration()
    child = os.fork()
    if child == 0:
        # As a data loader's child: it ends with all that it was forked with.
        del engine
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    assert engine.worker._registration() is before
    engine.close()


def test_everything_comes_back_after_a_restart(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.virtual(2), lambda: stream)
    engine.save()
    before, session = engine.worker._registration(), engine.scheduler.session
    daemon.process.terminate()
    assert daemon.process.wait(20) == 0
    daemon.restart()
    # With the new daemon, both: a call on the old connection would raise.
    wait_until(lambda: engine.worker._registration() not in (None, before) and engine.scheduler.session > session)
    wait_until(lambda: engine.scheduler.match("after", TOKENS).tokens == 4 * BLOCK_SIZE)
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_a_copier_that_is_killed_is_replaced(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    engine.save()
    before = engine.worker._registration()
    for child in children(daemon.process.pid):
        os.kill(child, 9)
    assert engine.load((9, 8, 7, 6)) == [[9, 8, 7, 6]]  # by it the daemon learns that the memory is lost
    wait_until(lambda: engine.worker._registration() not in (None, before), 60)
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_nothing_stays_open(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    for kind in ("one allocation of cuMemAlloc", "three allocations of cuMemCreate"):
        memory = memory_of(cuda, kind)
        Engine(cuda, daemon, memory, lambda: stream).close()
        before = descriptors()
        for number in range(3):
            engine = Engine(cuda, daemon, memory, lambda: stream)
            tokens = [len(kind) + number] * len(TOKENS)
            assert engine.worker.save(engine.planned_save(tokens=tokens)) == SaveResult(4)
            assert engine.worker.unregister(10)
            engine.close()
        wait_until(lambda before=before: descriptors() <= before)


def test_memory_can_be_freed_once_it_is_given_back(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    memory = cuda.virtual(3)
    engine = Engine(cuda, daemon, memory, lambda: stream)
    engine.save()
    assert engine.worker.unregister(10)
    assert engine.worker.save(b"x") == SaveResult()
    cuda.unmap(memory)
    with pytest.raises(EngineMemoryError):
        DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))
    # As after a sleep: other memory is registered.
    engine.memory = cuda.virtual(3)
    engine.device = DeviceMemory([[engine.memory]], 0, lambda: stream, str(cuda.path))
    engine.register()
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_memory_is_taken_back_while_a_load_waits_for_the_stream(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    engine = Engine(cuda, daemon, cuda.alloc(16 * BLOCK_BYTES), lambda: stream)
    engine.save()
    for block in (9, 8, 7, 6):
        engine.fill(block, 0xEE)
    go_on = cuda.hold(stream)
    engine.start_load((9, 8, 7, 6))
    assert engine.worker.poll() == []
    assert engine.worker.unregister(10)
    assert engine.worker.poll() == [FinishedLoad("again", [9, 8, 7, 6])]
    engine.end_load()
    go_on()  # the stream comes to the load when the memory may be somebody else's
    cuda.synchronize(stream)
    engine.register()
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([0xEE]) * BLOCK_BYTES] * 4
    assert engine.load((9, 8, 7, 6)) == [[]]
    assert [engine.read(b) for b in (9, 8, 7, 6)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2, 3, 4)]
    engine.close()


def test_no_step_waits_for_a_registration(cuda: Cuda, daemon: DaemonProcess, stream: int) -> None:
    daemon.freeze()
    memory = DeviceMemory([[cuda.alloc(16 * BLOCK_BYTES)]], 0, lambda: stream, str(cuda.path))
    worker = WorkerClient(options(daemon.socket), 0)
    began = time.monotonic()
    worker.register_memory(memory, [GroupLayout(16, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])])
    worker.load(b"x", [])
    assert worker.save(b"x") == SaveResult()
    assert time.monotonic() - began < options(daemon.socket).timeout  # it would have waited that long
    daemon.process.send_signal(18)
    worker.close()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda cuda: cuda.virtual(1, NONE), "without sleep mode"),
        (lambda cuda: cuda.virtual(1, FABRIC), "IMEX"),
        (lambda _: Range(4096, 4096), "no memory of CUDA"),
        (lambda cuda: Range(cuda.alloc(GRANULE).address, 64 * GRANULE), "no memory of CUDA"),
    ],
)
def test_what_cannot_be_shared_says_why(cuda: Cuda, stream: int, make: Callable[[Cuda], Range], why: str) -> None:
    with pytest.raises(NotShareable, match=why):
        DeviceMemory([[make(cuda)]], 0, lambda: stream, str(cuda.path))


def test_too_much_to_register_is_refused(cuda: Cuda, stream: int) -> None:
    part = cuda.alloc(BLOCK_BYTES)
    with pytest.raises(EngineMemoryError, match="16 regions"):
        DeviceMemory([[part]] * 16, 0, lambda: stream, str(cuda.path))
    with pytest.raises(EngineMemoryError, match="0 regions"):
        DeviceMemory([], 0, lambda: stream, str(cuda.path))
    many = cuda.virtual(600)
    with pytest.raises(NotShareable, match=str(MAX_PARTS)):
        DeviceMemory([[many]] * 15, 0, lambda: stream, str(cuda.path))
    cuda.unmap(many)


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [
        (POINTER_IS_MANAGED, 1, "managed memory"),
        (POINTER_MEMORY_TYPE, 1, "pinned host memory"),
        (POINTER_MEMPOOL, 1, "backend:native"),
        (POINTER_IPC_CAPABLE, 0, "no legacy IPC"),
    ],
)
def test_kinds_of_memory_without_a_handle_say_why(
    cuda: Cuda, stream: int, monkeypatch: pytest.MonkeyPatch, attribute: int, value: int, why: str
) -> None:
    answer = regions._pointer

    def pointer(driver: Driver, asked: int, address: int, otherwise: int = 0) -> int:
        return value if asked == attribute else answer(driver, asked, address, otherwise)

    monkeypatch.setattr(regions, "_pointer", pointer)  # the stand-in has no such memory
    with pytest.raises(NotShareable, match=why):
        DeviceMemory([[cuda.alloc(GRANULE)]], 0, lambda: stream, str(cuda.path))


def test_memory_is_given_back_in_the_middle_of_a_registration(
    cuda: Cuda, daemon: DaemonProcess, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = cuda.virtual(600)
    before = descriptors()
    device = DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))
    reached, go_on = threading.Event(), threading.Event()
    export = regions.export

    def slow(driver: Driver, part: Part) -> int:
        if part.base == memory.address + 300 * GRANULE:
            reached.set()
            go_on.wait(20)
        return export(driver, part)

    monkeypatch.setattr(regions, "export", slow)
    worker = WorkerClient(options(daemon.socket), 0)
    worker.register_memory(device, [GroupLayout(16, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])])
    assert reached.wait(20)
    assert not worker.unregister(0.01)  # an export is under way
    go_on.set()
    assert worker.unregister(20)
    assert worker._registration() is None
    cuda.unmap(memory)
    worker.close()
    wait_until(lambda: descriptors() <= before)


def test_an_export_that_fails_is_said_and_leaves_nothing_open(
    cuda: Cuda, daemon: DaemonProcess, stream: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = cuda.virtual(200)
    before = descriptors()
    device = DeviceMemory([[memory]], 0, lambda: stream, str(cuda.path))
    export = regions.export

    def broken(driver: Driver, part: Part) -> int:
        if part.base == memory.address + 100 * GRANULE:
            raise DriverError("cuMemExportToShareableHandle", 999, "CUDA_ERROR_UNKNOWN")
        return export(driver, part)

    monkeypatch.setattr(regions, "export", broken)
    worker = WorkerClient(options(daemon.socket), 0)
    worker.register_memory(device, [GroupLayout(16, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])])
    wait_until(lambda: "cannot be exported: the CUDA driver answers cuMemExportToShareableHandle" in caplog.text)
    assert worker.unregister(20)
    worker.close()
    wait_until(lambda: descriptors() <= before)


def test_no_driver_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(EngineMemoryError, match="no CUDA driver"):
        Driver(str(tmp_path / "libcuda.so.1"))


def test_the_engines_context_stays_current(cuda: Cuda, stream: int) -> None:
    cuda.call("cuCtxSetCurrent", 0)
    try:
        DeviceMemory([[Range(cuda_memory(cuda).address, BLOCK_BYTES)]], 0, lambda: stream, str(cuda.path))
        assert cuda.get("cuCtxGetCurrent") == 0
    finally:
        cuda.use()


def cuda_memory(cuda: Cuda) -> Range:
    cuda.use()
    memory = cuda.alloc(BLOCK_BYTES)
    cuda.call("cuCtxSetCurrent", 0)
    return memory


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    assert found
    return found
