from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_offload.tiering.base")

from vllm.v1.kv_offload.base import Medium

from kvconn.client import FinishedLoad, StoredPut, TierBlocks
from kvconn.vllm import tier_shown
from kvconn.vllm.believed import BELIEVED_S
from kvconn.vllm.tier_shown import TierShown

A, B, C = (name * 36 for name in (b"a", b"b", b"c"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(clock: Clock | None = None, described: bool = False) -> TierShown:
    follows = SimpleNamespace(enable_kv_cache_events=True, self_describing_kv_events=described)
    return TierShown(logging.getLogger("test"), follows, None, clock or Clock())


def events(tier: TierShown) -> list[tuple[bool, list[bytes]]]:
    taken = list(tier.take_events())
    assert all(e.medium is Medium.STORAGE and e.ownership == "kvconn" for e in taken)
    return [(e.removed, e.keys) for e in taken]


def stored(request: str = "1", taken: int = 0, dropped: int = 0, present: int = 0) -> StoredPut:
    return StoredPut(request, taken, dropped, present)


def test_what_was_saved_or_found_is_announced_once() -> None:
    tier = shown()
    tier.saved(stored(taken=1, present=1), [A, B])
    tier.looked_up(A, True)
    tier.looked_up(C, True)
    assert events(tier) == [(False, [A, B]), (False, [C])]
    assert events(tier) == []


@pytest.mark.parametrize("put", [stored(taken=1, dropped=1), stored(taken=1), stored()])
def test_a_save_that_left_something_out_is_not_announced(put: StoredPut) -> None:
    tier = shown()
    tier.saved(put, [A, B])
    assert events(tier) == []


def test_what_may_be_gone_is_taken_back() -> None:
    clock = Clock()
    tier = shown(clock)
    tier.saved(stored(taken=2), [A, B])
    events(tier)
    tier.looked_up(B, False)
    tier.looked_up(B, False)
    tier.looked_up(C, False)
    assert events(tier) == [(True, [B])]
    clock.now += BELIEVED_S + 1
    tier.saved(stored(taken=1), [C])
    assert events(tier) == [(False, [C]), (True, [A])]


def test_without_the_daemon_nothing_is_believed() -> None:
    tier = shown()
    tier.connected(1)
    tier.saved(stored(taken=1), [A])
    tier.connected(1)
    tier.connected(0)
    assert events(tier) == [(False, [A]), (True, [A])]
    tier.saved(stored(taken=1), [B])
    tier.withdraw()
    assert events(tier) == [(False, [B]), (True, [B])]


@pytest.mark.parametrize(("described", "most"), [(False, "MAX_ANNOUNCED"), (True, "MAX_DESCRIBED")])
def test_what_is_believed_is_bounded(monkeypatch: pytest.MonkeyPatch, described: bool, most: str) -> None:
    monkeypatch.setattr(tier_shown, most, 2)
    tier = shown(described=described)
    for k in (A, B, A, C):
        tier.looked_up(k, True)
    assert events(tier) == [(False, [A]), (False, [B]), (False, [C]), (True, [B])]


@pytest.mark.parametrize("follows", [None, SimpleNamespace(enable_kv_cache_events=False)])
def test_without_followers_there_are_no_events(follows: Any) -> None:
    tier = TierShown(logging.getLogger("test"), follows)
    tier.saved(stored(taken=1), [A])
    tier.looked_up(B, True)
    assert list(tier.take_events()) == []


def test_figures_are_taken_once_and_all_of_them_are_defined() -> None:
    tier = shown()
    tier.loaded(FinishedLoad("1", [], {"disk": TierBlocks(2, 200), "host": TierBlocks(1, 100)}, 0.5))
    tier.loaded(FinishedLoad("2", [7, 8], {"disk": TierBlocks(1, 50)}, 0.25))
    tier.saved(stored(taken=2, dropped=1), [A, B, C])
    values = tier.take_stats().data["data"]
    assert values == {
        "vllm:kvconn_loaded_bytes": {("disk",): 250, ("host",): 100},
        "vllm:kvconn_load_failed_blocks": {(): 2},
        "vllm:kvconn_load_seconds": {(): [0.5, 0.25]},
        "vllm:kvconn_saved_blocks": {("taken",): 2, ("dropped",): 1},
    }
    assert tier.take_stats() is None
    known = tier_shown.definitions()
    assert {name: {len(labels) for labels in by} for name, by in values.items()} == {
        name: {len(metadata.labelnames)} for name, metadata in known.items()
    }


def test_figures_that_nobody_takes_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_shown, "_MAX_TIMES", 3)
    tier = shown()
    for _ in range(5):
        tier.loaded(FinishedLoad("1", [], {}, 0.5))
    assert len(tier.take_stats().data["data"]["vllm:kvconn_load_seconds"][()]) == 3


def test_what_fails_is_not_shown_any_more_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tier = shown()
    broken: Any = SimpleNamespace(tiers=None)
    tier.loaded(broken)
    tier.saved(stored(taken=1), [A])
    assert (tier.take_stats(), list(tier.take_events())) == (None, [])
    assert caplog.text.count("no more figures and KV events of the tier") == 1
