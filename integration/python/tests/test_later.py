"""Saves whose end is reported later, and blocks that are taken back from them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import HELLO, POLL, REGISTER, SAVE, FakeDaemon, HangUpError, Refuse
from test_client import COPIES, FENCED, Silence, impatient, registered_worker, wait_until

from kvconn import fence
from kvconn.client import WorkerClient
from kvconn.fence import RING_RUNS, FencePage
from kvconn.ledger import Ledger
from kvconn.messages import StoredPut

REVOKED, RING = 24, 256  # words of the page


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket_dir / "s")
    daemon.on[SAVE] = lambda _: {"later": True}
    yield daemon
    daemon.stop()


def stored(worker: WorkerClient) -> list[StoredPut]:
    assert worker.poll() == []
    return worker.stored()


def revocations(page: memoryview) -> list[tuple[int, int]]:
    """The last runs of a page, as first block and number of blocks."""
    runs = [page[RING + i % RING_RUNS] for i in range(max(0, page[REVOKED] - RING_RUNS), page[REVOKED])]
    return [(run & 0xFFFFFFFF, run >> 32) for run in runs]


def test_a_save_is_reported_once_poll_has_told_of_it(fake: FakeDaemon) -> None:
    told: list[Any] = []
    fake.on[POLL] = lambda _: {"finished": [], "stored": told}
    worker = registered_worker(fake.path)
    worker.save_later("a", b"m")
    worker.save_later("b", b"m")
    assert worker.busy
    assert stored(worker) == []
    told[:] = [["b", 2, 1, 3], ["stranger", 1, 0, 0]]
    assert stored(worker) == [StoredPut("b", 2, 1, 3)]
    told[:] = [["b", 2, 1, 3], ["a", 1, 0, 0]]
    assert stored(worker) == [StoredPut("a", 1, 0, 0)]
    assert not worker.busy
    assert fake.ops() == [HELLO, REGISTER, SAVE, SAVE, POLL, POLL, POLL]
    worker.close()


def test_a_save_that_was_copied_at_once_is_reported_too(fake: FakeDaemon) -> None:
    fake.on[SAVE] = lambda _: {"taken": 2, "dropped": 1, "present": 3}
    worker = registered_worker(fake.path)
    worker.save_later("a", b"m")
    worker.save_later("empty", b"")
    assert worker.busy
    assert worker.stored() == [StoredPut("a", 2, 1, 3), StoredPut("empty", 0, 0, 0)]
    assert fake.ops() == [HELLO, REGISTER, SAVE]
    worker.close()


def test_ids_name_one_save_at_a_time(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.save_later("a", b"m")
    for name in ("a", ""):
        with pytest.raises(ValueError, match="in flight"):
            worker.save_later(name, b"m")
    worker.close()


def test_a_refused_save_is_reported(fake: FakeDaemon) -> None:
    def refuse(_: Any) -> None:
        raise Refuse("bad_request")

    fake.on[SAVE] = refuse
    worker = registered_worker(fake.path)
    worker.save_later("a", b"m")
    assert worker.stored() == [StoredPut("a", 0, 0, 0)]
    worker.close()


def test_saves_of_a_daemon_that_dies_are_reported_once(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.save_later("a", b"m")
    fake.stop()
    reports: list[StoredPut] = []

    def ended() -> bool:
        reports.extend(stored(worker))
        return not worker.busy

    wait_until(ended)
    worker.save_later("b", b"m")
    wait_until(ended)
    assert reports == [StoredPut("a", 0, 0, 0), StoredPut("b", 0, 0, 0)]
    worker.close()


def test_a_save_without_an_answer_keeps_its_blocks_while_a_copy_is_under_way(fake: FakeDaemon) -> None:
    silence = Silence(fake, SAVE)
    worker = registered_worker(fake.path, retry_interval=60.0)
    impatient(worker)
    page = fake.fence()
    page[COPIES] = 1
    worker.save_later("a", b"m")
    assert page[FENCED] == 1
    assert stored(worker) == []
    page[COPIES] = 0
    assert stored(worker) == [StoredPut("a", 0, 0, 0)]
    silence.release.set()
    worker.close()


def test_a_save_says_what_was_taken_back_before_it(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.revoke([5, 4, 9])
    worker.save_later("a", b"m")
    worker.revoke([])
    worker.revoke([7])
    assert revocations(fake.fence()) == [(4, 2), (9, 1), (7, 1)]
    asked = [body for op, body in (fake.asked.get() for _ in range(3)) if op == SAVE]
    assert asked == [{"meta": b"m", "r": "a", "revoked": 2}]
    worker.close()


def test_the_next_page_says_what_was_taken_back_before_it(fake: FakeDaemon) -> None:
    worker = registered_worker(fake.path)
    worker.revoke([1])
    pages = len(fake.fds)
    fake.drop()
    worker.revoke([2])
    wait_until(lambda: len(fake.fds) > pages and worker._registration() is not None)
    worker.revoke([3])
    assert revocations(fake.fence()) == [(1, 1), (2, 1), (3, 1)]
    worker.close()


def test_taking_blocks_back_does_not_wait_for_a_call(fake: FakeDaemon) -> None:
    silence = Silence(fake, SAVE)
    worker = registered_worker(fake.path, timeout=20.0)
    call = threading.Thread(target=worker.save, args=(b"m",))
    call.start()
    wait_until(lambda: SAVE in fake.ops())
    worker.revoke([3])
    assert revocations(fake.fence()) == [(3, 1)]
    silence.release.set()
    call.join()
    worker.close()


def test_a_page_of_a_connection_that_came_second_takes_nothing_from_the_one_in_force() -> None:
    ledger, first, second = Ledger(), FencePage(), FencePage()
    ledger.attach(first)
    ledger.attach(second)
    second.fence()
    ledger.detach(second)
    second.close()
    ledger.revoke([6])
    assert revocations(memoryview(first._words)) == [(6, 1)]
    ledger.detach(first)
    first.close()
    ledger.revoke([6])
    assert ledger.count == 2


def test_more_runs_than_the_ring_has_are_one_of_all_blocks() -> None:
    ledger, page = Ledger(), FencePage()
    ledger.attach(page)
    ledger.revoke(range(0, 4 * RING_RUNS, 2))
    assert revocations(memoryview(page._words)) == [(0, 0xFFFFFFFF)]
    for block in range(RING_RUNS + 3):
        ledger.revoke([block])
    assert revocations(memoryview(page._words)) == [(block, 1) for block in range(3, RING_RUNS + 3)]
    for wrong in (-1, 0xFFFFFFFF, 1 << 40):
        with pytest.raises(ValueError, match="want 0 to"):
            ledger.revoke([1, wrong])
    assert ledger.count == RING_RUNS + 4
    page.close()


@pytest.mark.parametrize(("machine", "barriers"), [("x86_64", 1), ("aarch64", 100)])
def test_taking_many_blocks_back_costs_a_barrier_where_writes_are_in_order(
    monkeypatch: pytest.MonkeyPatch, machine: str, barriers: int
) -> None:
    ledger, page = Ledger(), FencePage()
    ledger.attach(page)
    words, seen = memoryview(page._words), []
    monkeypatch.setattr(fence.platform, "machine", lambda: machine)
    monkeypatch.setattr(fence, "full_barrier", lambda: seen.append((words[REVOKED], sum(map(bool, words[RING:])))))
    ledger.revoke([])
    ledger.revoke(range(0, 100, 2))
    assert len(seen) == barriers  # each may be a sleep
    assert seen[-1] == (50, 50)
    # A run is seen before its number, and a number before the next run, which may take the place of an old one.
    assert all(runs - number in (0, 1) for number, runs in seen)
    monkeypatch.undo()
    words.release()
    page.close()


def test_the_daemon_hanging_up_in_a_save_ends_it(fake: FakeDaemon) -> None:
    def hang_up(_: Any) -> None:
        raise HangUpError

    fake.on[SAVE] = hang_up
    worker = registered_worker(fake.path, retry_interval=60.0)
    worker.save_later("a", b"m")
    assert stored(worker) == [StoredPut("a", 0, 0, 0)]
    worker.close()
