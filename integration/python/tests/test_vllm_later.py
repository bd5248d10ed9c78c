from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.client import Alloc, PlannedSave, StoredPut
from kvconn.vllm.later import HeldRequests, SavesUnderWay, given_out

BLOCK = 16


class Client:
    def __init__(self) -> None:
        self.started: list[tuple[str, bytes]] = []
        self.ended: list[StoredPut] = []
        self.taken: list[list[int]] = []

    def save_later(self, save: str, meta: bytes) -> None:
        self.started.append((save, meta))

    def stored(self) -> list[StoredPut]:
        ended, self.ended = self.ended, []
        return ended

    def revoke(self, blocks: Iterable[int]) -> None:
        self.taken.append(list(blocks))

    def end(self, save: str) -> None:
        self.ended.append(StoredPut(save, 1, 0, 0))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def saves(client: Client) -> SavesUnderWay:
    return SavesUnderWay(client)


def start(saves: SavesUnderWay, number: int = 0, **blocks: list[int]) -> None:
    saves.name(blocks)
    saves.start(number, b"plan", blocks)


def test_a_request_is_reported_once_its_saves_have_ended(client: Client, saves: SavesUnderWay) -> None:
    start(saves, 7, a=[1, 2], b=[3])
    start(saves, 0, a=[4])
    assert client.started == [("1", b"plan"), ("2", b"plan")]
    assert saves.finished({"a", "other"}) == set()
    client.end("1")
    assert saves.stored() == [(7, StoredPut("1", 1, 0, 0))]
    assert saves.finished(()) == set()
    client.end("2")
    assert saves.stored() == [(0, StoredPut("2", 1, 0, 0))]
    assert saves.finished(()) == {"a"}
    assert saves.finished({"b"}) == {"b"}  # its save had ended before
    assert saves.finished(()) == set()
    assert saves.finished({"a", "b"}) == set()  # never twice


def test_a_request_that_was_named_is_reported_though_nothing_was_saved(saves: SavesUnderWay) -> None:
    saves.name(["a"])
    assert saves.finished({"a"}) == {"a"}
    assert saves.finished({"b"}) == set()


def test_blocks_that_are_given_out_are_taken_back(client: Client, saves: SavesUnderWay) -> None:
    saves.overwritten([1, 2])
    assert client.taken == []  # nobody waits for them
    start(saves, a=[1, 2, 3])
    start(saves, b=[3, 4])
    saves.overwritten([9, 3, 2])
    assert client.taken == [[3, 2]]
    client.end("1")
    saves.stored()
    saves.overwritten([1, 3])
    assert client.taken[1:] == [[3]]
    saves.overwritten(None)
    assert sorted(client.taken[-1]) == [3, 4]
    client.end("2")
    saves.stored()
    saves.overwritten([3, 4])
    saves.overwritten(None)
    assert len(client.taken) == 3


def output(**fields: Any) -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    return SimpleNamespace(**{"scheduled_new_reqs": [], "scheduled_cached_reqs": cached} | fields)


def test_blocks_with_what_was_computed_are_not_given_out() -> None:
    new = SimpleNamespace(block_ids=([5, 6, 7], [15, 16, 17]), num_computed_tokens=2 * BLOCK)
    assert given_out(output(scheduled_new_reqs=[new]), [], BLOCK) == [7, 17]


def test_blocks_of_running_and_resumed_requests() -> None:
    cached = SimpleNamespace(
        req_ids=["running", "idle", "resumed"],
        new_block_ids=[([8], [18]), None, ([1, 2, 3], [11, 12, 13])],
        num_computed_tokens=[100 * BLOCK, 50, BLOCK + 3],
        resumed_req_ids={"resumed"},
    )
    # The second block of the one that is resumed is not full yet.
    assert given_out(output(scheduled_cached_reqs=cached), [], BLOCK) == [8, 18, 2, 3, 12, 13]


def test_blocks_that_are_loaded_into_are_given_out() -> None:
    allocs = [Alloc("r", [[1, 2, 3, 4]], 2 * BLOCK, BLOCK)]
    assert given_out(output(), allocs, BLOCK) == [3, 4]


def test_requests_are_held_from_their_first_save_to_their_end() -> None:
    held = HeldRequests()
    tables = {"a": [[1, 2, 3], [11, 12, 13]], "b": [[7, 8]]}
    saves = [PlannedSave("a", 0, 1, 2), PlannedSave("a", 1, 0, 1), PlannedSave("b", 0, 0, 1)]
    assert held.name(saves, tables) == {"a": [2, 3, 11], "b": [7]}
    assert held.name([], {}) == {}
    assert [held.ended(request) for request in ("a", "a", "c", "b")] == [True, False, False, True]


def test_what_cannot_be_named_holds_nothing() -> None:
    held = HeldRequests()
    with pytest.raises(KeyError):
        held.name([PlannedSave("a", 0, 0, 1), PlannedSave("b", 0, 0, 1)], {"a": [[1]]})
    assert not held.ended("a")  # no worker was told
