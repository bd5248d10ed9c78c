from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.client import FinishedLoad, Part, Polled, StoredPut
from kvconn.vllm.tier_pace import Pace
from kvconn.vllm.tier_promises import Promises
from kvconn.vllm.tier_requests import Terms, TierRequest
from kvconn.vllm.tier_side import Answer, Ended, Rows, TierSide

CHUNK = 8
FULL, WINDOW = 0, 16
HIT, MISS, RETRY = Answer.HIT, Answer.MISS, Answer.RETRY


def key(chunk: int, group: int = 0, prompt: str = "") -> bytes:
    return hashlib.sha256(f"{prompt}{chunk}".encode()).digest() + group.to_bytes(4, "big")


def hashes(*chunks: int, prompt: str = "") -> list[bytes]:
    return [key(c, prompt=prompt)[:-4] for c in chunks]


class Context:
    """What vLLM knows of a request's keys."""

    def __init__(self, chunks: int, groups: int = 1, prompt: str = "") -> None:
        self._offload_key_positions = {key(c, g, prompt): (c + 1) * CHUNK for g in range(groups) for c in range(chunks)}

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self._offload_key_positions.get(key)


class Coy(Context):
    """A context that does not show all keys."""

    def __init__(self, chunks: int) -> None:
        super().__init__(chunks)
        self._hidden = self._offload_key_positions
        del self._offload_key_positions

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self._hidden.get(key)


