"""What followers of KV events believe in."""

from __future__ import annotations

import pytest

from kvconn.vllm import believed
from kvconn.vllm.believed import BELIEVED_S, Believed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_what_is_new_is_returned_and_what_is_gone_is_forgotten_once() -> None:
    beliefs = Believed[str](10, Clock())
    assert beliefs.believe(["a", "b"]) == ["a", "b"]
    assert beliefs.believe(["b", "c"]) == ["c"]
    assert (len(beliefs), "a" in beliefs, "d" in beliefs) == (3, True, False)
    assert beliefs.forget(["b", "b", "d"]) == ["b"]
    assert beliefs.everything() == ["a", "c"]


def test_the_oldest_are_too_many() -> None:
    beliefs = Believed[str](2, Clock())
    for thing in "abac":
        beliefs.believe([thing])
    assert beliefs.too_many() == ["b"]
    beliefs.forget(["b"])
    assert beliefs.too_many() == []


def test_what_nothing_has_found_for_a_time_expires_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(believed, "_EXPIRED_AT_ONCE", 2)
    clock = Clock()
    beliefs = Believed[str](10, clock)
    beliefs.believe(["a", "b", "c"])
    clock.now += BELIEVED_S / 2
    beliefs.believe(["a"])
    assert beliefs.expired() == []
    clock.now += BELIEVED_S / 2
    assert beliefs.expired() == ["b", "c"]
    clock.now += BELIEVED_S
    assert beliefs.expired() == ["b", "c"]  # until they are forgotten
    beliefs.forget(beliefs.expired())
    assert beliefs.expired() == ["a"]
