from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import (
    CANCEL,
    ERROR,
    HELLO,
    LOAD,
    LOADED,
    MATCH,
    POLL,
    REGISTER,
    REPLY,
    RESET,
    SAVE,
    STEP,
    UNREGISTER,
    FakeDaemon,
    HangUpError,
    Refuse,
    frame,
)

from kvconn import __version__, client, link
from kvconn.client import (
    FinishedLoad,
    GroupLayout,
    Offer,
    Options,
    PlannedLoad,
    Run,
    SaveResult,
    SchedulerClient,
    Span,
    Step,
    WorkerClient,
)
from kvconn.connection import Connection
from kvconn.frames import Op, pack_u32s
from kvconn.memory_client import MemoryClient

LAYOUT = [GroupLayout(8, [Run(0, 0, 1, 64, 64, 64)])]
FENCED, COPIES = 0, 8


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket_dir / "s")
    yield daemon
    daemon.stop()


def options(path: Path, **kwargs: Any) -> Options:
    defaults: dict[str, Any] = {"timeout": 20.0, "retry_interval": 0.05, "manifest": b"{}", "engine": "e"}
    return Options(socket=str(path), **{**defaults, **kwargs})


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.005)


def impatient(client: SchedulerClient | MemoryClient, timeout: float = 1.0) -> None:
    """Have a client that is connected wait no longer for an answer that will not come.

    Until then it is patient: on a busy machine, what answers may take its time.
    """
    client._options = client._link._options = replace(client._link._options, timeout=timeout)


def registered_worker(path: Path, **kwargs: Any) -> WorkerClient:
    worker = WorkerClient(options(path, **kwargs), rank=0)
    fd = os.memfd_create("test")
    assert worker.register([fd], LAYOUT)
    return worker


def polled(worker: WorkerClient) -> list[FinishedLoad]:
    """What poll reports until nothing is in flight."""
    reports: list[FinishedLoad] = []

    def idle() -> bool:
        reports.extend(worker.poll())
        return not worker.busy

    wait_until(idle)
    return reports


# Connecting


def test_each_reason_not_to_connect_has_its_own_error(socket_dir: Path) -> None:
    with pytest.raises(client.SocketMissing):
        Connection.open(str(socket_dir / "none"), 0.1)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(socket_dir / "stale"))
    stale.close()
    with pytest.raises(client.SocketRefused):
        Connection.open(str(socket_dir / "stale"), 0.1)
    (socket_dir / "file").write_text("")
    with pytest.raises(client.SocketRefused):
        Connection.open(str(socket_dir / "file"), 0.1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_socket_of_another_user_is_a_permission_error(fake: FakeDaemon) -> None:
    os.chmod(fake.path.parent, 0o755)
    os.chmod(fake.path, 0o600)
    os.seteuid(65534)
    try:
        with pytest.raises(client.SocketPermission):
            Connection.open(str(fake.path), 0.1)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("socket", ""), ("socket", "/" + "x" * 107), ("engine", ""), ("manifest", b"")],
        *[("timeout", seconds) for seconds in (0.0, float("nan"), float("inf"))],
    ],
)
def test_options_that_cannot_work_are_refused(setting: str, value: Any) -> None:
    good: dict[str, Any] = {"socket": "/s", "engine": "e", "manifest": b"{}"}
    with pytest.raises(ValueError):  # noqa: PT011
        Options(**{**good, setting: value})


def test_hello_says_who_connects(fake: FakeDaemon) -> None:
    assert WorkerClient(options(fake.path), rank=3)._link.connect() is not None
    op, body = fake.asked.get()
    assert op == HELLO
    assert body["versions"] == [2, 2]
    assert (body["role"], body["rank"], body["engine"], body["manifest"]) == ("worker", 3, "e", b"{}")
    assert body["staged"] is False
    # The daemon cannot see the process of another container: its log and status have what the client says.
    assert body["client"] == f"kvconn-python/{__version__} host/{socket.gethostname()} pid/{os.getpid()}"


