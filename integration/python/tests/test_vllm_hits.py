"""What loads brought, in vLLM's metrics and in answers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("vllm")

from test_vllm_scheduler import Engine

from kvconn.client import Offer, SaveResult
from kvconn.vllm.connector import KVConnConnector
from kvconn.vllm.metadata import Reported
from kvconn.vllm.stats import Stats

TWO_TIERS = Offer(8, True, {"host": 4, "disk": 4})


def load(engine: Engine, offer: Offer, tables: Any = ([1, 2],), external: int = 8) -> Any:
    engine.leader.offer = offer
    request = engine.request("r", 14)
    engine.side.match(request, 0)
    engine.allocate(request, *tables, external=external)
    engine.plan()
    return request


def sources(engine: Engine, tokens: int) -> dict[str, int]:
    return {source.value: n for source, n in engine.side.hits.sources("r", tokens).items()}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize(
    ("offer", "taken", "want"),
    [
        (TWO_TIERS, 8, {"host": 4, "disk": 4}),
        (Offer(8, True, {"disk": 8}), 8, {"disk": 8}),
        (Offer(8, True, {"disk": 8}), 4, {"disk": 4}),
        (TWO_TIERS, 4, {"external_unspecified": 4}),  # from either tier?
        (Offer(8, True), 8, {"external_unspecified": 8}),  # a daemon that does not tell
        (Offer(8, True, {"object": 4, "far": 4}), 8, {"external_unspecified": 8}),
    ],
)
def test_sources_are_the_tiers_and_sum_up(engine: Engine, offer: Offer, taken: int, want: dict[str, int]) -> None:
    load(engine, offer)
    assert sources(engine, taken) == want
    assert sources(engine, 0) == {}


def test_a_source_is_where_the_first_look_up_found_it(engine: Engine) -> None:
    request = engine.request("r", 14)
    for offer in (TWO_TIERS, Offer(8, True, {"host": 8})):  # read ahead meanwhile
        engine.leader.offer = offer
        engine.side.match(request, 0)
    assert sources(engine, 8) == {"host": 4, "disk": 4}
    engine.allocate(request, [1, 2], external=8)
    engine.side.match(request, 0)  # preempted
    assert sources(engine, 8) == {"host": 8}


def test_the_leader_is_asked_for_tiers_and_told_the_trace(engine: Engine) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for headers in ({"traceparent": trace}, {"traceparent": trace + "x"}, {"traceparent": "é"}, {}, None):
        engine.side.match(engine.request(f"r{headers}", 10, trace_headers=headers), 0)
    engine.side.match(engine.request("r", 10), 0)  # a version without tracing
    assert [m["trace"] for m in engine.leader.matches] == [trace, "", "", "", "", ""]
    assert all(m["tiers"] for m in engine.leader.matches)


def test_an_answer_says_what_was_loaded_from_where(engine: Engine) -> None:
    load(engine, TWO_TIERS)
    engine.loads_ended(reported=Reported({"r": {"disk": 1}, "stranger": {"disk": 1}}))
    engine.loads_ended("r", reported=Reported({"r": {"disk": 1, "host": 2}}))  # a second rank
    assert engine.side.finished("r") == {"kvconn": {"loaded_tokens": {"disk": 4, "host": 4}}}
    assert engine.side.hits.stats.data == {"loaded_tokens": {"disk": 4, "host": 4}}
    assert engine.side.finished("r") is None


def test_loads_of_a_preempted_request_add_up(engine: Engine) -> None:
    request = load(engine, TWO_TIERS)
    engine.loads_ended("r", reported=Reported({"r": {"disk": 2}}))
    engine.side.match(request, 0)
    engine.allocate(request, [3, 4], external=8)
    engine.plan()
    engine.loads_ended("r", reported=Reported({"r": {"host": 2}}))
    assert engine.side.finished("r") == {"kvconn": {"loaded_tokens": {"disk": 8, "host": 8}}}


@pytest.mark.parametrize(
    ("tables", "invalid", "want"),
    [
        (([1, 2],), {2}, {"disk": 4}),
        (([1, 2],), {1}, None),
        (([1, 2], [0, 3]), {3}, None),  # several groups: vLLM keeps nothing
    ],
)
def test_tokens_after_a_failed_block_were_not_loaded(engine: Engine, tables: Any, invalid: set[int], want: Any) -> None:
    load(engine, TWO_TIERS, tables)
    engine.loads_ended("r", invalid=invalid, reported=Reported({"r": {"disk": 1}}))
    assert engine.side.finished("r") == ({"kvconn": {"loaded_tokens": want}} if want else None)


def test_nothing_loaded_is_nothing_said(engine: Engine) -> None:
    request = engine.request("r", 14)
    engine.side.match(request, 0)
    assert engine.side.finished("r") is None
    load(engine, TWO_TIERS)
    engine.loads_ended("r")  # from a daemon that does not tell
    assert engine.side.finished("r") is None
    assert engine.side.hits.stats.take() is None


def test_what_is_refused_counts_once_a_request(engine: Engine) -> None:
    engine.leader.offer = Offer(0, False, {}, 32)
    request = engine.request("r", 14)
    engine.side.match(request, 0)
    engine.side.match(request, 0)
    assert engine.side.hits.stats.data == {"refused_tokens": 32}


def test_a_request_that_ends_while_it_loads_leaves_nothing_behind(engine: Engine) -> None:
    load(engine, TWO_TIERS)
    engine.side.finished("r")
    engine.loads_ended("r", reported=Reported({"r": {"disk": 2}}))
    assert (engine.side.hits._requests, engine.side.hits.stats.data) == ({}, {})


def test_figures_that_fail_cost_neither_the_report_of_a_load_nor_the_memory_of_its_failure(engine: Engine) -> None:
    request = load(engine, TWO_TIERS)
    engine.loads_ended("r", invalid={2}, reported=Reported({"r": {"disk": None}}))  # type: ignore[dict-item]
    assert engine.leader.reports == [(["r"], [2])]
    engine.side.match(request, 0)
    assert engine.leader.matches[-1]["no_load"]
    assert engine.side.finished("r") is None


def test_figures_that_fail_cost_no_hit(engine: Engine) -> None:
    engine.leader.offer = Offer(8, True, {}, None)  # type: ignore[arg-type]
    assert engine.side.match(engine.request("r", 14), 0) == (8, True)


def test_ranks_reports_are_one() -> None:
    one = Reported({"a": {"host": 1}}, {7: SaveResult(2, 0, 1)})
    other = pickle.loads(pickle.dumps(Reported({"a": {"host": 2, "disk": 1}, "b": {}}, {7: SaveResult(3, 1, 0)})))
    assert one.aggregate(other) == Reported({"a": {"host": 3, "disk": 1}, "b": {}}, {7: SaveResult(5, 1, 1)})
    assert not Reported()


# vLLM's own metrics


def some_stats() -> Stats:
    stats = Stats()
    stats.count("loaded_tokens", 256, "disk")
    stats.count("loaded_bytes", 4096, "disk")
    stats.count_all("saved_blocks", SaveResult(3, 0, 1)._asdict())
    stats.count("load_failed_blocks", 2)
    stats.count("refused_tokens", 0)
    stats.load_took(0.02)
    return stats


def test_stats_add_up_over_ranks_and_processes() -> None:
    stats = some_stats().take()
    assert stats is not None
    sent = KVConnConnector.build_kv_connector_stats(pickle.loads(pickle.dumps(stats)).to_dict())
    both = sent.aggregate(some_stats())
    assert both.data == {
        "loaded_tokens": {"disk": 512},
        "loaded_bytes": {"disk": 8192},
        "saved_blocks": {"taken": 6, "present": 2},
        "load_failed_blocks": 4,
        "load_seconds": [0.02, 0.02],
    }
    assert both.reduce() == {
        "loaded_tokens_disk": 512,
        "loaded_bytes_disk": 8192,
        "saved_blocks_taken": 6,
        "saved_blocks_present": 2,
        "load_failed_blocks": 4,
        "loads": 2,
        "load_ms_mean": 20.0,
    }
    both.reset()
    assert both.is_empty()
    assert both.take() is None


def test_a_tier_without_a_name_is_one_like_others() -> None:
    stats = Stats()
    for tier in ("disk", "", "disk"):
        stats.count("loaded_bytes", 1, tier)
    assert stats.aggregate(Stats(data={"loaded_bytes": {"": 1}})).data == {"loaded_bytes": {"disk": 2, "": 2}}


def test_metrics_are_in_prometheus_form() -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

    registry = CollectorRegistry()

    def registered(kind: Any) -> Any:
        return lambda **arguments: kind(registry=registry, **arguments)

    types = {kind: registered(kind) for kind in (Counter, Gauge, Histogram)}
    config: Any = type("Config", (), {"kv_transfer_config": None})()
    metrics = KVConnConnector.build_prom_metrics(
        config, types, ["model_name", "engine"], {0: ["m", "0"], 1: ["m", "1"]}
    )
    metrics.observe(some_stats().data | {"from a later version": 1}, 1)
    metrics.observe({}, 0)
    text = generate_latest(registry).decode()
    own = 'engine="1",model_name="m"'
    for line in (
        f'vllm:kvconn_loaded_tokens_total{{{own},tier="disk"}} 256.0',
        f'vllm:kvconn_loaded_bytes_total{{{own},tier="disk"}} 4096.0',
        f'vllm:kvconn_saved_blocks_total{{{own},result="taken"}} 3.0',
        f"vllm:kvconn_load_failed_blocks_total{{{own}}} 2.0",
        f"vllm:kvconn_load_seconds_count{{{own}}} 1.0",
    ):
        assert line in text
    assert "refused_tokens_total{" not in text
