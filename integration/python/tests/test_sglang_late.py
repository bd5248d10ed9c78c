from __future__ import annotations

import logging

import pytest

from kvconn.sglang.late import LateCalls


def test_late_calls_are_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    late = LateCalls(logging.getLogger("kvconn"), 0.8, clock=lambda: now)
    for took in (0.1, 0.8, 1.2):
        late.note("batch_get_v1", took)
    assert not caplog.records
    for _ in range(3):
        late.note("batch_get_v1", 1.3)
    now += 59
    late.note("batch_get_v1", 5.0)
    assert [r.message.split(":")[1].strip() for r in caplog.records] == [
        "batch_get_v1 took 1.3 s, its deadline is 0.8 s (1 late calls since the last line)"
    ]
    now += 1
    late.note("batch_set_v1", 2.0)
    assert "batch_set_v1 took 2.0 s, its deadline is 0.8 s (4 late calls" in caplog.records[1].message


@pytest.mark.parametrize(
    ("seconds", "held_s", "cause"),
    [
        (4.0, 0.0, "the machine is overloaded"),
        (4.0, 3.2, "kvconnd stood still in the middle of a copy"),
        (4.0, 1.0, "the machine is overloaded"),
    ],
)
def test_the_cause_of_a_late_call_is_named(
    caplog: pytest.LogCaptureFixture, seconds: float, held_s: float, cause: str
) -> None:
    LateCalls(logging.getLogger("kvconn"), 0.8).note("batch_get_v1", seconds, held_s)
    assert cause in caplog.records[0].message
