"""What goes wrong around the channels: silent peers, replaced sockets, no descriptors left, threads that share."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FETCH, HELLO, PRESENT, PUT, REGISTER, FakeDaemon, HangUpError
from test_client import impatient
from test_daemon import LAYOUT as DAEMON_LAYOUT
from test_daemon import Memory
from test_daemon import options as daemon_options
from test_keyed import FENCED, HASHES, LAYOUT, LOAD, options, wait_until
from test_keyed_channels import NAMES, NOTHING, channel_daemon, fake, registered

from kvconn import connection
from kvconn.client import KeyedChannels, Part

__all__ = ["fake"]


def opened() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave this process that many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(count + 1)]
    # The limit is on the highest number: those below it that are free now are taken by the copies.
    limit = max(free)
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_nothing_is_kept_open(daemon: Path) -> None:
    memory = Memory()
    parts = [Part(0, b"", HASHES[:1], [1])]
    for left in range(10):
        channels = KeyedChannels(daemon_options(daemon, {"key_scheme": "engine"}), NAMES)
        before = opened()
        with descriptors_left(left):
            taken = channels.register([memory.fd], DAEMON_LAYOUT)
            assert channels.channel("load").fetch_wait(parts, "r", 1.0) == [b"\0"]
        assert taken == (left >= 6), "a socket for the session and each channel, and the fence page with its mapping"
        channels.close()
        wait_until(lambda before=before: opened() <= before)  # other threads open and close some, too


@contextlib.contextmanager
def held(fake: FakeDaemon, op: int, answer: Any) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Have the daemon keep calls waiting until the second event is set; the first says that one waits."""
    began, release = threading.Event(), threading.Event()

    def hold(_: Any) -> Any:
        began.set()
        release.wait(20)
        return answer

    fake.on[op] = hold
    try:
        yield began, release
    finally:
        release.set()


def test_a_thread_waits_for_a_channel_no_longer_than_its_deadline(fake: FakeDaemon) -> None:
    channels = registered(fake)
    impatient(channels, 0.2)
    load = channels.channel("load")
    with ThreadPoolExecutor() as threads, held(fake, FETCH, {"done": [b"\x03", b"\x01"]}) as (began, release):
        first = threads.submit(load.fetch_wait, LOAD, "r", 30.0)
        assert began.wait(20)
        for call, want in (
            (lambda: load.fetch_wait(LOAD, "r", 0.2), NOTHING),
            (lambda: load.present("r", HASHES), NOTHING),
            (lambda: load.touch("r", HASHES), None),
        ):
            assert threads.submit(call).result(20) == want
        assert not first.done(), "nobody took its connection away"
        assert fake.fence()[FENCED] == 0
        release.set()
        assert first.result(20) == [b"\x03", b"\x01"]
    channels.close()


