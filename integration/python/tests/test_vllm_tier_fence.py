"""A row that the daemon writes to late, with the fence and, as a negative control, without it."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_daemon import HELLO, POLL, FakeDaemon, HangUpError
from test_client import impatient

from kvconn.client import GroupLayout, KeyedClient, Options, Run
from kvconn.frames import Op
from kvconn.memory_client import Registration
from kvconn.vllm.tier_pace import Pace
from kvconn.vllm.tier_requests import Terms
from kvconn.vllm.tier_side import Answer, Rows, TierSide

CHUNK_TOKENS, ROW = 16, 4096
KEY, OTHER = b"k" * 32 + bytes(4), b"o" * 32 + bytes(4)
COPIES = 8


def noted(*_: Any) -> None: ...


class Keys:
    _offload_key_positions = {KEY: CHUNK_TOKENS}  # noqa: RUF012

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self._offload_key_positions.get(key)


class Region:
    """vLLM's region of one row: the row is given to another chunk as soon as its load is reported as failed."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("region")
        os.ftruncate(self.fd, ROW)
        self.row = mmap.mmap(self.fd, ROW)
        self.holds = b""

    def take_reports(self, side: TierSide) -> bool:
        """Do as vLLM at the beginning of a step, and return whether the load was reported."""
        reports = side.ended()
        for report in reports:
            assert not report.ok
            self.row[:] = b"o" * ROW
            self.holds = OTHER
        return bool(reports)


@pytest.fixture
def fake(socket_dir: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(socket_dir / "s")
    yield daemon
    daemon.stop()


def written_late(fake: FakeDaemon) -> tuple[bool, bool]:
    """Load a row from a daemon that is suspended in the middle of its copy, and goes on after all deadlines.

    Returns whether the load was reported as failed before the daemon went on, and whether the row
    holds what vLLM takes it for at the end.
    """
    suspended = threading.Event()

    def silent(_: Any) -> Any:
        suspended.wait(20)
        raise HangUpError

    fake.on |= {
        HELLO: lambda _: {"version": 4, "load_timeout_ms": 600_000},
        Op.PRESENT: lambda _: {"groups": [b"\x01"]},
        Op.FETCH: lambda _: {},
        POLL: silent,
    }
    region, adapters = Region(), None
    client = KeyedClient(Options(str(fake.path), "e", b"{}", timeout=20, retry_interval=60.0))
    assert client.register([region.fd], [GroupLayout(1, [Run(0, 0, 1, 0, ROW, ROW)])])
    rows = Rows(1, CHUNK_TOKENS, [0])
    shown: Any = SimpleNamespace(announces=False, loaded=noted, saved=noted, connected=noted, withdraw=noted)
    logger = logging.getLogger("test")
    side = TierSide(client, rows, Pace(False), 10.0, logger, adapters, shown)  # type: ignore[arg-type]
    request = side.met("r", Terms())
    assert side.look_up(request, KEY, Keys()) is Answer.HIT
    side.load(1, [KEY], [0], request, Keys())
    impatient(client, 0.2)  # with polls, which get no answer
    page = fake.fence()
    page[COPIES] = 1  # it has begun to copy, and stands still
    before = any(region.take_reports(side) for _ in range(3))
    region.row[:] = b"k" * ROW  # it goes on
    page[COPIES] = 0
    suspended.set()
    while side.busy:
        region.take_reports(side)
    client.close()
    return before, region.holds == OTHER and region.row[:] == b"o" * ROW


def test_a_row_is_not_given_away_while_it_can_be_written_to(fake: FakeDaemon) -> None:
    assert written_late(fake) == (False, True)


def test_without_the_fence_a_row_holds_another_s_bytes(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registration, "release", lambda self: bool(self._page.fence()) or True)
    assert written_late(fake) == (True, False)
