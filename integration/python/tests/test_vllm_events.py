"""KV events of what is stored."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("vllm")

import msgspec
from test_vllm_scheduler import BLOCK_SIZE, Engine
from vllm.distributed.kv_events import KVEventBatch

from kvconn.client import Offer, PlannedSave, SaveResult
from kvconn.vllm import events
from kvconn.vllm.believed import BELIEVED_S
from kvconn.vllm.events import Announcer
from kvconn.vllm.metadata import Reported


class Scene:
    """An engine with followers, and a clock."""

    def __init__(self, *shards: int) -> None:
        self.now = 1000.0
        self.announcer = Announcer(BLOCK_SIZE, shards or (1,), logging.getLogger("test"), lambda: self.now)
        self.announcer.enabled = True
        self.engine = Engine(announcer=self.announcer)
        self.engine.plan()

    def request(self, name: str, tokens: int, **fields: Any) -> Any:
        hashes = [bytes([i] * 32) for i in range(tokens // BLOCK_SIZE)]
        return self.engine.request(name, tokens, **{"block_hashes": hashes, **fields})

    def save(self, request: Any, *saves: PlannedSave, result: SaveResult) -> list[dict[str, Any]]:
        self.engine.side.match(request, 0)
        self.take()
        self.engine.leader.saves = saves
        self.engine.tables[request.request_id] = ([1, 2, 3, 4],)
        meta = self.engine.plan(new={request.request_id: (0, request.num_tokens)})
        self.engine.leader.saves = ()
        if meta.number:
            self.engine.loads_ended(reported=Reported({}, {meta.number: result}))
        return self.take()

    def find(self, request: Any, tokens: int, computed: int = 0, refused: int = 0) -> list[dict[str, Any]]:
        self.engine.leader.offer = Offer(tokens, tokens > 0, {}, refused)
        self.engine.side.match(request, computed)
        return self.take()

    def take(self) -> list[dict[str, Any]]:
        batch = msgspec.msgpack.encode(KVEventBatch(0.0, list(self.announcer.take())))
        return msgspec.msgpack.decode(batch)[1]


def hashes(*blocks: int) -> list[int]:
    return [int.from_bytes(bytes([b] * 8), "big") for b in blocks]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_blocks_are_announced_once_all_of_a_step_were_taken(scene: Scene) -> None:
    (stored,) = scene.save(scene.request("r", 14), PlannedSave("r", 0, 1, 2), result=SaveResult(1, 0, 1))
    assert stored == {
        "type": "BlockStored",
        "block_hashes": hashes(1, 2),
        "parent_block_hash": hashes(0)[0],
        "token_ids": list(range(4, 12)),
        "block_size": 4,
        "lora_id": None,
        "medium": "STORAGE",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "locality": "LOCAL",
        "ownership": "kvconn",
    }
    assert scene.engine.leader.steps[-1].tell_saves


@pytest.mark.parametrize("result", [SaveResult(1, 1, 0), SaveResult(1, 0, 0), SaveResult()])
def test_what_was_not_taken_is_not_announced(scene: Scene, result: SaveResult) -> None:
    assert scene.save(scene.request("r", 14), PlannedSave("r", 0, 0, 2), result=result) == []


@pytest.mark.parametrize(("taken", "announced"), [(2, 0), (3, 0), (4, 1)])
def test_blocks_are_announced_once_all_ranks_have_taken_theirs(taken: int, announced: int) -> None:
    scene = Scene(2)  # the daemon of one rank may be away
    stored = scene.save(scene.request("r", 14), PlannedSave("r", 0, 0, 2), result=SaveResult(taken, 0, 0))
    assert len(stored) == announced


@pytest.mark.parametrize(
    "special",
    [
        {"block_hashes": [b"x" * 32] * 7},  # of smaller blocks
        {"mm_features": [], "prompt_embeds": [1]},
    ],
)
def test_blocks_whose_hashes_are_not_ours_to_tell_are_not_announced(scene: Scene, special: dict[str, Any]) -> None:
    request = scene.request("r", 14, **special)
    assert scene.announcer.planned([PlannedSave("r", 0, 0, 2)], lambda _: request) == 0
    assert scene.announcer.planned([PlannedSave("gone", 0, 0, 2)], lambda _: None) == 0
    assert scene.announcer.enabled


def test_what_separates_hashes_is_told_as_vllm_does(scene: Scene) -> None:
    (stored,) = scene.save(
        scene.request("r", 14, cache_salt="s"), PlannedSave("r", 0, 0, 2), result=SaveResult(2, 0, 0)
    )
    assert stored["extra_keys"] == [["s"], None]


def test_blocks_that_are_found_are_announced_once(scene: Scene) -> None:
    (stored,) = scene.find(scene.request("r", 14), 8, computed=4)
    assert (stored["type"], stored["block_hashes"]) == ("BlockStored", hashes(1, 2))
    assert scene.find(scene.request("s", 14), 8, computed=4) == []


def test_a_look_up_that_finds_less_takes_the_rest_back(scene: Scene) -> None:
    scene.find(scene.request("r", 14), 12)
    (removed,) = scene.find(scene.request("s", 14), 4)
    assert removed == {
        "type": "BlockRemoved",
        "block_hashes": hashes(1, 2),
        "medium": "STORAGE",
        "group_idx": 0,
        "locality": "LOCAL",
        "ownership": "kvconn",
    }


def test_a_look_up_cut_short_takes_nothing_back(scene: Scene) -> None:
    scene.find(scene.request("r", 14), 12)
    assert scene.find(scene.request("refused", 14), 4, refused=8) == []
    assert scene.find(scene.request("opts-out", 14, kv_transfer_params={"kvconn": {"load": False}}), 0) == []
    assert scene.find(scene.request("last-token", 12), 8) == []
    most = {"kv_transfer_params": {"kvconn": {"max_load_tokens": 4}}}
    assert scene.find(scene.request("wants-less", 14, **most), 4) == []


def test_nobody_believes_for_long_in_what_no_look_up_finds(scene: Scene) -> None:
    scene.find(scene.request("r", 14), 12)
    scene.now += BELIEVED_S / 2
    scene.find(scene.request("s", 10), 8)
    scene.now += BELIEVED_S / 2 + 1
    (removed,) = scene.take()
    assert (removed["type"], removed["block_hashes"]) == ("BlockRemoved", hashes(2))


def test_announcements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_ANNOUNCED", 2)
    scene = Scene()
    stored, removed = scene.find(scene.request("r", 14), 12)
    assert (stored["block_hashes"], removed["block_hashes"]) == (hashes(0, 1, 2), hashes(0))


def test_steps_without_a_report_are_forgotten(scene: Scene) -> None:
    for _ in range(2 * events._PENDING_STEPS):
        scene.announcer.planned([PlannedSave("r", 0, 0, 1)], lambda _: scene.request("r", 14))
    assert len(scene.announcer._pending) == events._PENDING_STEPS


def test_without_the_daemon_everything_is_taken_back(scene: Scene) -> None:
    scene.find(scene.request("r", 14), 12)
    scene.engine.leader.session = 0
    scene.engine.plan()
    (removed,) = scene.take()
    assert (removed["type"], removed["block_hashes"]) == ("BlockRemoved", hashes(0, 1, 2))


def test_an_engine_that_loads_nothing_more_takes_everything_back(scene: Scene) -> None:
    scene.find(scene.request("r", 14), 12)
    scene.engine.side.stop("why")
    assert [e["type"] for e in scene.take()] == ["BlockRemoved"]


def test_groups_are_announced_by_themselves() -> None:
    scene = Scene(1, 1)
    saves = (PlannedSave("r", 0, 0, 2), PlannedSave("r", 1, 1, 1))
    stored = scene.save(scene.request("r", 14), *saves, result=SaveResult(3, 0, 0))
    assert [(e["group_idx"], e["block_hashes"]) for e in stored] == [(0, hashes(0, 1)), (1, hashes(1))]
    assert scene.find(scene.request("s", 14), 0) == []  # which group's block is missing?


def test_without_followers_nothing_is_asked_or_kept() -> None:
    engine = Engine()
    engine.leader.offer = Offer(8, True)
    engine.side.match(engine.request("r", 14), 0)
    engine.tables["r"] = ([1, 2, 3, 4],)
    meta = engine.plan(new={"r": (0, 14)})
    assert (meta.number, engine.leader.steps[-1].tell_saves, engine.side.announcer.take()) == (0, False, ())


def test_events_that_fail_cost_events_alone(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    request = scene.engine.request("r", 14)  # of a version without block_hashes
    scene.engine.leader.offer = Offer(8, True)
    assert scene.engine.side.match(request, 0) == (8, True)
    assert "no more KV events" in caplog.text
    assert not scene.announcer.enabled
