"""Registrations of memory whose device numbers the calls, against a scripted daemon."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import HELLO, LOAD, REGISTER, SAVE, FakeDaemon, Refuse
from test_client import options, wait_until

from kvconn.client import FinishedLoad, GroupLayout, PlannedLoad, Run, SaveResult, WorkerClient
from kvconn.engine_memory import EngineMemoryError
from kvconn.fence import FencePage
from kvconn.memfd import sealed_memfd

LAYOUT = [GroupLayout(8, [Run(0, 0, 1, 64, 64, 64)])]


class Numbers:
    """A device that has come to each call at once."""

    def __init__(self, page: FencePage) -> None:
        self._page, self.number, self.broken, self.closed = page, 0, False, False

    def announce(self) -> None:
        if self.broken:
            raise EngineMemoryError("the device is lost")
        self.number += 1

    def close(self) -> None:
        self.closed = True
        self._page.close()


class Memory:
    """Memory that notes whether it is handed over now."""

    timeout = 20.0

    def __init__(self) -> None:
        self.numbers: list[Numbers] = []
        self.handing = False
        self.began = threading.Event()

    @contextlib.contextmanager
    def hand_over(self) -> Iterator[list[int]]:
        fd = sealed_memfd("memory", 512)
        self.handing = True
        self.began.set()
        try:
            yield [fd]
        finally:
            self.handing = False
            os.close(fd)

    def calls(self, page: FencePage) -> Numbers:
        self.numbers.append(Numbers(page))
        return self.numbers[-1]


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket_dir / "s")
    daemon.on[SAVE] = lambda _: {"taken": 1, "dropped": 0, "present": 0}
    daemon.on[LOAD] = lambda _: {"n": 1}
    yield daemon
    daemon.stop()


def registered(fake: FakeDaemon, memory: Memory) -> WorkerClient:
    worker = WorkerClient(options(fake.path, retry_interval=0.01), 0)
    worker.register_memory(memory, LAYOUT)
    wait_until(lambda: worker._registration() is not None)
    return worker


def test_memory_is_not_given_back_while_it_is_handed_over(fake: FakeDaemon) -> None:
    release = threading.Event()

    def slow(_: Any) -> Any:
        release.wait(20)
        return {"block_bytes": [1]}

    fake.on[REGISTER] = slow
    memory = Memory()
    worker = WorkerClient(options(fake.path, retry_interval=0.01), 0)
    worker.register_memory(memory, LAYOUT)
    assert memory.began.wait(20)
    assert worker.unregister(20)
    assert not memory.handing  # the engine may free it now
    assert all(numbers.closed for numbers in memory.numbers)
    assert worker._registration() is None
    release.set()
    worker.close()


def test_memory_that_goes_on_being_handed_over_is_not_given_back(fake: FakeDaemon) -> None:
    memory, worker = Memory(), WorkerClient(options(fake.path), 0)
    with worker._registering:
        assert not worker.unregister(0.01)
    worker.register_memory(memory, LAYOUT)
    wait_until(lambda: worker._registration() is not None)
    assert worker.unregister(20)
    worker.close()


def test_each_call_has_a_number(fake: FakeDaemon) -> None:
    memory = Memory()
    worker = registered(fake, memory)
    worker.load(b"x", [PlannedLoad("r", [1])])
    assert worker.save(b"x") == SaveResult(1)
    assert worker.save(b"") == SaveResult()
    assert memory.numbers[-1].number == 2
    assert fake.ops() == [HELLO, REGISTER, LOAD, SAVE]
    worker.close()
    assert all(numbers.closed for numbers in memory.numbers)


@pytest.mark.parametrize("op", [LOAD, SAVE])
def test_what_the_daemon_may_not_have_counted_is_followed_by_a_new_registration(fake: FakeDaemon, op: int) -> None:
    def refuse(_: Any) -> Any:
        raise Refuse("bad_request")

    memory = Memory()
    worker = registered(fake, memory)
    fake.on[op] = refuse
    if op == LOAD:
        worker.load(b"x", [PlannedLoad("r", [1])])
        assert worker.poll() == [FinishedLoad("r", [1])]
    else:
        assert worker.save(b"x") == SaveResult()
    wait_until(lambda: len(memory.numbers) == 2 and worker._registration() is not None)
    assert fake.ops() == [HELLO, REGISTER, op, HELLO, REGISTER]
    worker.close()


def test_without_the_device_nothing_is_asked(fake: FakeDaemon) -> None:
    memory = Memory()
    worker = registered(fake, memory)
    memory.numbers[-1].broken = True
    worker.load(b"x", [PlannedLoad("r", [1])])
    assert worker.poll() == [FinishedLoad("r", [1])]
    wait_until(lambda: len(memory.numbers) == 2 and worker._registration() is not None)
    memory.numbers[-1].broken = True
    assert worker.save(b"x") == SaveResult()
    assert LOAD not in (asked := fake.ops())
    assert SAVE not in asked
    worker.close()


def test_a_call_with_a_number_goes_to_the_daemon_that_counts_it(fake: FakeDaemon) -> None:
    memory = Memory()
    worker = registered(fake, memory)
    former = worker._registration()
    fake.drop()
    wait_until(lambda: worker._registration() not in (None, former))
    assert worker.save(b"x") == SaveResult(1)
    assert [numbers.number for numbers in memory.numbers] == [0, 1]
    worker.close()


def test_a_call_that_fails_before_it_is_sent_is_followed_by_a_new_registration(fake: FakeDaemon) -> None:
    memory = Memory()
    worker = registered(fake, memory)
    with pytest.raises(UnicodeEncodeError):
        worker.save_later("\ud800", b"x")  # its number was announced
    wait_until(lambda: len(memory.numbers) == 2 and worker._registration() is not None)
    assert worker.save(b"x") == SaveResult(1)
    assert memory.numbers[-1].number == fake.ops().count(SAVE)
    worker.close()


def test_the_device_is_left_alone_until_the_daemon_has_the_memory(fake: FakeDaemon) -> None:
    refusals = [Refuse("again"), Refuse("again")]  # as while the copier finds no memory on the GPU

    def late(_: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return {"block_bytes": [1]}

    fake.on[REGISTER] = late
    memory = Memory()
    worker = registered(fake, memory)
    assert fake.ops().count(REGISTER) == 3
    assert len(memory.numbers) == 1
    assert worker.save(b"x") == SaveResult(1)
    worker.close()
