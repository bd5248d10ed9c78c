from __future__ import annotations

import hashlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvconn.client import (
    NO_BLOCK,
    Alloc,
    Offer,
    PlannedLoad,
    PlannedSave,
    Rejected,
    Scheduled,
    Span,
    Step,
    StepReply,
    Unavailable,
    UnknownRequest,
)
from kvconn.identity.files import FileId
from kvconn.vllm.metadata import StepMetadata
from kvconn.vllm.scheduler import SchedulerSide

BLOCK_SIZE = 4


class Leader:
    """Stands where SchedulerClient does."""

    def __init__(self) -> None:
        self.session = 1
        self.matches: list[dict[str, Any]] = []
        self.steps: list[Step] = []
        self.told = 0
        """Those of the steps whose answer nobody reads."""
        self.reports: list[tuple[list[str], list[int]]] = []
        self.resets = 0
        self.offer = Offer(0, False)
        self.error: Exception | None = None
        self.saves: tuple[PlannedSave, ...] = ()

    def match(self, request: str, tokens: list[int], **kwargs: Any) -> Offer:
        self.matches.append({"request": request, "tokens": tokens, **kwargs})
        if self.error:
            raise self.error
        return self.offer

    def step(self, step: Step, session: int) -> StepReply:
        assert session == self.session
        self.steps.append(step)
        if self.error:
            raise self.error
        loads = [PlannedLoad(a.request, []) for a in step.allocs if a.external]
        return StepReply(b"plan", loads, self.saves)

    def tell(self, step: Step, session: int) -> None:
        self.told += 1
        self.step(step, session)

    def loaded(self, done: list[str], invalid: set[int], session: int) -> None:
        assert session == self.session
        self.reports.append((list(done), sorted(invalid)))

    def reset(self) -> None:
        self.resets += 1
        if self.error:
            raise self.error


class KnownAdapters:
    """Stands where Adapters does."""

    def __init__(self) -> None:
        self.known = {"n": "lora-1:aa"}
        self.files = {"n": (FileId("/p/adapter_model.bin", 1, 2, 3, 4),)}

    def scope(self, lora: Any) -> str | None:
        return self.known.get(lora.lora_name)

    def stands_for(self, name: str) -> str | None:
        return self.known.get(name, None if name == "soon" else "")

    def soon_known(self, name: str) -> bool:
        return name == "soon"

    def untouched(self, name: str) -> tuple[FileId, ...]:
        return self.files.get(name, ())


class Engine:
    """Makes the objects of vLLM's scheduler."""

    def __init__(self, images_by_content: bool = True, announcer: Any = None) -> None:
        self.leader = Leader()
        self.adapters = KnownAdapters()
        self.side = SchedulerSide(
            self.leader,  # type: ignore[arg-type]
            BLOCK_SIZE,
            logging.getLogger("test"),
            self.adapters,  # type: ignore[arg-type]
            images_by_content,
            announcer,
        )
        self.tables: dict[str, tuple[list[int], ...]] = {}

    def request(self, name: str, tokens: int, **kwargs: Any) -> Any:
        r = SimpleNamespace(
            request_id=name,
            all_token_ids=list(range(tokens)),
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            cache_salt=None,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            kv_transfer_params=None,
            skip_reading_prefix_cache=False,
        )
        vars(r).update(kwargs)
        return r

    def append(self, r: Any, *tokens: int) -> None:
        r.all_token_ids += tokens
        r.num_tokens = len(r.all_token_ids)

    def allocate(self, r: Any, *blocks: list[int], external: int = 0) -> None:
        self.tables[r.request_id] = blocks
        self.side.allocated(r, SimpleNamespace(get_block_ids=lambda: blocks), external)  # type: ignore[arg-type]

    def plan(
        self,
        new: dict[str, tuple[int, int]] | None = None,
        cached: dict[str, tuple[int, int]] | None = None,
        resumed: set[str] = frozenset(),  # type: ignore[assignment]
        preempted: set[str] = frozenset(),  # type: ignore[assignment]
    ) -> StepMetadata:
        """Plan a step in which requests compute (count) tokens after (computed)."""
        new, cached = new or {}, cached or {}
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=r, num_computed_tokens=c) for r, (c, _) in new.items()],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=list(cached), num_computed_tokens=[c for c, _ in cached.values()], resumed_req_ids=resumed
            ),
            num_scheduled_tokens={r: n for r, (_, n) in (new | cached).items()},
            preempted_req_ids=preempted,
            kv_connector_block_state=self.block_state(),
        )
        return self.side.plan(output)  # type: ignore[arg-type]

    def block_state(self) -> Any:
        return SimpleNamespace(get_block_ids=lambda r: self.tables[r])

    def loads_ended(
        self,
        *requests: str,
        invalid: set[int] = frozenset(),  # type: ignore[assignment]
        failed: set[str] = frozenset(),  # type: ignore[assignment]
        reported: Any = None,
    ) -> None:
        output = SimpleNamespace(
            finished_recving=set(requests),
            invalid_block_ids=set(invalid),
            failed_recving=set(failed),
            kv_connector_worker_meta=reported,
        )
        self.side.loaded(output)  # type: ignore[arg-type]