def test_what_a_thread_waited_for_a_channel_is_no_time_for_the_daemon(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = registered(fake)
    load = channels.channel("load")
    fake.on[FETCH] = lambda _: {"done": [b"\x03", b"\x01"]}
    turns = load._turns

    class Slow:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if not blocking:
                return False
            time.sleep(0.2)
            return turns.acquire(timeout=timeout)

        def release(self) -> None:
            turns.release()

    monkeypatch.setattr(load, "_turns", Slow())
    assert load.fetch_wait(LOAD, "r", 10.0) == [b"\x03", b"\x01"]
    (told,) = (body["wait_ms"] for op, body in fake.asked.queue if op == FETCH)
    assert told <= 9700
    channels.close()


def test_a_daemon_that_hangs_in_calls_is_left_alone_after_the_second(fake: FakeDaemon) -> None:
    channels = registered(fake, timeout=5.0, retry_interval=0.01)
    load, first = channels.channel("load"), channels._link.connection
    with held(fake, FETCH, {}) as (_, release):
        assert load.fetch_wait(LOAD, "r", 0.1) == NOTHING
        wait_until(lambda: channels._link.connection not in (None, first))
        assert load.fetch_wait(LOAD, "r", 0.1) == NOTHING
        time.sleep(0.3)  # it would answer a hello at once
        assert load.fetch_wait(LOAD, "r", 0.1) == NOTHING
        release.set()
    assert fake.ops().count(HELLO) == 2 * (1 + len(NAMES))
    channels.close()


def test_whatever_a_call_fails_of_its_memory_is_taken_back(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise MemoryError

    for op, call in ((FETCH, "fetch_wait"), (PUT, "put_wait")):
        channels = registered(fake)
        fake.on[op] = lambda _: {"done": [b"\x03", b"\x01"]}
        with monkeypatch.context() as patch:
            patch.setattr(connection, "unpack_header", exhausted)
            with pytest.raises(MemoryError):
                getattr(channels.channel("load"), call)(LOAD, *["r"] * (op == FETCH), timeout=20.0)
        assert fake.fence()[FENCED] == 1
        channels.close()


@pytest.mark.parametrize("waiting", [0, 3], ids=["that accepts nobody", "whose backlog is full"])
def test_behind_a_listener_nobody_answers_and_then_a_daemon_does(socket_dir: Path, waiting: int) -> None:
    path = socket_dir / "s"
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(path))
    mute.listen(0)
    others = [socket.socket(socket.AF_UNIX) for _ in range(waiting)]
    for other in others:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            other.connect(str(path))
    channels = KeyedChannels(options(path, timeout=0.2, retry_interval=0.05), NAMES)
    assert not channels.register([os.memfd_create("test")], LAYOUT)
    assert channels.channel("load").fetch_wait(LOAD, "r", 1.0) == NOTHING
    path.unlink()  # another daemon takes its place
    there = channel_daemon(path)
    wait_until(lambda: channels.channel("load").fetch_wait(LOAD, "r", 1.0) == [b"\x03", b"\x01"])
    channels.close()
    for end in (mute, *others):
        end.close()
    there.stop()


@pytest.mark.parametrize("op", [HELLO, REGISTER, "a channel's hello"])
def test_a_daemon_that_falls_silent_while_an_engine_connects(fake: FakeDaemon, op: Any) -> None:
    hello, wait = fake.on[HELLO], threading.Event()

    def silent(body: dict[str, Any]) -> Any:
        if op in (HELLO, REGISTER) or body["role"] == "channel":
            wait.wait(20)
            raise HangUpError
        return hello(body)

    fake.on[op if op == REGISTER else HELLO] = silent
    channels = KeyedChannels(options(fake.path, timeout=0.2), NAMES)
    assert not channels.register([os.memfd_create("test")], LAYOUT)
    assert channels.channel("load").fetch_wait(LOAD, "r", 1.0) == NOTHING
    if fake.fds:
        assert fake.fence()[FENCED] == 1
    wait.set()
    channels.close()


def test_the_daemon_at_the_socket_changes_only_when_the_connected_one_ends(fake: FakeDaemon, socket_dir: Path) -> None:
    channels = registered(fake, retry_interval=0.05)
    load, answer = channels.channel("load"), {"done": [b"\x01", b"\x00"]}
    fake.path.unlink()
    other = channel_daemon(fake.path)
    other.on[FETCH] = lambda _: answer
    assert load.fetch_wait(LOAD, "r", 20.0) == [b"\x03", b"\x01"]
    page = fake.fence()
    fake.drop()
    wait_until(lambda: load.fetch_wait(LOAD, "r", 20.0) == answer["done"])
    assert page[FENCED] == 1
    channels.close()
    other.stop()


def test_closing_ends_the_calls_of_other_threads(fake: FakeDaemon) -> None:
    channels = registered(fake)
    page = fake.fence()
    calls: list[Callable[[], Any]] = [
        lambda: channels.channel("load").fetch_wait(LOAD, "r", 30.0),
        lambda: channels.channel("save").put_wait(LOAD, 30.0),
        lambda: channels.channel("ask").present("r", HASHES),
    ]
    with contextlib.ExitStack() as stack:
        began = [stack.enter_context(held(fake, op, {}))[0] for op in (FETCH, PUT, PRESENT)]
        threads = stack.enter_context(ThreadPoolExecutor())
        results = [threads.submit(call) for call in calls]
        assert all(event.wait(20) for event in began)
        channels.close()
        assert page[FENCED] == 1
        assert [r.result(20) for r in results] == [NOTHING] * 3


def test_a_process_ends_while_its_calls_wait(fake: FakeDaemon) -> None:
    program = """
import os, sys, threading, time
from test_keyed import HASHES, LAYOUT, LOAD, options
from kvconn.client import KeyedChannels
channels = KeyedChannels(options(sys.argv[1]), ("ask", "load"))
assert channels.register([os.memfd_create("test")], LAYOUT)
threading.Thread(target=channels.channel("load").fetch_wait, args=(LOAD, "r", 60.0), daemon=True).start()
sys.stdin.readline()
"""
    with held(fake, FETCH, {}) as (began, _):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(fake.path)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert began.wait(60)
        assert child.communicate(b"\n", timeout=60) == (None, b"")
        assert child.returncode == 0
