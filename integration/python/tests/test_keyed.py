"""The client of an engine that brings its own keys, against a fake daemon."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import (
    FETCH,
    HELLO,
    POLL,
    PRESENT,
    PUT,
    REGISTER,
    TOUCH,
    UNREGISTER,
    FakeDaemon,
    HangUpError,
    Refuse,
)
from test_client import impatient

from kvconn.client import FinishedLoad, GroupLayout, KeyedClient, Options, Part, Polled, Run, StoredPut
from kvconn.connection import Connection
from kvconn.frames import pack_u32s

LAYOUT = [GroupLayout(8, [Run(0, 0, 1, 64, 64, 64)]), GroupLayout(8, [Run(0, 512, 1, 64, 64, 64)])]
FENCED, COPIES = 0, 8
HASHES = [bytes([n]) * 32 for n in range(1, 4)]
LOAD = [Part(0, b"", HASHES[:2], [1, 2]), Part(1, HASHES[1], HASHES[2:], [7])]
LOST = Polled([FinishedLoad("a", [1, 2, 7])], [])
DROPPED = Polled([], [StoredPut("a", 0, 3, 0)])


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket_dir / "s")
    daemon.on[HELLO] = lambda _: {"version": 4, "server": "fake", "load_timeout_ms": 600_000}
    daemon.on[POLL] = lambda _: {}
    for op in (FETCH, PUT, TOUCH):
        daemon.on[op] = lambda _: {}
    yield daemon
    daemon.stop()


def options(path: Path, **kwargs: Any) -> Options:
    defaults: dict[str, Any] = {"timeout": 20.0, "retry_interval": 60.0, "manifest": b"{}", "engine": "e"}
    return Options(socket=str(path), **{**defaults, **kwargs})


def registered(fake: FakeDaemon, **kwargs: Any) -> KeyedClient:
    keyed = KeyedClient(options(fake.path, **kwargs))
    assert keyed.register([os.memfd_create("test")], LAYOUT)
    assert fake.ops() == [HELLO, REGISTER]
    return keyed


def test_a_job_is_told_to_the_daemon_that_has_its_memory(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = registered(fake)
    registration = keyed._registration()
    assert registration is not None
    # The daemon is restarted between two steps of a call, and the link's thread has connected again.
    mine, other = keyed._link.connection, Connection.open(str(fake.path), 1.0)
    monkeypatch.setattr(keyed, "_registration", lambda: registration)
    monkeypatch.setattr(keyed._link, "_conn", other)
    called: list[Connection] = []
    monkeypatch.setattr(keyed._link, "call_on", lambda conn, *_: called.append(conn))
    keyed.fetch("a", LOAD)
    assert called == [mine]
    for conn in (mine, other):
        assert conn is not None
        conn.close()


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.005)


def test_calls_are_said_as_the_protocol_has_them(fake: FakeDaemon) -> None:
    fake.on[PRESENT] = lambda _: {"groups": [b"\x05", b"\x04"]}
    keyed = KeyedClient(options(fake.path), rank=3)
    assert keyed.register([os.memfd_create("test")], LAYOUT)
    op, hello = fake.asked.get()
    assert (op, hello["versions"], hello["role"], hello["rank"]) == (HELLO, [4, 4], "worker", 3)
    assert fake.ops() == [REGISTER]
    assert keyed.present("r", HASHES, first=2, parent=HASHES[0], held=1, no_load=True) == [b"\x05", b"\x04"]
    joined = b"".join(HASHES)
    assert fake.asked.get() == (
        PRESENT,
        {"r": "r", "first": 2, "parent": HASHES[0], "hashes": joined, "held": 1, "no_load": True},
    )
    assert keyed.present("r", HASHES, trace="00-ab") == [b"\x05", b"\x04"]
    assert fake.asked.get()[1]["trace"] == "00-ab"
    parts = [
        {"group": 0, "parent": b"", "hashes": joined[:64], "slots": pack_u32s([1, 2])},
        {"group": 1, "parent": HASHES[1], "hashes": joined[64:], "slots": pack_u32s([7])},
    ]
    keyed.fetch("a", LOAD, of="r")
    assert fake.asked.get() == (FETCH, {"r": "a", "of": "r", "parts": parts, "salt": "", "lora": ""})
    keyed.put("a", LOAD, "tenant", "adapter")
    assert fake.asked.get() == (PUT, {"r": "a", "of": "", "parts": parts, "salt": "tenant", "lora": "adapter"})
    keyed.touch("r", HASHES, 100, 2)
    assert fake.asked.get() == (TOUCH, {"r": "r", "hashes": joined, "tokens": 100, "seconds": 2.0})
    keyed.close()


def test_each_job_is_reported_once(fake: FakeDaemon) -> None:
    keyed = registered(fake)
    assert not keyed.busy
    assert keyed.poll() == Polled([], [])
    assert fake.ops() == []
    keyed.fetch("a", LOAD)
    keyed.put("a", LOAD)
    keyed.put("b", LOAD[:1])
    assert keyed.poll() == Polled([], [])
    fake.on[POLL] = lambda _: {
        "finished": [["a", pack_u32s([7])], ["b", b""], ["stranger", b""]],
        "stored": [["b", 1, 0, 1], ["stranger", 0, 0, 0]],
    }
    assert keyed.poll() == Polled([FinishedLoad("a", [7])], [StoredPut("b", 1, 0, 1)])
    assert keyed.busy
    fake.on[POLL] = lambda _: {"finished": [["a", b""]], "stored": [["a", 3, 0, 0], ["b", 1, 0, 1]]}
    assert keyed.poll() == Polled([], [StoredPut("a", 3, 0, 0)])
    assert not keyed.busy
    keyed.close()


def test_what_cannot_be_is_an_error_before_anything_is_sent(fake: FakeDaemon) -> None:
    keyed = registered(fake)
    with pytest.raises(ValueError, match="32 bytes"):
        keyed.present("r", [b"short"])
    with pytest.raises(ValueError, match="32 bytes"):
        keyed.present("r", HASHES, parent=b"short")
    with pytest.raises(ValueError, match="as many slots"):
        keyed.fetch("a", [Part(0, b"", HASHES, [1])])
    keyed.fetch("a", LOAD)
    with pytest.raises(ValueError, match="in flight"):
        keyed.fetch("a", LOAD)
    assert fake.ops() == [FETCH]
    keyed.close()


def test_without_a_daemon_nothing_is_offered_and_every_job_ends(socket_dir: Path) -> None:
    keyed = KeyedClient(options(socket_dir / "s"))
    assert keyed.present("r", HASHES) == []
    assert not keyed.register([os.memfd_create("test")], LAYOUT)
    assert keyed.present("r", [bytes(32)] * 9) == [b"\0\0", b"\0\0"]
    keyed.touch("r", HASHES)
    keyed.fetch("a", LOAD)
    assert keyed.poll() == LOST
    keyed.put("a", LOAD)
    assert keyed.poll() == DROPPED
    assert not keyed.busy
    keyed.close()


def test_no_call_waits_for_a_daemon_that_comes_back(fake: FakeDaemon) -> None:
    # A call that waited would wait for the answer to the hello, which comes after all calls.
    keyed = registered(fake, retry_interval=0.05, timeout=60.0)
    asked, release, answered = threading.Event(), threading.Event(), threading.Event()

    def hello(_: Any) -> Any:
        asked.set()
        release.wait(20)
        answered.set()
        return {"version": 4, "load_timeout_ms": 500}

    fake.on[HELLO] = hello
    fake.drop()
    wait_until(lambda: keyed._link.connection is None)
    assert asked.wait(20)
    for n in range(20):
        keyed.present("r", HASHES)
        keyed.touch("r", HASHES)
        keyed.fetch(f"{n}", LOAD)
        keyed.put(f"{n}", LOAD)
        assert not answered.is_set()
    ended = keyed.poll()
    assert (len(ended.finished), len(ended.stored)) == (20, 20)
    assert not answered.is_set()
    release.set()
    fake.on[PRESENT] = lambda _: {"groups": [b"\x01", b"\x01"]}
    wait_until(lambda: keyed.present("r", HASHES) == [b"\x01", b"\x01"])
    keyed.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"groups": [b"\x01"]},
        {"groups": [b"\x01\x01", b""]},
        {"groups": ["\x01", "\x01"]},
        {"groups": 7},
        {"n": 3},
    ],
)
def test_no_garbage_is_taken_for_an_offer(fake: FakeDaemon, answer: Any) -> None:
    fake.on[PRESENT] = lambda _: answer
    keyed = registered(fake)
    assert keyed.present("r", HASHES) == [b"\0", b"\0"]
    keyed.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"finished": [["a"]]},
        {"stored": [["a", 1, 2]]},
        {"stored": [["a", 1, 2, "3"]]},
        {"stored": [["a", 1, 2, True]]},
        {"stored": 7},
    ],
)
def test_garbage_for_a_report_ends_the_connection(fake: FakeDaemon, answer: Any) -> None:
    fake.on[POLL] = lambda _: answer
    keyed = registered(fake)
    keyed.fetch("a", LOAD)
    assert keyed.poll() == LOST
    assert fake.fence()[FENCED] == 1
    keyed.close()


def test_what_the_daemon_refuses_ends_at_once(fake: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: Any) -> Any:
        raise Refuse("bad_request")

    keyed = registered(fake)
    for op in (PRESENT, FETCH, PUT, TOUCH):
        fake.on[op] = refuse
    with caplog.at_level(logging.WARNING):
        assert keyed.present("r", HASHES) == [b"\0", b"\0"]
        keyed.touch("r", HASHES)
        keyed.fetch("a", LOAD)
        keyed.put("b", LOAD)
    assert "refused fetch" in caplog.text
    assert keyed.poll() == Polled(LOST.finished, [StoredPut("b", 0, 3, 0)])
    assert fake.fence()[FENCED] == 0
    keyed.close()


def test_an_older_daemon_is_not_used(socket_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeDaemon(socket_dir / "s")
    keyed = KeyedClient(options(fake.path))
    assert not keyed.register([os.memfd_create("test")], LAYOUT)
    assert "protocol version 2" in caplog.text
    keyed.close()
    fake.stop()


@pytest.mark.parametrize(("start", "report"), [(KeyedClient.fetch, LOST), (KeyedClient.put, DROPPED)])
def test_a_copy_under_way_keeps_its_job_open_until_it_has_ended(
    fake: FakeDaemon, start: Callable[..., None], report: Polled
) -> None:
    keyed = registered(fake)
    start(keyed, "a", LOAD)
    page = fake.fence()
    page[COPIES] = 1
    release = threading.Event()

    def silent(_: Any) -> Any:
        release.wait(20)
        raise HangUpError

    fake.on[POLL] = silent
    impatient(keyed)
    assert keyed.poll() == Polled([], [])  # after the deadline of the call
    assert page[FENCED] == 1
    assert keyed.busy
    assert keyed.poll() == Polled([], [])
    page[COPIES] = 0
    assert keyed.poll() == report
    assert keyed.poll() == Polled([], [])
    release.set()
    keyed.close()


@pytest.mark.parametrize(("op", "start", "report"), [(FETCH, KeyedClient.fetch, LOST), (PUT, KeyedClient.put, DROPPED)])
def test_a_job_that_may_have_begun_ends_when_nothing_is_copied(
    fake: FakeDaemon, op: int, start: Callable[..., None], report: Polled
) -> None:
    def hang_up(_: Any) -> Any:
        raise HangUpError

    keyed = registered(fake)
    page = fake.fence()
    fake.on[op] = hang_up
    start(keyed, "a", LOAD)
    assert keyed.poll() == report
    assert page[FENCED] == 1
    assert fake.ops() == [op]  # it is not repeated
    keyed.close()


@pytest.mark.parametrize(("start", "report"), [(KeyedClient.fetch, LOST), (KeyedClient.put, DROPPED)])
def test_an_overdue_job_is_fenced(fake: FakeDaemon, start: Callable[..., None], report: Polled) -> None:
    fake.on[HELLO] = lambda _: {"version": 4, "load_timeout_ms": 1}
    keyed = registered(fake)
    impatient(keyed, 0.2)  # a job has the daemon's time and this
    start(keyed, "a", LOAD)
    ended: list[Polled] = []

    def reported() -> bool:
        ended.append(keyed.poll())
        return not keyed.busy

    wait_until(reported)
    assert [e for e in ended if e != Polled([], [])] == [report]
    assert fake.fence()[FENCED] == 1
    keyed.close()


def test_memory_that_is_taken_back_ends_every_job(fake: FakeDaemon) -> None:
    keyed = registered(fake)
    keyed.fetch("a", LOAD)
    keyed.put("b", LOAD)
    page = fake.fence()
    assert keyed.unregister(1.0)
    assert page[FENCED] == 1
    assert keyed.poll() == Polled(LOST.finished, [StoredPut("b", 0, 3, 0)])
    assert fake.ops()[-1] == UNREGISTER
    keyed.close()