class Client:
    """Stands where KeyedClient does."""

    def __init__(self) -> None:
        self.stored: set[tuple[int, bytes]] = set()
        self.asked: list[dict[str, Any]] = []
        self.fetched: list[tuple[str, list[Part]]] = []
        self.puts: list[tuple[str, list[Part]]] = []
        self.touched: list[tuple[str, list[bytes], int, float]] = []
        self.finished: list[FinishedLoad] = []
        self.ended_puts: list[StoredPut] = []
        self.error: Exception | None = None
        self.absent = False
        self.session = 1
        self.releases = True
        self.taken_back = 0

    def keep(self, *chunks: int, groups: int = 1, prompt: str = "") -> None:
        self.stored |= {(g, h) for h in hashes(*chunks, prompt=prompt) for g in range(groups)}

    def present(self, request: str, hashes: list[bytes], **kwargs: Any) -> list[bytes]:
        self.asked.append({"request": request, "hashes": list(hashes), **kwargs})
        if self.absent:
            return []
        bits = [sum(1 << i for i, h in enumerate(hashes) if (g, h) in self.stored) for g in range(2)]
        return [b.to_bytes(-(-len(hashes) // 8), "little") for b in bits]

    def fetch(self, request: str, parts: list[Part], *, of: str) -> None:
        self.fetched.append((f"{request} of {of}", parts))
        if self.error:
            raise self.error

    def put(self, request: str, parts: list[Part], salt: str, lora: str) -> None:
        self.puts.append((request, parts))

    def poll(self) -> Polled:
        polled = Polled(self.finished, self.ended_puts)
        self.finished, self.ended_puts = [], []
        return polled

    def touch(self, request: str, hashes: list[bytes], tokens: int = 0, seconds: float = 0.0) -> None:
        self.touched.append((request, list(hashes), tokens, seconds))

    def unregister(self, timeout: float) -> bool:
        self.taken_back += 1
        return self.releases

    def close(self) -> None: ...


class Adapters:
    def __init__(self) -> None:
        self.known: str | None = "lora-1:abc"
        self.files = True
        self.looks = 0

    def scope(self, lora: Any) -> str | None:
        self.looks += 1
        return self.known

    def soon_known(self, name: str) -> bool:
        return self.known is None

    def untouched(self, name: str) -> tuple[int, ...]:
        return (1,) if self.files else ()


class Shown:
    """Stands where TierShown does: what it is told of."""

    announces = True

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def loaded(self, load: FinishedLoad) -> None:
        self.told.append(("loaded", load.request))

    def saved(self, put: StoredPut, keys: Sequence[bytes]) -> None:
        self.told.append(("saved", put.request, list(keys)))

    def looked_up(self, key: bytes, offered: bool) -> None:
        self.told.append(("looked up", key, offered))

    def connected(self, session: int) -> None:
        self.told.append(("connected", session))

    def withdraw(self) -> None:
        self.told.append(("withdrawn",))


class Bench:
    """A tier over a client that does as it is told."""

    def __init__(self, rows: int = 100, windows: tuple[int, ...] = (FULL,)) -> None:
        self.client, self.adapters = Client(), Adapters()
        client: Any = self.client
        adapters: Any = self.adapters
        shape = Rows(rows, CHUNK, windows)
        self.shown = Shown()
        self.side = TierSide(client, shape, Pace(False), 10.0, logging.getLogger("test"), adapters, self.shown)
        self.jobs = 0

    def request(self, name: str = "a", **terms: Any) -> TierRequest:
        return self.side.met(name, Terms(**terms))

    def answers(
        self, request: TierRequest, context: Context, *chunks: int, group: int = 0, prompt: str = ""
    ) -> list[Answer]:
        return [self.side.look_up(request, key(c, group, prompt), context) for c in chunks]

    def ended(self) -> list[Ended]:
        return [e._replace(seconds=None) for e in self.side.ended()]

    def load(self, request: TierRequest, context: Context, *chunks: int, row: int = 50, prompt: str = "") -> int:
        self.jobs += 1
        keys = [key(c, prompt=prompt) for c in chunks]
        self.side.load(self.jobs, keys, range(row, row + len(keys)), request, context)
        return self.jobs


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_daemon_is_told_the_trace(bench: Bench) -> None:
    for name, trace in (("a", "00-ab"), ("b", "")):
        bench.answers(bench.request(name, trace=trace), Context(2), 0)
        assert bench.client.asked[-1]["trace"] == trace


def test_the_daemon_is_asked_once_for_each_request_and_step(bench: Bench) -> None:
    bench.client.keep(0, 1, 2, 4)
    request, context = bench.request(), Context(6)
    for _ in range(2):
        # The pool has the first chunk: vLLM asks from the second on.
        assert bench.answers(request, context, 1, 2, 3, 4) == [HIT, HIT, MISS, HIT]
        bench.side.step_ended([], [])
    want = {"request": "a", "hashes": hashes(1, 2, 3, 4, 5), "first": 1, "parent": hashes(0)[0], "held": 1, "trace": ""}
    assert bench.client.asked == [want, want]


def test_without_the_daemon_nothing_is_offered(bench: Bench) -> None:
    bench.client.keep(0)
    bench.client.absent = True
    assert bench.answers(bench.request(), Context(2), 0, 1) == [MISS, MISS]
    assert len(bench.client.asked) == 1


def test_a_load_names_stretches_with_the_hash_before_them(bench: Bench) -> None:
    bench.client.keep(0, 1, 2, 3, 4, 5)
    request, context = bench.request(), Context(6)
    bench.answers(request, context, *range(6))
    job = bench.load(request, context, 4, 1, 2, 5, row=10)
    assert bench.client.fetched == [
        ("1 of a", [Part(0, hashes(0)[0], hashes(1, 2), [11, 12]), Part(0, hashes(3)[0], hashes(4, 5), [10, 13])])
    ]
    assert bench.ended() == []
    bench.client.finished = [FinishedLoad("1", [])]
    assert bench.ended() == [Ended(job, True)]
    assert not bench.side.busy
    assert bench.ended() == []


def test_a_failed_load_is_remembered_and_what_was_loaded_is_kept(bench: Bench) -> None:
    bench.client.keep(0, 1, 2)
    request, context = bench.request(), Context(3)
    assert bench.answers(request, context, 0, 1, 2) == [HIT] * 3
    job = bench.load(request, context, 0, 1, 2, row=7)
    bench.client.finished = [FinishedLoad("1", [8])]
    assert bench.ended() == [Ended(job, False, [key(0), key(2)])]
    for _ in range(3):
        bench.side.step_ended([], ["a"])
        assert bench.answers(request, context, 1, 2) == [MISS, MISS]
    assert len(bench.client.asked) == 1
    assert bench.answers(bench.request("b"), context, 0) == [HIT]


def test_while_a_request_loads_nothing_more_is_offered_to_it_and_after_a_preemption_again(bench: Bench) -> None:
    bench.client.keep(0, 1)
    request, context = bench.request(), Context(2)
    bench.answers(request, context, 0)
    bench.load(request, context, 0)
    bench.side.step_ended([], [])
    assert bench.answers(request, context, 1) == [MISS]
    bench.client.finished = [FinishedLoad("1", [])]
    bench.ended()
    assert bench.answers(request, context, 0) == [MISS]  # its rows were taken again: no second round
    bench.side.step_ended([], ["a"])
    assert bench.answers(request, context, 0) == [HIT]


def test_requests_that_wait_do_not_evict_each_other(bench: Bench) -> None:
    bench = Bench(rows=12)
    contexts = {name: Context(4, prompt=name) for name in "abc"}
    requests = {name: bench.request(name) for name in "abc"}
    for name in "abc":
        bench.client.keep(*range(4), prompt=name)

    def ask(name: str) -> list[Answer]:
        return bench.answers(requests[name], contexts[name], *range(4), prompt=name)

    assert ask("a") == [HIT] * 4
    assert ask("b") == [RETRY] * 4  # 8 rows are more than half of 12
    assert ask("c") == [RETRY] * 4
    job = bench.load(requests["a"], contexts["a"], *range(4), prompt="a")
    bench.side.step_ended([], [])
    bench.client.finished = [FinishedLoad("1", [])]
    assert bench.ended() == [Ended(job, True)]
    asked = len(bench.client.asked)
    assert ask("b") == [RETRY] * 4  # until the first runs
    assert len(bench.client.asked) == asked  # nothing has changed
    bench.side.step_ended(["a"], [])
    assert ask("c") == [RETRY] * 4  # it came after b
    assert ask("b") == [HIT] * 4
    bench.load(requests["b"], contexts["b"], *range(4), prompt="b")
    bench.side.step_ended([], [])
    bench.side.finished(requests["b"], contexts["b"])  # aborted while it loads
    assert ask("c") == [HIT] * 4


def test_a_request_that_waits_no_more_is_not_waited_for() -> None:
    bench = Bench(rows=8)
    requests = {name: bench.request(name) for name in "abcd"}
    for name in "abcd":
        bench.client.keep(*range(3), prompt=name)

    def ask(name: str) -> Answer:
        return bench.answers(requests[name], Context(3, prompt=name), 0, prompt=name)[0]

    assert [ask(name) for name in "abcd"] == [HIT, RETRY, RETRY, RETRY]
    bench.side.step_ended(["a", "b"], [])  # b runs without a load
    bench.client.stored = {s for s in bench.client.stored if s[1] not in hashes(*range(3), prompt="c")}
    assert ask("c") is MISS  # evicted
    assert ask("d") is HIT


def test_a_request_that_runs_again_without_a_load_is_not_waited_for() -> None:
    bench = Bench(rows=8)
    requests = {name: bench.request(name) for name in "abc"}
    contexts = {name: Context(3, prompt=name) for name in "abc"}
    for name in "abc":
        bench.client.keep(*range(3), prompt=name)

    def ask(name: str) -> Answer:
        return bench.answers(requests[name], contexts[name], 0, prompt=name)[0]

    bench.side.step_ended({}, ["b"])
    assert [ask(name) for name in "abc"] == [HIT, RETRY, RETRY]
    bench.load(requests["a"], contexts["a"], 0, 1, 2, prompt="a")
    # b was preempted, finds its chunks in vLLM's region, and runs on for long.
    bench.side.step_ended({"a": 1, "b": 1}, [])
    assert ask("c") is HIT


def test_a_request_that_waits_is_answered_by_what_the_region_lacks_now() -> None:
    bench = Bench(rows=12)
    a, b = bench.request("a"), bench.request("b")
    bench.client.keep(*range(5), prompt="a")
    bench.client.keep(*range(5), prompt="b")
    in_a, in_b = Context(5, prompt="a"), Context(5, prompt="b")
    assert bench.answers(a, in_a, *range(5), prompt="a") == [HIT] * 5
    assert bench.answers(b, in_b, 2, 3, 4, prompt="b") == [RETRY] * 3
    bench.side.step_ended({}, [])
    assert bench.answers(b, in_b, *range(5), prompt="b") == [RETRY] * 5  # the region has lost the first two
    bench.side.step_ended({"a": 1}, [])
    assert bench.answers(b, in_b, *range(5), prompt="b") == [HIT] * 5


def test_a_request_that_exceeds_the_region_alone_is_offered_what_fits(bench: Bench) -> None:
    bench = Bench(rows=6)
    bench.client.keep(*range(9))
    assert bench.answers(bench.request(), Context(9), *range(9)) == [HIT] * 3 + [MISS] * 6


def test_windows_are_offered_whole_or_not_at_all() -> None:
    for rows, want in ((20, HIT), (10, MISS)):
        bench = Bench(rows=rows, windows=(FULL, WINDOW))
        bench.client.keep(*range(6))
        bench.client.stored |= {(1, h) for h in hashes(4, 5)}
        request, context = bench.request(), Context(6, groups=2)
        assert bench.answers(request, context, *range(6)) == [want] * 6
        assert bench.answers(request, context, 5, 4, 3, group=1) == [want, want, MISS]
        assert bench.client.asked[0]["first"] == 0


def test_a_window_is_looked_up_from_its_end_and_offered_whole() -> None:
    bench = Bench(windows=(WINDOW,))
    bench.client.keep(3, 4, 5)
    request, context = bench.request(), Context(6)
    assert bench.answers(request, context, 5, 4, 3, 2) == [HIT, HIT, HIT, MISS]


def test_a_window_is_offered_where_the_region_has_the_other_layers() -> None:
    bench = Bench(rows=8, windows=(FULL, WINDOW))
    bench.client.keep(*range(6))
    bench.client.stored |= {(1, h) for h in hashes(3, 4, 5)}
    request, context = bench.request(), Context(6, groups=2)
    assert bench.answers(request, context, 5, 4, 3, 2, group=1) == [HIT, HIT, HIT, MISS]
    assert bench.client.asked[0]["first"] == 0


@pytest.mark.parametrize(("most", "want"), [(40, [MISS, HIT]), (48, [HIT, HIT])])
def test_of_a_window_no_more_is_loaded_than_a_request_wishes(most: int, want: list[Answer]) -> None:
    bench = Bench(windows=(WINDOW,))
    bench.client.keep(4, 5)
    assert bench.answers(bench.request(most=most), Context(6), 5, 4) == want


def test_a_store_is_sorted_into_stretches(bench: Bench) -> None:
    request, context = bench.request(), Context(5, groups=2)
    keys = {key(3), key(1), key(2, 1), key(0), key(3, 1)}
    rows = {k: i for i, k in enumerate(keys)}
    bench.side.store(9, keys, list(rows.values()), request, context)
    want = [
        Part(0, b"", hashes(0, 1), [rows[key(0)], rows[key(1)]]),
        Part(0, hashes(2)[0], hashes(3), [rows[key(3)]]),
        Part(1, hashes(1)[0], hashes(2, 3), [rows[key(2, 1)], rows[key(3, 1)]]),
    ]
    assert bench.client.puts == [("9", want)]
    assert bench.ended() == []
    bench.client.ended_puts = [StoredPut("9", 4, 0, 1)]
    assert bench.ended() == [Ended(9, True)]


def test_what_a_request_does_not_wish_is_not_done(bench: Bench) -> None:
    bench.client.keep(0)
    request, context = bench.request(load=False, save=False), Context(1)
    assert bench.answers(request, context, 0) == [MISS]
    bench.side.store(1, [key(0)], [0], request, context)
    assert bench.ended() == [Ended(1, False)]
    bench.side.finished(request, context)
    assert (bench.client.asked, bench.client.puts, bench.client.touched) == ([], [], [])


@pytest.mark.parametrize(("most", "want"), [(7, [MISS] * 3), (8, [HIT, MISS, MISS]), (23, [HIT, HIT, MISS])])
def test_no_more_is_loaded_than_a_request_wishes(bench: Bench, most: int, want: list[Answer]) -> None:
    bench.client.keep(0, 1, 2, 3)
    request, context = bench.request(most=most), Context(4)
    assert bench.answers(request, context, 1, 2, 3) == want


def test_a_chunk_whose_place_another_has_is_neither_loaded_nor_saved(bench: Bench) -> None:
    bench.client.keep(0, 1)
    request, context = bench.request(), Context(2)
    assert bench.answers(request, context, 0, 1) == [HIT, HIT]
    other = key(1, prompt="other")
    context._offload_key_positions[other] = 2 * CHUNK
    assert bench.side.look_up(request, other, context) is MISS
    bench.side.store(9, [key(0), other], [0, 1], request, context)
    assert bench.client.puts == [("9", [Part(0, b"", hashes(0), [0])])]
    bench.side.load(10, [key(0), other], [0, 1], request, context)
    assert (bench.client.fetched, bench.ended()) == ([], [Ended(10, False)])


def test_at_its_end_all_that_a_request_used_is_touched(bench: Bench) -> None:
    request, context = bench.request(), Context(4, groups=2)  # vLLM's region had all: nothing was looked up
    bench.side.finished(request, context)
    assert bench.client.touched == [("a", hashes(0, 1, 2, 3), 0, 0.0)]


def test_keys_that_vllm_does_not_show_at_once_are_asked_for_one_by_one(bench: Bench) -> None:
    bench.client.keep(0, 1, 2)
    request, context = bench.request(), Coy(4)
    assert bench.answers(request, context, 0, 1, 2, 3) == [HIT, HIT, HIT, MISS]
    assert [a["first"] for a in bench.client.asked] == [0, 1, 2, 3]
    bench.load(request, context, 0, 1, 2, row=0)
    assert bench.client.fetched == [("1 of a", [Part(0, b"", hashes(0, 1, 2), [0, 1, 2])])]
    # What comes before it is not known: it can't be kept.
    bench.side.store(5, [key(3)], [3], bench.request("b"), context)
    assert bench.ended() == [Ended(5, False)]


def test_adapters_have_hashes_of_their_own(bench: Bench) -> None:
    request, context = bench.request(adapter=SimpleNamespace(lora_name="x")), Context(1)
    bench.adapters.known = None
    assert bench.answers(request, context, 0) == [RETRY]
    bench.side.step_ended({}, [])
    bench.adapters.known = "lora-1:abc"
    bench.client.keep(0)
    assert bench.answers(request, context, 0) == [MISS]
    assert bench.client.asked[0]["hashes"] == [hashlib.sha256(b"lora-1:abc\n" + hashes(0)[0]).digest()]
    bench.adapters.files = False  # trained again
    bench.side.store(1, [key(0)], [0], request, context)
    assert (bench.ended(), bench.client.puts) == ([Ended(1, False)], [])


@pytest.mark.parametrize("known", [None, "lora-1:abc"])
def test_an_adapter_s_files_are_looked_at_once_a_step(bench: Bench, known: str | None) -> None:
    bench.adapters.known = known
    request, context = bench.request(adapter=SimpleNamespace(lora_name="x")), Context(50)
    for step in (1, 2):
        bench.answers(request, context, *range(50))
        assert bench.adapters.looks == step
        bench.side.step_ended({}, [])


def test_after_a_stop_nothing_is_begun(bench: Bench) -> None:
    bench.client.keep(0)
    request, context = bench.request(), Context(1)
    bench.side.stop("weights")
    assert bench.answers(request, context, 0) == [MISS]
    job = bench.load(request, context, 0)
    bench.side.store(7, [key(0)], [0], request, context)
    assert bench.ended() == [Ended(job, False), Ended(7, False)]
    assert (bench.client.fetched, bench.client.puts) == ([], [])


def test_a_drain_takes_the_rows_back_after_a_while(bench: Bench) -> None:
    request, context = bench.request(), Context(2)
    load = bench.load(request, context, 0)
    bench.side.store(7, [key(1)], [1], request, context)
    bench.side.drain(0.01)
    assert bench.client.taken_back == 1
    assert bench.ended() == [Ended(load, False), Ended(7, False)]
    assert not bench.side.busy


def test_a_drain_that_can_follow_nothing_says_so_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request, context = bench.request(), Context(1)
    bench.load(request, context, 0)
    outcomes = iter([RuntimeError("bug")] * 5)

    def unregister(timeout: float) -> bool:
        for error in outcomes:
            raise error
        return True

    monkeypatch.setattr(bench.client, "poll", lambda: next(iter(())))
    monkeypatch.setattr(bench.client, "unregister", unregister)
    bench.side.drain(10.0)
    assert bench.ended() == [Ended(1, False)]
    assert len(caplog.records) == 1


def test_after_an_error_jobs_end_once_the_daemon_cannot_write_any_more(bench: Bench) -> None:
    request, context = bench.request(), Context(2)
    bench.side.store(7, [key(1)], [1], request, context)
    bench.client.error, bench.client.releases = RuntimeError("bug"), False
    with pytest.raises(RuntimeError):
        bench.load(request, context, 0)
    bench.side.give_up(bench.jobs)
    assert bench.ended() == []
    bench.client.releases = True
    assert sorted(bench.ended()) == [Ended(bench.jobs, False), Ended(7, False)]
    assert not bench.side.busy


def test_promises_end_by_themselves_and_so_does_the_wait() -> None:
    now = [0.0]
    promises = Promises(10, patience=5.0, clock=lambda: now[0])
    assert promises.ask("a", 5) == 5
    assert promises.ask("b", 1) is None
    now[0] = 5.0
    assert promises.ask("b", 1) == 0
    assert promises.ask("c", 1) is None
    promises.loaded("a")
    now[0] = 10.0
    promises.expire()
    assert promises.ask("d", 9) is None  # c was first
    assert promises.ask("c", 1) == 1
    assert promises.ask("d", 9) is None
    promises.forget("c")
    assert promises.ask("d", 9) == 5


@pytest.mark.parametrize(("ahead", "want"), [(False, (899, 3.0)), (True, (899, 2.0))])
def test_pace_is_that_of_large_steps_that_others_follow(ahead: bool, want: tuple[int, float]) -> None:
    now = [0.0]
    pace = Pace(ahead, clock=lambda: now[0])
    for at, scheduled in (
        (0.0, {"idle": 900}),
        (50.0, {"a": 10}),
        (50.5, {"a": 1, **{f"decoding {i}": 1 for i in range(300)}}),
        (51.0, {"a": 1}),
        (60.0, {"a": 1, "b": 899}),
        (63.0, {"a": 1, "b": 1}),
        (65.0, {"a": 1}),
        (66.0, {"a": 1}),
    ):
        now[0] = at
        pace.step(scheduled)
    assert pace.take() == want
    assert pace.take() == (0, 0.0)


def test_what_happens_is_shown(bench: Bench) -> None:
    bench.client.keep(0)
    request, context = bench.request(), Context(2)
    assert bench.answers(request, context, 0, 1) == [HIT, MISS]
    bench.side.step_ended({"a"}, ())
    number = bench.load(request, context, 0)
    bench.client.finished = [FinishedLoad(str(number), [])]
    bench.side.ended()
    bench.side.store(number + 1, [key(0), key(1)], [7, 8], request, context)
    bench.client.ended_puts = [StoredPut(str(number + 1), 1, 0, 1)]
    bench.side.ended()
    bench.side.stop("test")
    assert bench.shown.told == [
        ("looked up", key(0), True),
        ("looked up", key(1), False),
        ("connected", 1),
        ("loaded", str(number)),
        ("saved", str(number + 1), [key(0), key(1)]),
        ("withdrawn",),
    ]


def test_chunks_that_the_daemon_was_not_asked_for_are_not_called_absent(bench: Bench) -> None:
    bench.client.keep(0, 1, 2)
    request, context = bench.request(most=CHUNK), Context(3)
    assert bench.answers(request, context, 0, 1) == [HIT, MISS]
    assert bench.shown.told == [("looked up", key(0), True)]
