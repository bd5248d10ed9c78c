"""The client of an engine that calls from several threads, against a fake daemon and a real one."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import DaemonProcess
from fake_daemon import FETCH, HELLO, PRESENT, PUT, REGISTER, TOUCH, UNREGISTER, FakeDaemon, HangUpError, Refuse
from test_daemon import BLOCK_BYTES, Memory
from test_daemon import LAYOUT as DAEMON_LAYOUT
from test_daemon import options as daemon_options
from test_keyed import COPIES, FENCED, HASHES, LAYOUT, LOAD, options, wait_until

from kvconn.client import Channel, KeyedChannels, Part
from kvconn.frames import pack_u32s

SESSION = bytes(range(16))
NOTHING = [b"\0", b"\0"]
NAMES = ("ask", "load", "save")
CALLS = (
    lambda c, timeout: c.fetch_wait(LOAD, "r", timeout),
    lambda c, timeout: c.put_wait(LOAD, timeout),
)


def channel_daemon(path: Path) -> FakeDaemon:
    """A daemon that does all that it is asked for."""
    daemon = FakeDaemon(path)
    daemon.on[HELLO] = lambda _: {"version": 5, "server": "fake", "load_timeout_ms": 10_000, "session": SESSION}
    for op in (FETCH, PUT):
        daemon.on[op] = lambda _: {"done": [b"\x03", b"\x01"]}
    daemon.on[TOUCH] = lambda _: {}
    daemon.on[PRESENT] = lambda _: {"groups": [b"\x05", b"\x04"]}
    return daemon


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = channel_daemon(socket_dir / "s")
    yield daemon
    daemon.stop()


def registered(fake: FakeDaemon, **kwargs: Any) -> KeyedChannels:
    channels = KeyedChannels(options(fake.path, **kwargs), NAMES)
    assert channels.register([os.memfd_create("test")], LAYOUT)
    return channels


def test_calls_are_said_as_the_protocol_has_them(fake: FakeDaemon) -> None:
    channels = registered(fake)
    op, hello = fake.asked.get()
    assert (op, hello["versions"], hello["role"]) == (HELLO, [5, 5], "worker")
    assert fake.asked.get()[0] == REGISTER
    for _ in NAMES:
        op, hello = fake.asked.get()
        assert (op, hello["role"], hello["session"], hello["manifest"]) == (HELLO, "channel", SESSION, b"")
    joined = b"".join(HASHES)
    parts = [
        {"group": 0, "parent": b"", "hashes": joined[:64], "slots": pack_u32s([1, 2])},
        {"group": 1, "parent": HASHES[1], "hashes": joined[64:], "slots": pack_u32s([7])},
    ]
    assert channels.channel("load").fetch_wait(LOAD, "r", 8.0) == [b"\x03", b"\x01"]
    told = {"parts": parts, "salt": "", "lora": "", "wait_ms": 7900}
    assert fake.asked.get() == (FETCH, {"r": "load-0", "of": "r", **told})
    assert channels.channel("save").put_wait(LOAD, 60.0, "tenant", "adapter") == [b"\x03", b"\x01"]
    told = {"parts": parts, "salt": "tenant", "lora": "adapter", "wait_ms": 10_000}
    assert fake.asked.get() == (PUT, {"r": "save-0", "of": "", **told})
    assert channels.channel("ask").present("r", HASHES) == [b"\x05", b"\x04"]
    channels.channel("ask").touch("r", HASHES)
    assert fake.ops() == [PRESENT, TOUCH]
    with pytest.raises(ValueError, match="32 bytes"):
        channels.channel("load").fetch_wait([Part(0, b"", [b"short"], [1])], "r", 1.0)
    channels.close()


def test_a_call_that_waits_holds_up_no_other(fake: FakeDaemon) -> None:
    channels = registered(fake)
    began, release = threading.Event(), threading.Event()

    def hold(_: Any) -> Any:
        began.set()
        release.wait(20)
        return {"done": [b"\x01", b"\x00"]}

    fake.on[FETCH] = hold
    with ThreadPoolExecutor() as pool:
        load = pool.submit(channels.channel("load").fetch_wait, LOAD, "r", 30.0)
        assert began.wait(20)
        assert channels.channel("ask").present("r", HASHES) == [b"\x05", b"\x04"]
        assert channels.channel("save").put_wait(LOAD, 30.0) == [b"\x03", b"\x01"]
        assert not load.done()
        release.set()
        assert load.result() == [b"\x01", b"\x00"]
    channels.close()


def test_an_answer_that_comes_byte_by_byte_does_not_outlast_the_deadline(fake: FakeDaemon) -> None:
    channels = registered(fake)
    returned = threading.Event()

    def dribble(_: Any) -> Any:
        conn = fake.conns[2]  # the session's first, then the channels in their order: this is that of loads
        header = (1 << 20).to_bytes(4, "little") + bytes(7) + b"\x01" + bytes(20)
        for byte in header:
            conn.sendall(bytes([byte]))
            if returned.wait(0.02):
                break
        raise HangUpError

    fake.on[FETCH] = dribble
    assert channels.channel("load").fetch_wait(LOAD, "r", 0.2) == NOTHING
    assert fake.fence()[FENCED] == 1
    returned.set()
    channels.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_silent_daemon_is_fenced_off_by_the_deadline(fake: FakeDaemon, call: Callable[[Channel, float], Any]) -> None:
    release = threading.Event()

    def silent(_: Any) -> Any:
        release.wait(20)
        raise HangUpError

    fake.on[FETCH] = fake.on[PUT] = silent
    channels = registered(fake)
    page = fake.fence()
    assert call(channels.channel("load"), 0.2) == NOTHING
    assert page[FENCED] == 1
    assert channels.channel("ask").present("r", HASHES) == NOTHING  # nobody waits for it again
    release.set()
    channels.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ["the copy ends", "the daemon dies"])
def test_no_call_returns_while_its_memory_is_copied(
    fake: FakeDaemon, call: Callable[[Channel, float], Any], end: str
) -> None:
    release = threading.Event()

    def silent(_: Any) -> Any:
        release.wait(20)
        raise HangUpError

    fake.on[FETCH] = fake.on[PUT] = silent
    channels = registered(fake)
    page = fake.fence()
    page[COPIES] = 1
    with ThreadPoolExecutor() as pool:
        result = pool.submit(call, channels.channel("load"), 0.1)
        wait_until(lambda: page[FENCED] == 1)
        time.sleep(0.05)
        assert not result.done()
        if end == "the copy ends":
            page[COPIES] = 0
        else:
            fake.drop()
        assert result.result(20) == NOTHING
    assert channels.channel("load").held_s > 0
    assert channels.channel("ask").held_s == 0
    release.set()
    channels.close()


@pytest.mark.parametrize(
    "answer",
    [{}, {"done": [b"\x03"]}, {"done": [b"\x03\x00", b"\x01"]}, {"done": ["\x03", "\x01"]}, {"done": 7}],
)
@pytest.mark.parametrize("call", CALLS)
def test_garbage_for_an_answer_ends_the_connection(
    fake: FakeDaemon, call: Callable[[Channel, float], Any], answer: Any
) -> None:
    fake.on[FETCH] = fake.on[PUT] = lambda _: answer
    channels = registered(fake)
    assert call(channels.channel("load"), 1.0) == NOTHING
    assert fake.fence()[FENCED] == 1
    channels.close()


def test_what_the_daemon_refuses_leaves_the_connection(fake: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: Any) -> Any:
        raise Refuse("bad_request")

    channels = registered(fake)
    for op in (PRESENT, FETCH, PUT, TOUCH):
        fake.on[op] = refuse
    load = channels.channel("load")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert load.present("r", HASHES) == NOTHING
            assert load.fetch_wait(LOAD, "r", 20.0) == NOTHING
            assert load.put_wait(LOAD, 20.0) == NOTHING
            load.touch("r", HASHES)
    assert caplog.text.count("refused fetch") == 1
    assert fake.fence()[FENCED] == 0
    channels.close()


def test_channels_are_opened_again(fake: FakeDaemon) -> None:
    channels = registered(fake, retry_interval=0.05)
    load = channels.channel("load")
    for _ in range(3):
        fake.drop()
        wait_until(lambda: load.fetch_wait(LOAD, "r", 20.0) == NOTHING)
        wait_until(lambda: load.fetch_wait(LOAD, "r", 20.0) == [b"\x03", b"\x01"])
    channels.close()


def test_without_a_daemon_nothing_is_loaded(socket_dir: Path) -> None:
    channels = KeyedChannels(options(socket_dir / "s"), NAMES)
    load = channels.channel("load")
    assert load.fetch_wait(LOAD, "r", 1.0) == NOTHING
    assert not channels.register([os.memfd_create("test")], LAYOUT)
    assert load.present("r", HASHES) == NOTHING
    assert load.put_wait(LOAD, 1.0) == NOTHING
    load.touch("r", HASHES)
    channels.close()


@pytest.mark.parametrize("reply", [{"version": 4}, {"version": 5}, {"version": 5, "session": "text"}])
def test_a_daemon_without_channels_is_not_used(fake: FakeDaemon, reply: dict[str, Any]) -> None:
    fake.on[HELLO] = lambda _: {"load_timeout_ms": 500, **reply}
    channels = KeyedChannels(options(fake.path), NAMES)
    assert not channels.register([os.memfd_create("test")], LAYOUT)
    channels.close()


def test_memory_is_given_back_beside_calls(fake: FakeDaemon) -> None:
    channels = registered(fake)
    page = fake.fence()
    assert channels.unregister(1.0)
    assert page[FENCED] == 1
    assert UNREGISTER in fake.ops()
    assert channels.channel("load").fetch_wait(LOAD, "r", 1.0) == NOTHING
    channels.close()


def connect(path: Path, memory: Memory) -> KeyedChannels:
    channels = KeyedChannels(daemon_options(path, {"key_scheme": "engine"}), NAMES)
    assert channels.register([memory.fd], DAEMON_LAYOUT)
    return channels


def saved(channels: KeyedChannels, memory: Memory) -> list[bytes]:
    """Save two blocks, and return their hashes."""
    hashes = [os.urandom(32) for _ in range(2)]
    for block in range(2):
        memory.fill(block, block + 1)
    assert channels.channel("save").put_wait([Part(0, b"", hashes, [0, 1])], 10.0) == [b"\x03"]
    wait_until(lambda: channels.channel("ask").present("r", hashes) == [b"\x03"])
    return hashes


def test_threads_load_save_and_ask_at_the_same_time(daemon: Path) -> None:
    memory = Memory()
    channels = connect(daemon, memory)
    hashes = saved(channels, memory)

    def load() -> None:
        for _ in range(50):
            memory.fill(4, 9)
            parts = [Part(0, b"", hashes[:1], [4]), Part(0, hashes[0], [hashes[1], os.urandom(32)], [5, 6])]
            assert channels.channel("load").fetch_wait(parts, "other", 10.0) == [b"\x01", b"\x01"]
            assert [memory.read(b) for b in (4, 5)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2)]

    def save() -> None:
        for _ in range(50):
            assert channels.channel("save").put_wait([Part(0, b"", [os.urandom(32)], [8])], 10.0) == [b"\x01"]

    def ask() -> None:
        for _ in range(200):
            assert channels.channel("ask").present("r", hashes) == [b"\x03"]

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(f) for f in (load, save, ask)]:
            future.result(60)
    channels.close()


def test_a_daemon_that_stands_still_writes_nothing_afterwards(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    channels = connect(daemon_process.socket, memory)
    hashes = saved(channels, memory)
    parts = [Part(0, b"", hashes, [4, 5])]
    for block in (4, 5):
        memory.fill(block, 9)
    daemon_process.freeze()
    try:
        assert channels.channel("load").fetch_wait(parts, "r", 0.5) == [b"\x00"]
    finally:
        daemon_process.process.send_signal(signal.SIGCONT)
    wait_until(lambda: channels.channel("ask").present("again", hashes) == [b"\x03"])
    assert [memory.read(b) for b in (4, 5)] == [bytes([9]) * BLOCK_BYTES] * 2
    # It would have: the same call writes once the daemon runs.
    assert channels.channel("load").fetch_wait(parts, "again", 10.0) == [b"\x03"]
    assert [memory.read(b) for b in (4, 5)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2)]
    channels.close()


def test_channels_come_back_after_a_restart(daemon_process: DaemonProcess) -> None:
    memory = Memory()
    channels = connect(daemon_process.socket, memory)
    hashes = saved(channels, memory)
    daemon_process.process.send_signal(signal.SIGTERM)
    daemon_process.process.wait(20)
    assert channels.channel("load").fetch_wait([Part(0, b"", hashes, [4, 5])], "r", 1.0) == [b"\x00"]
    daemon_process.restart()
    wait_until(lambda: channels.channel("load").fetch_wait([Part(0, b"", hashes, [4, 5])], "r", 1.0) == [b"\x03"])
    assert [memory.read(b) for b in (4, 5)] == [bytes([n]) * BLOCK_BYTES for n in (1, 2)]
    channels.close()