class OlderEngine(Engine):
    """Makes the objects of a release that tells a request's block table only where it has new blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, tuple[list[int], ...]] = {}

    def block_state(self) -> Any:
        new = {r: table for r, table in self.tables.items() if self.told.get(r) != table}
        self.told |= {r: tuple(list(ids) for ids in table) for r, table in new.items()}
        return SimpleNamespace(block_ids=new)


@pytest.fixture(params=[Engine, OlderEngine])
def engine(request: pytest.FixtureRequest) -> Engine:
    made: Engine = request.param()
    return made


def test_a_repeated_look_up_sends_only_new_tokens(engine: Engine) -> None:
    r = engine.request("r", 10)
    engine.side.match(r, 0)
    engine.side.match(r, 0)
    engine.append(r, 7, 8)
    engine.side.match(r, 4)
    assert [(m["start"], len(m["tokens"]), m["computed"]) for m in engine.leader.matches] == [
        (0, 10, 0),
        (10, 0, 0),
        (10, 2, 4),
    ]


def test_a_new_leader_is_told_everything(engine: Engine) -> None:
    r = engine.request("r", 10)
    engine.side.match(r, 0)
    engine.leader.session = 2
    engine.side.match(r, 0)
    assert engine.leader.matches[1]["start"] == 0


def test_a_leader_that_has_forgotten_a_request_is_told_everything(engine: Engine) -> None:
    r = engine.request("r", 10)
    engine.side.match(r, 0)
    answers: list[Any] = [UnknownRequest("unknown_request", "?"), Offer(8, True)]

    def match(request: str, tokens: list[int], **kwargs: Any) -> Offer:
        engine.leader.matches.append({"tokens": tokens, **kwargs})
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    engine.leader.match = match  # type: ignore[method-assign]
    assert engine.side.match(r, 0) == (8, True)
    assert [m["start"] for m in engine.leader.matches[1:]] == [10, 0]


@pytest.mark.parametrize(
    ("offer", "computed", "want"),
    [
        (Offer(8, True), 0, (8, True)),
        (Offer(4, True), 4, (4, True)),
        (Offer(0, True), 0, (0, False)),
        (Offer(8, False), 0, (0, False)),
        (Offer(6, True), 0, (0, False)),  # no whole blocks
        (Offer(8, True), 4, (0, False)),  # nothing left to compute
        (Offer(-4, True), 0, (0, False)),
    ],
)
def test_only_offers_that_vllm_survives_are_passed_on(
    engine: Engine, offer: Offer, computed: int, want: tuple[int, bool]
) -> None:
    engine.leader.offer = offer
    assert engine.side.match(engine.request("r", 12), computed) == want


def test_scope_and_wishes_reach_the_leader(engine: Engine) -> None:
    r = engine.request(
        "r",
        10,
        cache_salt="s",
        lora_request=SimpleNamespace(lora_name="n", lora_path="/p"),
        kv_transfer_params={"kvconn": {"save": False}},
        skip_reading_prefix_cache=True,
    )
    engine.side.match(r, 0)
    (m,) = engine.leader.matches
    assert (m["salt"], m["lora"], m["no_load"], m["no_save"]) == ("s", "lora-1:aa", True, True)


@pytest.mark.parametrize(
    "special",
    [
        {"resumable": True},
        {"kv_transfer_params": {"kvconn": {"load": False, "save": False}}},
        {"cache_salt": "x" * 5000},
        {"request_id": "x" * 600},
        {"num_tokens": 3 << 20},
    ],
)
def test_requests_that_cannot_be_cached_are_not_told(engine: Engine, special: dict[str, Any]) -> None:
    r = engine.request("r", 10, **special)
    assert engine.side.match(r, 0) == (0, False)
    engine.tables[r.request_id] = ([1, 2, 3],)
    engine.plan(new={r.request_id: (0, 10)})
    engine.side.finished(r.request_id)
    engine.plan()
    assert (engine.leader.matches, engine.leader.steps) == ([], [])


def test_a_taken_offer_is_loaded_and_reported(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 4)
    engine.allocate(r, [9, 5, 6], external=8)
    meta = engine.plan()
    assert engine.leader.steps[0].allocs == [Alloc("r", [[9, 5, 6]], 4, 8)]
    assert (meta.payload, meta.loads, meta.lost) == (b"plan", [PlannedLoad("r", [5, 6])], [])
    engine.loads_ended("r")
    assert engine.leader.reports == [(["r"], [])]
    # The second call, after the load, brings no second load.
    engine.allocate(r, [9, 5, 6, 7])
    engine.plan(new={"r": (12, 2)})
    assert engine.leader.steps[1].allocs == []
    assert engine.leader.steps[1].scheduled == [Scheduled("r", [[9, 5, 6, 7]], True, 12, 2, [], 14)]


def loaded_request(engine: Engine, computed: int = 0, **ended: Any) -> Any:
    """Return a request of 14 tokens after the load of the 12 tokens before its last block."""
    engine.leader.offer = Offer(12 - computed, True)
    r = engine.request("r", 14)
    engine.side.match(r, computed)
    engine.allocate(r, [1, 2, 3, 4], external=12 - computed)
    assert engine.plan().payload == b"plan"
    engine.loads_ended("r", **ended)
    engine.allocate(r, [1, 2, 3, 4])
    return r


def test_a_step_after_a_load_is_told_with_the_next_block(engine: Engine) -> None:
    r = loaded_request(engine)
    meta = engine.plan(new={"r": (12, 2)})
    assert (len(engine.leader.steps), meta.payload, meta.number) == (1, b"", 0)
    engine.append(r, 7)
    assert engine.plan(cached={"r": (14, 1)}).payload == b""
    engine.append(r, 8)
    assert engine.plan(cached={"r": (15, 1)}).payload == b"plan"
    # What was computed in the prefill is not in its count: the leader would take it for as many decoded tokens.
    assert engine.leader.steps[1:] == [Step(scheduled=[Scheduled("r", [[1, 2, 3, 4]], True, 14, 2, [7, 8], 14)])]


def test_the_end_of_a_request_is_not_waited_for(engine: Engine) -> None:
    loaded_request(engine)
    engine.plan(new={"r": (12, 2)})
    engine.side.finished("r")
    engine.plan()
    assert engine.leader.told == 1
    assert engine.leader.steps[1:] == [Step(finished=["r"])]


def test_a_long_prefill_after_a_load_is_told_without_waiting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconn.vllm.scheduler._LEARNT_TOKENS", 2)
    loaded_request(engine)
    meta = engine.plan(new={"r": (12, 2)})
    assert (engine.leader.told, meta.payload, meta.number) == (1, b"", 0)
    assert engine.leader.steps[-1].scheduled == [Scheduled("r", [[1, 2, 3, 4]], True, 12, 2, [], 14)]


@pytest.mark.parametrize(
    ("computed", "ended"), [(4, {}), (0, {"invalid": {3}}), (0, {"failed": {"r"}})], ids=["held", "invalid", "failed"]
)
def test_what_a_load_did_not_bring_may_have_to_be_saved(computed: int, ended: dict[str, Any]) -> None:
    engine = Engine()
    loaded_request(engine, computed, **ended)
    assert engine.plan(new={"r": (12, 2)}).payload == b"plan"
    assert engine.leader.told == 0


def test_only_the_first_step_after_a_load_saves_nothing(engine: Engine) -> None:
    r = loaded_request(engine)
    engine.append(r, 7, 8)
    assert engine.plan(new={"r": (12, 4)}).payload == b"plan", "the step fills a block"
    assert engine.plan(preempted={"r"}).payload == b""
    assert engine.leader.told == 1
    engine.side.match(r, 0)
    assert engine.plan(cached={"r": (0, 12)}, resumed={"r"}).payload == b"plan"
    assert engine.leader.told == 1


def test_what_a_former_leader_had_stored_may_have_to_be_saved(engine: Engine) -> None:
    r = loaded_request(engine)
    engine.leader.session = 2
    assert engine.plan(new={"r": (12, 2)}).payload == b""
    engine.plan(preempted={"r"})
    engine.leader.offer = Offer(0, False)
    engine.side.match(r, 0)
    assert engine.plan(cached={"r": (0, 12)}, resumed={"r"}).payload == b"plan"
    assert engine.leader.told == 0


def test_a_step_told_with_another_that_saves_is_waited_for(engine: Engine) -> None:
    loaded_request(engine)
    engine.leader.offer = Offer(0, False)
    q = engine.request("q", 8)
    engine.side.match(q, 0)
    engine.allocate(q, [5, 6])
    assert engine.plan(new={"r": (12, 2), "q": (0, 8)}).payload == b"plan"
    assert engine.leader.told == 0


def test_an_offer_not_taken_is_told(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2, 3, 4])
    meta = engine.plan(new={"r": (0, 14)})
    assert engine.leader.steps[0].allocs == [Alloc("r", [[1, 2, 3, 4]], 0, 0)]
    assert meta.loads == []


@pytest.mark.parametrize("error", [Unavailable("gone"), RuntimeError("bug")])
def test_a_load_that_no_leader_plans_is_reported_as_lost(engine: Engine, error: Exception) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.leader.error = error
    meta = engine.plan()
    assert (meta.payload, meta.loads, meta.lost) == (b"", [], [PlannedLoad("r", [1, 2])])


@pytest.mark.parametrize("error", [Rejected("bad_request", "?"), RuntimeError("bug")])
def test_after_a_step_that_the_leader_may_not_know_a_block_table_is_not_extended(
    engine: Engine, error: Exception
) -> None:
    r = engine.request("r", 20)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2])
    engine.plan(new={"r": (0, 8)})
    engine.leader.error = error
    engine.tables["r"] = ([1, 2, 3],)
    engine.plan(cached={"r": (8, 4)})
    engine.leader.error = None
    engine.tables["r"] = ([1, 2, 3, 4, 5],)
    engine.plan(cached={"r": (12, 8)})
    assert len(engine.leader.steps) == 2, "the leader would take blocks 4 and 5 for those after 2"
    engine.side.match(r, 0)
    engine.plan(cached={"r": (12, 8)}, resumed={"r"})
    assert engine.leader.steps[-1].scheduled == [Scheduled("r", [[1, 2, 3, 4, 5]], True, 12, 8, [], 20)]


def test_a_step_that_cannot_be_told_is_forgotten_whole(engine: Engine) -> None:
    requests = {name: engine.request(name, 20) for name in "ab"}
    for name, blocks in (("a", [1, 2]), ("b", [6, 7])):
        engine.side.match(requests[name], 0)
        engine.allocate(requests[name], blocks)
    engine.plan(new={"a": (0, 8), "b": (0, 8)})
    engine.tables |= {"a": ([1, 2, 3],), "b": ([6, 7], [8])}  # another group, suddenly
    engine.plan(cached={"a": (8, 4), "b": (8, 4)})
    engine.tables |= {"a": ([1, 2, 3, 4, 5],), "b": ([6, 7],)}
    engine.plan(cached={"a": (12, 8)})
    assert len(engine.leader.steps) == 1


def test_a_load_that_another_leader_offered_is_lost(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.leader.session = 2
    assert engine.plan().lost == [PlannedLoad("r", [1, 2])]
    assert engine.leader.steps == []


def test_a_request_whose_load_failed_is_not_offered_again(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.plan()
    engine.loads_ended("r", invalid={2})
    assert engine.leader.reports == [(["r"], [2])]
    engine.side.match(r, 0)
    assert engine.leader.matches[-1]["no_load"]


def test_blocks_that_fail_on_the_first_rank_are_reported_when_the_last_has_ended(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.plan()
    engine.loads_ended(invalid={2, 99})
    assert engine.leader.reports == []
    engine.side.match(r, 0)
    assert engine.leader.matches[-1]["no_load"]
    engine.loads_ended("r")
    assert engine.leader.reports == [(["r"], [2])]


def test_a_load_that_failed_as_a_whole_is_reported_with_its_blocks(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], [0, 5], external=8)
    engine.plan()
    engine.loads_ended("r", failed={"r", "stranger"})
    assert engine.leader.reports == [(["r"], [1, 2, 5])]
    engine.side.match(r, 0)
    assert engine.leader.matches[-1]["no_load"]


# Several KV cache groups


def test_groups_have_their_own_block_tables_and_null_blocks_are_none(engine: Engine) -> None:
    engine.leader.offer = Offer(12, True)
    r = engine.request("r", 18)
    engine.side.match(r, 4)
    engine.allocate(r, [9, 5, 6, 7], [0, 0, 0, 8], external=12)
    meta = engine.plan()
    assert engine.leader.steps[0].allocs == [Alloc("r", [[9, 5, 6, 7], [NO_BLOCK] * 3 + [8]], 4, 12)]
    assert meta.loads == [PlannedLoad("r", [5, 6, 7, 8])]
    engine.loads_ended("r")
    engine.tables["r"] = ([9, 5, 6, 7, 3], [0, 0, 0, 8, 4])
    engine.plan(new={"r": (16, 2)})
    engine.append(r, *range(4))
    engine.tables["r"] = ([9, 5, 6, 7, 3, 11], [0, 0, 0, 0, 4, 12])
    engine.plan(cached={"r": (18, 4)})
    assert [s for step in engine.leader.steps for s in step.scheduled] == [
        Scheduled("r", [[9, 5, 6, 7, 3], [*[NO_BLOCK] * 3, 8, 4]], True, 16, 2, [], 18),
        Scheduled("r", [[11], [12]], False, 18, 4, [0, 1, 2, 3], 18),
    ]


# The most tokens to load


def limited(engine: Engine, tokens: int, most: int) -> Any:
    return engine.request("r", tokens, kv_transfer_params={"kvconn": {"max_load_tokens": most}})


def test_the_leader_is_told_as_many_tokens_as_may_be_loaded_and_one_to_compute(engine: Engine) -> None:
    r = limited(engine, 18, 8)
    engine.leader.offer = Offer(8, True)
    assert engine.side.match(r, 4) == (8, True)
    (m,) = engine.leader.matches
    assert (m["start"], m["tokens"], m["prompt"], m["computed"]) == (0, list(range(13)), 18, 4)


def test_tokens_beyond_what_may_be_loaded_are_told_when_they_are_computed(engine: Engine) -> None:
    r = limited(engine, 18, 8)
    engine.leader.offer = Offer(8, True)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.plan()
    engine.loads_ended("r")
    engine.allocate(r, [1, 2, 3, 4, 5])
    engine.plan(new={"r": (8, 10)})
    assert engine.leader.steps[-1].scheduled == [Scheduled("r", [[1, 2, 3, 4, 5]], True, 8, 10, list(range(9, 18)), 9)]


def test_a_leader_that_knows_more_tokens_than_may_be_loaded_forgets_them(engine: Engine) -> None:
    r = limited(engine, 18, 8)
    engine.side.match(r, 8)
    engine.side.match(r, 0)
    engine.side.match(r, 4)
    assert [(m["start"], len(m["tokens"])) for m in engine.leader.matches] == [(0, 17), (9, 0), (9, 4)]


def test_a_bound_beyond_the_prompt_binds_nothing(engine: Engine) -> None:
    engine.side.match(limited(engine, 10, 1 << 40), 0)
    assert len(engine.leader.matches[0]["tokens"]) == 10


def test_nothing_to_load_at_most_opts_out_of_loading(engine: Engine) -> None:
    engine.side.match(limited(engine, 10, 0), 0)
    assert (engine.leader.matches[0]["no_load"], engine.leader.matches[0]["no_save"]) == (True, False)


# What placeholder tokens stand for


def test_images_are_told_as_spans_each_time(engine: Engine) -> None:
    def feature(start: int, length: int, identifier: str) -> Any:
        return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=start, length=length))

    cat, long = "ca7" * 22, "tower " * 50 + ":" + "d06" * 22
    r = engine.request("r", 14, mm_features=[feature(6, 3, long), feature(1, 4, cat)])
    engine.side.match(r, 0)
    engine.side.match(r, 0)
    want = [Span(1, 5, cat.encode()), Span(6, 9, hashlib.sha256(long.encode()).digest())]
    assert [(m["start"], m["spans"]) for m in engine.leader.matches] == [(0, want), (14, want)]


def test_embeddings_are_told_block_by_block(engine: Engine) -> None:
    import torch

    embeds = torch.arange(20, dtype=torch.bfloat16).reshape(10, 2)
    changed = embeds.clone()
    changed[9] += 1
    for name, rows in (("a", embeds), ("b", changed), ("c", embeds.clone())):
        engine.side.match(engine.request(name, 10, prompt_embeds=rows), 0)
    a, b, c = (m["spans"] for m in engine.leader.matches)
    assert [(s.start, s.end) for s in a] == [(0, 4), (4, 8), (8, 10)]
    assert a == c
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, True, False]


def test_more_spans_than_the_protocol_has_are_not_told(engine: Engine) -> None:
    position = SimpleNamespace(offset=0, length=1)
    features = [SimpleNamespace(identifier="a" * 64, mm_position=position)] * 4097
    assert engine.side.match(engine.request("r", 10, mm_features=features), 0) == (0, False)
    assert engine.leader.matches == []


@pytest.mark.parametrize(
    ("identifier", "by_content"), [("my-cat", True), ("renderer0-mm-1-image-0", True), ("a" * 64, False)]
)
def test_images_known_by_a_name_or_a_number_are_not_told(
    caplog: pytest.LogCaptureFixture, identifier: str, by_content: bool
) -> None:
    engine = Engine(by_content)
    position = SimpleNamespace(offset=0, length=1)
    features = [SimpleNamespace(identifier=identifier, mm_position=position)]
    for name in "ab":
        assert engine.side.match(engine.request(name, 10, mm_features=features), 0) == (0, False)
    assert (engine.leader.matches, len(caplog.records)) == ([], 1)


# LoRA adapters


def lora_request(engine: Engine, name: str = "n", tokens: int = 14) -> Any:
    return engine.request("r", tokens, lora_request=SimpleNamespace(lora_name=name, lora_int_id=1, lora_path="/p"))


def test_an_adapter_of_unknown_content_is_not_told_until_it_is_known(engine: Engine) -> None:
    r = lora_request(engine, "new")
    assert engine.side.match(r, 0) == (0, False)
    assert engine.leader.matches == []
    engine.adapters.known["new"], engine.adapters.files["new"] = "lora-1:bb", engine.adapters.files["n"]
    engine.leader.offer = Offer(8, True)
    assert engine.side.match(r, 0) == (8, True)
    assert engine.leader.matches[0]["lora"] == "lora-1:bb"


def test_a_request_waits_for_an_adapter_that_is_soon_known(engine: Engine) -> None:
    r = lora_request(engine, "soon")
    assert engine.side.match(r, 0) == (None, False)
    engine.adapters.known["soon"], engine.adapters.files["soon"] = "lora-1:bb", engine.adapters.files["n"]
    assert engine.side.match(r, 0) == (0, False)
    assert engine.leader.matches[0]["lora"] == "lora-1:bb"


def test_workers_are_told_which_files_must_be_untouched(engine: Engine) -> None:
    r = lora_request(engine)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2, 3, 4])
    assert engine.plan(new={"r": (0, 14)}).untouched == list(engine.adapters.files["n"])
    plain = engine.request("plain", 6)
    engine.side.match(plain, 0)
    engine.allocate(plain, [5, 6])
    assert engine.plan(new={"plain": (0, 6)}).untouched == []


def test_once_an_adapter_has_changed_nothing_of_it_is_loaded_or_saved(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = lora_request(engine)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2, 3, 4])
    engine.plan(new={"r": (0, 8)})
    engine.adapters.files = {}
    meta = engine.plan(cached={"r": (8, 6)})
    assert (meta.untouched, [s.scheduled for s in engine.leader.steps[1:]]) == ([], [])
    assert engine.side.match(r, 0) == (0, False)


def test_a_new_request_has_its_adapter_looked_at(engine: Engine) -> None:
    seen = []
    engine.adapters.scope = lambda lora: seen.append(lora.lora_name)  # type: ignore[method-assign,assignment]
    engine.side.met(lora_request(engine))
    engine.side.met(engine.request("plain", 6))
    assert seen == ["n"]


def test_the_leader_is_told_what_the_adapters_of_new_requests_stand_for(engine: Engine) -> None:
    for name in ("n", "soon", "refused", "x" * 513):
        engine.side.met(lora_request(engine, name))
    engine.leader.error = Unavailable("gone")
    engine.plan()
    engine.leader.error = None
    engine.plan()
    assert engine.leader.steps[-1].adapters == [("n", "lora-1:aa"), ("refused", "")]
    engine.plan()
    engine.adapters.known["soon"] = "lora-1:bb"
    engine.plan()
    assert [s.adapters for s in engine.leader.steps[2:]] == [[("soon", "lora-1:bb")]]
    engine.side.met(lora_request(engine, "n"))  # the daemon may be another one since
    engine.side.stop("reload_weights")
    engine.plan()
    assert engine.leader.steps[-1].adapters == [("n", "")]


def test_only_so_many_adapters_are_told_in_a_step(engine: Engine) -> None:
    for i in range(1500):
        engine.side.met(lora_request(engine, f"refused-{i}"))
    engine.plan()
    engine.plan()
    engine.plan()
    assert [len(s.adapters) for s in engine.leader.steps] == [1024, 476]


def test_after_weights_were_exchanged_nothing_is_loaded_or_saved(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2, 3, 4])
    engine.plan(new={"r": (0, 8)})
    engine.side.stop("reload_weights")
    engine.side.stop("reload_weights")
    engine.plan(cached={"r": (8, 6)})
    assert engine.side.match(engine.request("s", 14), 0) == (0, False)
    assert engine.side.match(lora_request(engine, "soon"), 0) == (0, False)
    assert (len(engine.leader.steps), len(caplog.records)) == (1, 1)


def test_the_length_of_the_prompt_is_told(engine: Engine) -> None:
    r = engine.request("r", 10)
    engine.append(r, 1, 2)  # preempted: what it has put out is asked for, too
    engine.side.match(r, 0)
    assert (engine.leader.matches[0]["prompt"], len(engine.leader.matches[0]["tokens"])) == (10, 12)


# Reset


@pytest.mark.parametrize("error", [None, Unavailable("gone")])
def test_after_a_reset_block_tables_are_told_again(engine: Engine, error: Exception | None) -> None:
    r = engine.request("r", 6)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2])
    engine.plan(new={"r": (0, 6)})
    engine.leader.error = error
    engine.side.reset()
    engine.leader.error = None
    assert engine.leader.resets == 1
    engine.append(r, 6, 7)
    engine.plan(cached={"r": (6, 2)})
    assert engine.leader.steps[-1].scheduled == [Scheduled("r", [[1, 2]], True, 6, 2, [6, 7], 6)]


def test_an_aborted_request_still_has_its_load_reported(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True)
    r = engine.request("r", 14)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2], external=8)
    engine.plan()
    engine.side.finished("r")
    engine.plan()
    assert engine.leader.steps[1].finished == ["r"]
    engine.loads_ended("r")
    assert engine.leader.reports == [(["r"], [])]


def test_the_leader_is_called_once_a_filled_block(engine: Engine) -> None:
    r = engine.request("r", 6)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2])
    engine.plan(new={"r": (0, 6)})
    for i in range(6, 13):
        engine.append(r, 100 + i)
        engine.tables["r"] = ([1, 2, 3, 4][: i // 4 + 1],)
        engine.plan(cached={"r": (i, 1)})
    assert [s for step in engine.leader.steps for s in step.scheduled] == [
        Scheduled("r", [[1, 2]], True, 0, 6, [], 6),
        Scheduled("r", [[]], False, 6, 2, [106, 107], 6),
        Scheduled("r", [[3]], False, 8, 4, [108, 109, 110, 111], 8),
    ]


def test_chunks_of_a_prompt_extend_the_block_table(engine: Engine) -> None:
    r = engine.request("r", 20)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2])
    engine.plan(new={"r": (0, 8)})
    engine.tables["r"] = ([1, 2, 3, 4],)
    engine.plan(cached={"r": (8, 8)})
    assert [s for step in engine.leader.steps for s in step.scheduled] == [
        Scheduled("r", [[1, 2]], True, 0, 8, [], 20),
        Scheduled("r", [[3, 4]], False, 8, 8, [], 20),
    ]


def test_draft_tokens_fill_no_block(engine: Engine) -> None:
    r = engine.request("r", 7)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2, 3])
    engine.plan(new={"r": (0, 10)})
    assert engine.leader.steps[0].scheduled[0].count == 7


def test_a_preempted_request_starts_with_a_new_table(engine: Engine) -> None:
    r = engine.request("r", 6)
    engine.side.match(r, 0)
    engine.allocate(r, [1, 2])
    engine.plan(new={"r": (0, 6)})
    engine.append(r, 106)
    engine.plan(preempted={"r"})
    assert engine.leader.steps[1].preempted == ["r"]
    engine.side.match(r, 0)
    engine.allocate(r, [7, 8])
    engine.plan(cached={"r": (0, 7)}, resumed={"r"})
    assert engine.leader.steps[2].scheduled == [Scheduled("r", [[7, 8]], True, 0, 7, [], 7)]


def test_finished_requests_are_told_once(engine: Engine) -> None:
    r = engine.request("r", 6)
    engine.side.match(r, 0)
    engine.side.finished("r")
    engine.side.finished("r")
    engine.plan()
    engine.plan()
    assert [s.finished for s in engine.leader.steps] == [["r"]]


def test_a_step_without_news_makes_no_call(engine: Engine) -> None:
    assert not engine.plan()
    assert engine.leader.steps == []


def test_without_a_leader_nothing_is_told(engine: Engine) -> None:
    r = engine.request("r", 6)
    engine.leader.error = Unavailable("gone")
    engine.leader.session = 0
    assert engine.side.match(r, 0) == (0, False)
    engine.allocate(r, [1, 2])
    assert not engine.plan(new={"r": (0, 6)})
    engine.side.finished("r")
    assert not engine.plan()
    assert engine.leader.steps == []


def test_the_two_steps_after_much_prefill_are_told(engine: Engine) -> None:
    r = engine.request("r", 302)
    engine.side.match(r, 0)
    engine.allocate(r, [*range(1, 77)])
    engine.plan(new={"r": (0, 302)})
    for i in range(302, 306):
        engine.append(r, i)
        engine.tables["r"] = ([*range(1, 78)],)
        engine.plan(cached={"r": (i, 1)})
    told = [(s.computed, s.count) for step in engine.leader.steps for s in step.scheduled]
    assert told == [(0, 302), (302, 1), (303, 1)]
