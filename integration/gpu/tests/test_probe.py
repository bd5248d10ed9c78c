"""The questions of probe.py that a driver could answer wrongly: on the stand-in, and on what breaks its promises."""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import threading
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("question", ["words", "order", "killed", "containers"])
def test_the_stand_in_answers_as_it_should(scenes, question):
    def scene(library, question):
        import json
        import sys

        import probe

        sys.argv = [probe.__file__, library, question]
        probe.probe_killed.KILLS, probe.ORDER_ROUNDS = 2, 20
        ask = {"words": probe.words, "order": probe.order}
        ask |= {"killed": probe.probe_killed.killed, "containers": probe.probe_containers.containers}
        print(json.dumps(ask[question]()))

    answer = json.loads(scenes.run(scene, str(scenes.library), question, path=str(GPU)))
    if why := answer.get("skip"):
        pytest.skip(why)
    assert answer


def early(early: int) -> None:
    import itertools
    import os

    import probe

    fills = itertools.count(1)

    def fill(cu, memory: int, byte: int, size: int, stream) -> None:
        if next(fills) == early:  # These bytes never come: no pause of this process lets them come in time.
            page = probe.shared(4096)
            cu.cuStreamWaitValue64_v2(stream, probe.registered(cu, page, 4096), 1, 0)
        cu.code.cuMemsetD8Async(memory, byte, size, stream)

    def write(cu, stream, address: int, number: int, flags: int) -> None:
        if number == early:
            probe.word(address).value = number
        else:
            cu.code.cuStreamWriteValue64_v2(stream, address, number, flags)

    driver.Driver.cuMemsetD8Async, driver.Driver.cuStreamWriteValue64_v2 = fill, write  # noqa: F821 - scenes have it
    try:
        probe.order()
    except SystemExit as error:
        print(error, flush=True)
        os._exit(1)  # The driver's own end would wait for those bytes.


@pytest.mark.parametrize(("number", "what"), [(1, "bytes"), (2, "a copy")])
def test_a_number_that_comes_too_early_is_seen(stand_in, scenes, number, what):
    said = scenes.run(early, number, path=str(GPU), status=1)
    assert said == f"error: number {number} came before {what} queued ahead of it\n"


class Killed:
    """A process that copies until it is killed, or longer."""

    def __init__(self, connection: socket.socket, memories: list, goes_on: int | None) -> None:
        self._connection, self._memories, self._goes_on = connection, memories, goes_on
        self._dead = threading.Event()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        connection.send(b"r")
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        number = 0
        while not self._ended.wait(0.001):
            number += 1
            with self._lock:
                for which, memory in enumerate(self._memories):
                    if not self._dead.is_set() or which == self._goes_on:
                        ctypes.memset(memory, number % 256, len(memory))

    def kill(self) -> None:
        with self._lock:
            self._dead.set()
        self._connection.close()

    def wait(self, timeout: float) -> None:
        """It ends."""


@pytest.fixture
def killing(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU))
    # Another test may have left out modules of this name.
    for name in ("probe_killed", "probing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import probe_killed

    monkeypatch.setattr(probe_killed, "BYTES", 4096)
    monkeypatch.setattr(probe_killed, "QUIET_S", 0.1)
    return probe_killed


class Memory:
    """A driver whose device memory is of the host."""

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)


@pytest.mark.parametrize(
    ("goes_on", "why"), [(None, None), (0, "host memory has changed"), (1, "another's GPU memory has changed")]
)
def test_copies_after_a_kill_are_seen(killing, goes_on, why):
    memories = [(ctypes.c_ubyte * 4096)() for _ in range(2)]
    ours, theirs = socket.socketpair()
    other = Killed(theirs, memories, goes_on)
    try:
        addresses = [ctypes.addressof(m) for m in memories]
        if why is None:
            assert killing._killed(Memory(), other, ours, *addresses) >= 0
        else:
            with pytest.raises(SystemExit, match=why):
                killing._killed(Memory(), other, ours, *addresses)
    finally:
        other._ended.set()
        ours.close()