def test_a_client_with_a_long_name_is_let_in(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udce9" + 600 * "x")
    assert WorkerClient(options(fake.path), rank=0)._link.connect() is not None
    assert fake.asked.get()[1]["client"] == f"kvconn-python/{__version__}"
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udce9")
    assert WorkerClient(options(fake.path), rank=0)._link.connect() is not None
    assert fake.asked.get()[1]["client"] == f"kvconn-python/{__version__} host/h? pid/{os.getpid()}"


def test_no_connection_is_made_while_the_manifest_is_not_known(
    fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    known: list[bytes] = []
    options = Options(
        socket=str(fake.path), engine="e", manifest=lambda: known[0] if known else None, timeout=20, retry_interval=0.01
    )
    scheduler = SchedulerClient(options)
    assert not scheduler.connect()
    time.sleep(0.05)
    ours = [r for r in caplog.records if str(fake.path) in r.getMessage()]  # others' threads may still end
    assert (fake.ops(), scheduler.session, ours) == ([], 0, [])
    known.append(b"{}")
    until = time.monotonic() + 10
    while not scheduler.session and time.monotonic() < until:
        time.sleep(0.01)
    assert fake.asked.get(timeout=10)[1]["manifest"] == b"{}"
    scheduler.close()


def test_a_manifest_too_large_is_never_sent(fake: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = SchedulerClient(Options(socket=str(fake.path), engine="e", manifest=lambda: bytes(64 << 10 | 1)))
    assert not scheduler.connect()
    assert fake.ops() == []
    assert "manifest of 65537 bytes" in caplog.text
    scheduler.close()


def test_absence_is_said_once_and_so_is_the_return(socket_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scheduler = SchedulerClient(options(socket_dir / "s"))
    assert not scheduler.connect()
    for _ in range(20):
        with pytest.raises(client.Unavailable):
            scheduler.match("r", [1])
    fake = FakeDaemon(socket_dir / "s")

    def said(level: int) -> list[str]:  # of this daemon: clients of other tests may still be watching theirs
        return [r.getMessage() for r in caplog.records if r.levelno >= level and str(socket_dir) in r.getMessage()]

    wait_until(lambda: any("is back" in message for message in said(logging.INFO)))
    warnings = said(logging.WARNING)
    assert len(warnings) == 1
    assert "No such file" in warnings[0]
    scheduler.close()
    fake.stop()


def test_without_a_daemon_calls_do_not_connect_themselves(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[threading.Thread] = []
    open_really = Connection.open

    def open_counted(path: str, timeout: float) -> Connection:
        if path == str(socket_dir / "s"):  # clients of other tests may still be watching their daemons
            opened.append(threading.current_thread())
        return open_really(path, timeout)

    monkeypatch.setattr(Connection, "open", open_counted)
    scheduler = SchedulerClient(options(socket_dir / "s", retry_interval=60.0))
    scheduler.connect()
    for _ in range(100):
        with pytest.raises(client.Unavailable):
            scheduler.match("r", [1])
    assert opened == [threading.current_thread()]
    scheduler.close()


def test_a_connection_that_is_given_up_is_complained_of_by_its_reason(
    fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(conn: Connection) -> None:
        conn.close()
        time.sleep(0.2)  # the thread that watches it sees that

    held = link.Link(options(fake.path), "scheduler", on_lost=slow)
    conn = held.connect()
    assert conn is not None
    held.give_up(conn, client.Unavailable("the reason"))
    assert "the reason" in caplog.text
    assert "is gone" not in caplog.text
    held.close()


def test_a_daemon_that_chose_another_version_is_not_used(fake: FakeDaemon) -> None:
    fake.on[HELLO] = lambda _: {"version": 1, "load_timeout_ms": 5}
    assert not SchedulerClient(options(fake.path)).connect()


def test_a_daemon_that_refuses_the_version_is_named_so(fake: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: Any) -> None:
        raise Refuse("version")

    fake.on[HELLO] = refuse
    assert not SchedulerClient(options(fake.path)).connect()
    assert "refused hello" in caplog.text


@pytest.mark.parametrize("load_timeout_ms", [0, -1, 10**9, "x"])
def test_a_load_timeout_out_of_bounds_is_refused(fake: FakeDaemon, load_timeout_ms: Any) -> None:
    fake.on[HELLO] = lambda _: {"version": 2, "load_timeout_ms": load_timeout_ms}
    assert not SchedulerClient(options(fake.path)).connect()


# Scheduler


def test_match_carries_the_request_and_returns_the_offer(fake: FakeDaemon) -> None:
    fake.on[MATCH] = lambda _: {"tokens": 256, "async": True}
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    spans = [Span(0, 3, b"image")]
    offer = scheduler.match("r", [5, 6], start=2, prompt=4, computed=128, spans=spans, salt="s", lora="l", no_save=True)
    assert offer == Offer(256, True)
    fake.asked.get()
    assert fake.asked.get() == (
        MATCH,
        {
            "r": "r",
            "from": 2,
            "tokens": pack_u32s([5, 6]),
            "prompt": 4,
            "computed": 128,
            "spans": [[0, 3, b"image"]],
            "salt": "s",
            "lora": "l",
            "no_load": False,
            "no_save": True,
        },
    )


def test_step_and_loaded_carry_everything(fake: FakeDaemon) -> None:
    fake.on[STEP] = lambda _: {"meta": b"m", "loads": [["r", pack_u32s([4, 5])]]}
    fake.on[LOADED] = lambda _: {}
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    step = Step(
        [client.Alloc("r", [[4, 5], [client.NO_BLOCK, 6]], 0, 256, [0, 128])],
        [client.Scheduled("q", [[7], [8]], True, 128, 9, [1], 136)],
        ["p"],
        ["f"],
    )
    assert scheduler.step(step, 1) == (b"m", [PlannedLoad("r", [4, 5])], ())
    scheduler.loaded(["r"], {5}, 1)
    scheduler.tell(Step(finished=["r"]), 1)
    fake.asked.get()
    assert fake.asked.get()[1] == {
        "allocs": [
            {
                "r": "r",
                "blocks": [pack_u32s([4, 5]), pack_u32s([0xFFFFFFFF, 6])],
                "group_computed": [0, 128],
                "computed": 0,
                "external": 256,
            }
        ],
        "scheduled": [
            {
                "r": "q",
                "blocks": [pack_u32s([7]), pack_u32s([8])],
                "reset": True,
                "computed": 128,
                "count": 9,
                "from": 136,
                "tokens": pack_u32s([1]),
            }
        ],
        "preempted": ["p"],
        "finished": ["f"],
    }
    assert fake.asked.get()[1] == {"done": ["r"], "invalid": pack_u32s([5])}
    assert fake.asked.get() == (STEP, {"allocs": [], "scheduled": [], "preempted": [], "finished": ["r"]})


def hold(fake: FakeDaemon, op: int) -> threading.Event:
    """Have the daemon answer no request of a kind before the event that is returned, or 20 seconds."""
    release = threading.Event()

    def held(_: Any) -> Any:
        release.wait(20)
        return {}

    fake.on[op] = held
    return release


def test_an_answer_that_nobody_needs_is_read_by_the_next_call(fake: FakeDaemon) -> None:
    release = hold(fake, LOADED)
    blocks = list(range(50_000))
    fake.on[STEP] = lambda body: {"meta": b"", "loads": [["r", pack_u32s(blocks)]]} if body["allocs"] else {}
    fake.on[MATCH] = lambda _: {"tokens": 5, "async": True}
    scheduler = SchedulerClient(options(fake.path, timeout=20.0))
    assert scheduler.connect()
    for name in ("a", "b"):
        scheduler.loaded([name], (), 1)
        scheduler.tell(Step(finished=[name]), 1)
    release.set()
    assert scheduler.step(Step(allocs=[client.Alloc("r", [[1]], 0, 1)]), 1).loads == [PlannedLoad("r", blocks)]
    scheduler.loaded(["c"], (), 1)
    assert scheduler.match("r", [1]).tokens == 5
    assert fake.ops() == [HELLO, LOADED, STEP, LOADED, STEP, STEP, LOADED, MATCH]
    scheduler.close()


@pytest.mark.parametrize("code", ["bad_request", "internal", "protocol", "unknown_request"])
def test_an_error_that_nobody_waited_for_ends_the_session(fake: FakeDaemon, code: str) -> None:
    def refuse(_: Any) -> Any:
        raise Refuse(code)

    fake.on[STEP] = refuse
    fake.on[MATCH] = lambda _: {"tokens": 5, "async": True}
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()
    scheduler.tell(Step(finished=["r"]), 1)
    with pytest.raises(client.ProtocolError, match="refused step"):
        scheduler.match("r", [1])
    assert scheduler.session == 0, "what the leader knows is uncertain"
    scheduler.close()


def test_a_daemon_that_falls_silent_is_found_by_the_next_call(fake: FakeDaemon) -> None:
    release = hold(fake, LOADED)
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()
    impatient(scheduler, 0.2)
    scheduler.loaded(["r"], (), 1)
    with pytest.raises(client.DeadlineExceeded):
        scheduler.match("r", [1])
    assert scheduler.session == 0
    release.set()
    scheduler.close()


def test_a_silent_daemon_is_not_told_without_end(fake: FakeDaemon) -> None:
    release = hold(fake, LOADED)
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()
    impatient(scheduler, 0.2)

    def tell() -> None:
        for _ in range(1000):
            scheduler.loaded(["r"], (), 1)

    with pytest.raises(client.DeadlineExceeded):
        tell()
    release.set()
    scheduler.close()


def test_a_request_larger_than_the_socket_takes_is_sent_whole(fake: FakeDaemon) -> None:
    fake.on[MATCH] = lambda body: {"tokens": len(body["tokens"]) // 4, "async": True}
    scheduler = SchedulerClient(options(fake.path, timeout=20.0))
    assert scheduler.connect()
    for tokens in (1_000_000, 1, 300_000):
        assert scheduler.match("r", range(tokens)).tokens == tokens
    scheduler.close()


def test_a_reset_is_told(fake: FakeDaemon) -> None:
    fake.on[RESET] = lambda _: {}
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    scheduler.reset()
    assert fake.ops() == [HELLO, RESET]


def test_an_error_answer_leaves_the_connection_usable(fake: FakeDaemon) -> None:
    def refuse(body: dict[str, Any]) -> Any:
        if body["from"]:
            raise Refuse("unknown_request")
        return {"tokens": 0}

    fake.on[MATCH] = refuse
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    with pytest.raises(client.UnknownRequest):
        scheduler.match("r", [1], start=5)
    assert scheduler.match("r", [1]) == Offer(0, False)
    assert scheduler.session == 1


def test_a_daemon_that_comes_back_is_found_while_nobody_calls(fake: FakeDaemon) -> None:
    fake.on[MATCH] = lambda _: {"tokens": 128, "async": True}
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    fake.drop()
    wait_until(lambda: scheduler.session == 2)
    assert scheduler.match("r", [1]).tokens == 128
    scheduler.close()


def test_a_step_is_not_told_to_a_leader_that_does_not_know_its_requests(fake: FakeDaemon) -> None:
    fake.on[MATCH] = lambda _: {}
    scheduler = SchedulerClient(options(fake.path))
    assert scheduler.connect()
    fake.drop()
    wait_until(lambda: scheduler.session == 2)
    scheduler.match("r", [1])
    with pytest.raises(client.Unavailable):
        scheduler.step(Step(finished=["r"]), 1)
    assert STEP not in fake.ops()
    scheduler.close()


def test_a_silent_daemon_costs_one_deadline_and_then_nothing(fake: FakeDaemon) -> None:
    release = threading.Event()
    calls: list[int] = []

    def silent(_: Any) -> Any:
        calls.append(1)
        release.wait(20)
        return {}

    fake.on[MATCH] = silent
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()
    impatient(scheduler)
    with pytest.raises(client.DeadlineExceeded):
        scheduler.match("r", [1])
    for _ in range(10):
        with pytest.raises(client.Unavailable):
            scheduler.match("r", [1])
    wait_until(lambda: bool(calls))  # the daemon's thread may come late
    assert calls == [1]
    release.set()
    scheduler.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 64,
        frame(2, MATCH, REPLY, 7, {}, length=1 << 30),
        frame(2, MATCH, REPLY, 8, {}),
        frame(1, MATCH, REPLY, 7, {}),
        frame(2, SAVE, REPLY, 7, {}),
        frame(2, MATCH, REPLY, 7, [1]),
        frame(2, MATCH, REPLY, 7, {"tokens": "many"}),
        frame(2, MATCH, ERROR, 7, {"code": 5}),
        frame(2, MATCH, REPLY, 7, {}) + b"more",
    ],
)
def test_garbage_ends_the_connection_with_a_protocol_error(fake: FakeDaemon, garbage: bytes) -> None:
    fake.on[MATCH] = lambda _: garbage
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()
    with pytest.raises(client.ProtocolError):
        scheduler.match("r", [1])
    assert scheduler.session == 0
    scheduler.close()


def test_a_truncated_answer_is_a_lost_connection(fake: FakeDaemon) -> None:
    scheduler = SchedulerClient(options(fake.path, retry_interval=60.0))
    assert scheduler.connect()

    def truncated(_: Any) -> Any:
        fake.conns[0].sendall(frame(2, MATCH, REPLY, 7, {"tokens": 1})[:-2])
        raise HangUpError

    fake.on[MATCH] = truncated
    with pytest.raises(client.ConnectionLost):
        scheduler.match("r", [1])
    scheduler.close()


def test_a_large_answer_is_received_whole(fake: FakeDaemon) -> None:
    blocks = list(range(200_000))
    fake.on[STEP] = lambda _: {"meta": bytes(1 << 20), "loads": [["r", pack_u32s(blocks)]]}
    scheduler = SchedulerClient(options(fake.path, timeout=20.0))
    assert scheduler.connect()
    reply = scheduler.step(Step(finished=["x"]), 1)
    assert len(reply.meta) == 1 << 20
    assert reply.loads == [PlannedLoad("r", blocks)]


# Worker


def test_register_passes_the_descriptors(fake: FakeDaemon) -> None:
    fd = os.memfd_create("test")
    os.write(fd, b"kv")
    worker = WorkerClient(options(fake.path), rank=0)
    assert worker.register([fd], LAYOUT)
    assert os.pread(fake.fds[0], 2, 0) == b"kv"
    assert os.fstat(fake.fds[0]).st_ino == os.fstat(fd).st_ino
    fake.asked.get()
    assert fake.asked.get() == (REGISTER, {"groups": [{"blocks": 8, "runs": [[0, 0, 1, 64, 64, 64]]}]})
    assert len(fake.fds) == 2
    assert fake.fence()[FENCED] == 0


def test_memory_is_registered_again_on_a_new_connection(fake: FakeDaemon) -> None:
    fake.on[SAVE] = lambda _: {"taken": 2, "dropped": 1, "present": 3}
    worker = registered_worker(fake.path)
    assert fake.ops() == [HELLO, REGISTER]
    fake.drop()
    wait_until(lambda: fake.asked.qsize() == 2 and worker._link.connection is not None)
    assert worker.save(b"m") == (2, 1, 3)
    assert fake.ops() == [HELLO, REGISTER, SAVE]
    worker.close()


def test_memory_that_is_refused_leaves_the_worker_without_daemon(
    fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Any) -> None:
        raise Refuse("bad_request")

    fake.on[REGISTER] = refuse
    worker = WorkerClient(options(fake.path), rank=0)
    assert not worker.register([os.memfd_create("test")], LAYOUT)
    worker.load(b"m", [PlannedLoad("r", [1])])
    assert worker.poll() == [FinishedLoad("r", [1])]
    assert "refused register" in caplog.text
    worker.close()


def test_memory_is_registered_soon_where_the_daemon_says_again(fake: FakeDaemon) -> None:
    """A daemon whose copier is being started again refuses nobody for long."""
    answers = ["again", "again"]

    def refuse_twice(_: Any) -> dict[str, Any]:
        if answers:
            raise Refuse(answers.pop())
        return {"block_bytes": [64]}

    fake.on[REGISTER] = refuse_twice
    worker = WorkerClient(options(fake.path, retry_interval=0.4), rank=0)
    assert not worker.register([os.memfd_create("test")], LAYOUT)
    # A client that is refused for good would wait 30 retry intervals, longer than this.
    wait_until(lambda: worker._link.connection is not None)
    assert fake.ops() == [HELLO, REGISTER] * 3
    worker.close()


def test_a_daemon_that_says_again_and_again_is_asked_less_and_less(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copier may find no memory left on the GPU as long as the engine runs, and each attempt is told in the log."""
    monkeypatch.setattr(link.time, "monotonic", lambda: 100.0)
    answers = ["again"] * 7

    def refuse(_: Any) -> dict[str, Any]:
        if answers:
            raise Refuse(answers.pop())
        return {"block_bytes": [64]}

    fake.on[REGISTER] = refuse
    worker = WorkerClient(options(fake.path, retry_interval=2.0), rank=0)
    monkeypatch.setattr(worker._link, "begin", lambda: None)
    pauses = []
    for _ in range(7):
        assert not worker.register([os.memfd_create("test")], LAYOUT)
        pauses.append(worker._link._not_before - 100.0)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert worker.register([os.memfd_create("test")], LAYOUT)
    answers.append("again")
    assert not worker.register([os.memfd_create("test")], LAYOUT)
    assert worker._link._not_before - 100.0 == 2.0
    worker.close()


def test_loads_are_reported_once_with_the_blocks_that_failed(fake: FakeDaemon) -> None:
    fake.on[LOAD] = lambda _: {"n": 2}
    fake.on[POLL] = lambda _: {
        "finished": [["a", b""], ["b", pack_u32s([3])], ["stranger", b""], ["a", b""]],
    }
    worker = registered_worker(fake.path)
    assert worker.poll() == []
    worker.load(b"m", [PlannedLoad("a", [1]), PlannedLoad("b", [2, 3])])
    assert worker.busy
    assert worker.poll() == [FinishedLoad("a", []), FinishedLoad("b", [3])]
    assert not worker.busy
    assert worker.poll() == []
    assert fake.ops() == [HELLO, REGISTER, LOAD, POLL]


def test_a_load_connects_at_once_where_the_daemon_was_restarted(fake: FakeDaemon) -> None:
    fake.on[LOAD] = lambda _: {"n": 1}
    fake.on[POLL] = lambda _: {"finished": [["a", b""]]}
    worker = registered_worker(fake.path, retry_interval=60.0)
    fake.drop()
    worker.load(b"m", [PlannedLoad("a", [1])])
    assert polled(worker) == [FinishedLoad("a", [])]


def test_loads_fail_when_the_daemon_dies(fake: FakeDaemon) -> None:
    fake.on[LOAD] = lambda _: {"n": 1}
    worker = registered_worker(fake.path)
    worker.load(b"m", [PlannedLoad("a", [1, 2]), PlannedLoad("b", [3])])
    fake.stop()
    assert polled(worker) == [FinishedLoad("a", [1, 2]), FinishedLoad("b", [3])]
    worker.load(b"m", [PlannedLoad("c", [4])])
    assert worker.poll() == [FinishedLoad("c", [4])]
    assert worker.save(b"m") == SaveResult()
    worker.close()


def test_loads_do_not_wait_for_a_daemon_that_did_not_answer(fake: FakeDaemon) -> None:
    silence = Silence(fake, SAVE)
    worker = registered_worker(fake.path, retry_interval=60.0)
    impatient(worker)
    assert worker.save(b"m") == SaveResult()
    worker.load(b"m", [PlannedLoad("a", [1])])
    assert worker.poll() == [FinishedLoad("a", [1])]
    wait_until(lambda: fake.asked.qsize() >= 3)  # the daemon's thread may come late
    assert fake.ops() == [HELLO, REGISTER, SAVE]
    silence.release.set()
    worker.close()


# Taking memory back


class Silence:
    """An answer that does not come until it is released."""

    def __init__(self, fake: FakeDaemon, op: int) -> None:
        self.release = threading.Event()
        fake.on[op] = self

    def __call__(self, _: Any) -> Any:
        self.release.wait(20)
        raise HangUpError


def loading_worker(fake: FakeDaemon, **kwargs: Any) -> WorkerClient:
    fake.on[HELLO] = lambda _: {"version": 2, "load_timeout_ms": 600_000}
    fake.on[LOAD] = lambda _: {"n": 1}
    worker = registered_worker(fake.path, **{"retry_interval": 60.0, **kwargs})
    worker.load(b"m", [PlannedLoad("a", [1])])
    return worker


def test_a_daemon_that_answers_no_more_is_fenced_and_its_loads_fail_at_once(fake: FakeDaemon) -> None:
    silence = Silence(fake, POLL)
    worker = loading_worker(fake)
    impatient(worker)
    assert worker.poll() == [FinishedLoad("a", [1])]
    assert fake.fence()[FENCED] == 1
    silence.release.set()
    worker.close()


def test_a_save_that_is_given_up_is_fenced_before_the_engine_goes_on(fake: FakeDaemon) -> None:
    silence = Silence(fake, SAVE)
    worker = registered_worker(fake.path, retry_interval=60.0)
    impatient(worker)
    assert worker.save(b"m") == SaveResult()
    assert fake.fence()[FENCED] == 1
    silence.release.set()
    worker.close()


def test_a_copy_under_way_keeps_its_load_open_until_it_has_ended(
    fake: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    silence = Silence(fake, POLL)
    worker = loading_worker(fake)
    impatient(worker)
    page = fake.fence()
    page[COPIES] = 1
    assert worker.poll() == []
    assert page[FENCED] == 1
    assert "in the middle of a copy" in caplog.text
    assert worker.poll() == []
    page[COPIES] = 0
    assert worker.poll() == [FinishedLoad("a", [1])]
    silence.release.set()
    worker.close()


def test_a_copy_of_a_daemon_that_was_killed_is_over(fake: FakeDaemon) -> None:
    silence = Silence(fake, POLL)
    worker = loading_worker(fake)
    impatient(worker)
    fake.fence()[COPIES] = 1
    assert worker.poll() == []
    silence.release.set()  # the connection ends
    assert polled(worker) == [FinishedLoad("a", [1])]
    worker.close()


def test_a_load_that_may_have_begun_is_not_begun_again_before_its_copy_has_ended(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path, retry_interval=60.0)
    page = fake.fence()
    silence = Silence(fake, LOAD)
    impatient(worker)
    page[COPIES] = 1
    worker.load(b"m", [PlannedLoad("a", [1])])
    assert worker.poll() == []
    page[COPIES] = 0
    assert worker.poll() == [FinishedLoad("a", [1])]
    wait_until(lambda: fake.asked.qsize() >= 3)  # the daemon's thread may come late
    assert fake.ops() == [HELLO, REGISTER, LOAD]
    silence.release.set()
    worker.close()


def test_a_cancelled_load_is_not_reported(fake: FakeDaemon) -> None:
    fake.on[CANCEL] = lambda _: {}
    fake.on[POLL] = lambda _: {"finished": [["a", b""]]}
    worker = loading_worker(fake)
    assert worker.cancel("a", 0.0)
    assert worker.cancel("stranger", 0.0)
    assert worker.poll() == []
    assert fake.ops() == [HELLO, REGISTER, LOAD, CANCEL]
    worker.close()


def test_a_daemon_that_cannot_cancel_is_fenced(fake: FakeDaemon) -> None:
    def refuse(_: Any) -> Any:
        raise Refuse("internal")

    fake.on[CANCEL] = refuse
    worker = loading_worker(fake)
    assert worker.cancel("a", 0.0)
    assert fake.fence()[FENCED] == 1
    assert worker.poll() == []
    worker.close()


def test_a_load_in_the_middle_of_a_copy_is_not_cancelled(fake: FakeDaemon) -> None:
    silence = Silence(fake, CANCEL)
    worker = loading_worker(fake)
    impatient(worker)
    page = fake.fence()
    page[COPIES] = 1
    assert not worker.cancel("a", 0.01)
    page[COPIES] = 0
    assert worker.poll() == [FinishedLoad("a", [1])]
    silence.release.set()
    worker.close()


def test_unregistered_memory_is_fenced_and_not_used_again(fake: FakeDaemon) -> None:
    worker = loading_worker(fake, retry_interval=0.05)
    page = fake.fence()
    assert worker.unregister(1.0)
    assert page[FENCED] == 1
    assert worker.poll() == [FinishedLoad("a", [1])]
    worker.load(b"m", [PlannedLoad("b", [2])])
    assert worker.poll() == [FinishedLoad("b", [2])]
    assert worker.save(b"m") == SaveResult()
    # The next one has no memory.
    wait_until(lambda: worker._link.connection is not None and worker._link.connection.session == 2)
    assert fake.ops() == [HELLO, REGISTER, LOAD, UNREGISTER, HELLO]
    assert worker.register([os.memfd_create("test")], LAYOUT)
    assert fake.fence()[FENCED] == 0
    worker.close()


def test_unregister_waits_for_a_copy_under_way(fake: FakeDaemon) -> None:
    silence = Silence(fake, UNREGISTER)
    worker = loading_worker(fake)
    impatient(worker)
    page = fake.fence()
    page[COPIES] = 1
    assert not worker.unregister(0.01)
    page[COPIES] = 0
    assert worker.unregister(1.0)
    silence.release.set()
    worker.close()


def test_lost_connections_leave_nothing_behind(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    before = len(os.listdir("/proc/self/fd"))
    for session in range(2, 8):
        fake.drop()
        wait_until(lambda n=session: worker._link.connection is not None and worker._link.connection.session == n)
        while fake.fds:
            os.close(fake.fds.pop())
    wait_until(lambda: len(fake.conns) == 1)
    assert len(worker._registrations) == 1
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    worker.close()


# Loads and saves


def test_a_load_that_is_overdue_fails(fake: FakeDaemon) -> None:
    fake.on[HELLO] = lambda _: {"version": 2, "load_timeout_ms": 1}
    fake.on[LOAD] = lambda _: {"n": 1}
    fake.on[POLL] = lambda _: {"finished": []}
    worker = registered_worker(fake.path)
    impatient(worker)  # a load has the daemon's time and this
    worker.load(b"m", [PlannedLoad("a", [1, 2])])
    assert polled(worker) == [FinishedLoad("a", [1, 2])]
    assert worker.poll() == []
    worker.close()


def test_a_load_without_metadata_fails_without_a_call(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.load(b"", [PlannedLoad("a", [1])])
    assert worker.poll() == [FinishedLoad("a", [1])]
    assert fake.ops() == [HELLO, REGISTER]


def test_a_load_that_the_daemon_refuses_fails(fake: FakeDaemon) -> None:
    def refuse(_: Any) -> None:
        raise Refuse("bad_request")

    fake.on[LOAD] = refuse
    worker = registered_worker(fake.path)
    worker.load(b"m", [PlannedLoad("a", [1])])
    assert worker.poll() == [FinishedLoad("a", [1])]


def test_nothing_to_do_costs_no_call(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.load(b"", [])
    worker.load(b"saves only", [])
    assert worker.save(b"") == SaveResult()
    assert worker.poll() == []
    assert fake.ops() == [HELLO, REGISTER]


def test_no_garbage_reaches_the_worker(fake: FakeDaemon) -> None:
    fake.on[LOAD] = lambda _: {"n": 1}
    fake.on[POLL] = lambda _: {"finished": [["a"]]}
    fake.on[SAVE] = lambda _: {"taken": "all"}
    worker = registered_worker(fake.path)
    worker.load(b"m", [PlannedLoad("a", [1])])
    assert polled(worker) == [FinishedLoad("a", [1])]
    worker = registered_worker(fake.path)
    assert worker.save(b"m") == SaveResult()


def test_descriptors_travel_with_the_header(fake: FakeDaemon) -> None:
    fake.on[REGISTER] = lambda _: {}
    conn = Connection.open(str(fake.path), 1.0)
    fds = [os.memfd_create(f"r{i}") for i in range(17)]
    conn.call(Op.REGISTER, {"runs": [[0] * 6] * 4000}, 5.0, fds)
    assert [os.fstat(fd).st_ino for fd in fake.fds] == [os.fstat(fd).st_ino for fd in fds]
