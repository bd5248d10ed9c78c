from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from kvconn.vllm import releases
from kvconn.vllm.connector import KVConnConnector


@pytest.fixture
def reloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Looks at vLLM again, after the test has taken something away from it."""
    yield lambda: importlib.reload(releases)
    monkeypatch.undo()
    importlib.reload(releases)


def test_this_release_has_all_that_is_needed() -> None:
    assert releases.missing() == []
    releases.check()


def test_the_releases_known_to_work_are_those_of_the_table() -> None:
    table = (Path(__file__).parents[3] / "docs" / "vllm-versions.md").read_text()
    works = re.findall(r"^\| (\d+\.\d+)\.\d+ \| works", table, re.MULTILINE)
    assert f"{works[0]} to {works[-1]}" == releases.TESTED


def test_what_is_missing_is_said_before_the_engine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Output:
        preempted_req_ids: set[str] = field(default_factory=set)

    monkeypatch.setattr("vllm.v1.core.sched.output.SchedulerOutput", Output)
    monkeypatch.delattr(base.KVConnectorBase_V1, "handle_preemptions")
    monkeypatch.delattr("vllm.v1.kv_cache_interface.KVCacheTensor")
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", None)
    lacks = (
        "KVConnectorBase_V1.handle_preemptions, SchedulerOutput.kv_connector_block_state, KVCacheTensor,"
        " KVConnectorOutput"
    )
    with pytest.raises(ValueError, match=rf"vLLM \S+ has no {lacks}; releases 0\.29 to 0\.32 of vLLM"):
        KVConnConnector(None, None, None)  # type: ignore[arg-type]


def test_without_failed_requests_hybrid_models_are_kept_like_full_attention(
    monkeypatch: pytest.MonkeyPatch, reloaded: Any
) -> None:
    monkeypatch.delattr(base, "KVConnectorTransferResults", raising=False)
    older = reloaded()
    assert (older.TransferResults, older.Hybrid) == (None, object)
    assert older.missing() == []


def test_with_failed_requests_hybrid_models_keep_their_groups(monkeypatch: pytest.MonkeyPatch, reloaded: Any) -> None:
    monkeypatch.setattr(base, "KVConnectorTransferResults", SimpleNamespace, raising=False)
    assert reloaded().Hybrid is base.SupportsHMA


def output(state: Any) -> Any:
    return SimpleNamespace(kv_connector_block_state=state)


def test_tables_are_asked_for_where_all_are_told() -> None:
    tables = releases.BlockTables()
    step = output(SimpleNamespace(get_block_ids={"a": ([1, 2],)}.get))
    tables.note(step)
    assert (tables.of(step, "a"), tables.of(step, "b")) == (([1, 2],), ())
    assert tables.of(output(None), "a") == ()


def test_tables_are_kept_where_only_new_ones_are_told() -> None:
    tables = releases.BlockTables()
    for told in ({"a": ([1],), "b": ([2],)}, {"a": ([1, 3],)}, {}):
        step = output(SimpleNamespace(block_ids=told))
        tables.note(step)
    assert (tables.of(step, "a"), tables.of(step, "b"), tables.of(step, "c")) == (([1, 3],), ([2],), ())
    tables.forget("a")
    tables.note(output(None))
    assert (tables.of(step, "a"), tables.of(step, "b")) == ((), ([2],))
