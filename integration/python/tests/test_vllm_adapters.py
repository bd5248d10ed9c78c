from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.identity import files
from kvconn.identity.files import FileId
from kvconn.vllm import adapters as adapters_module
from kvconn.vllm import engine_hooks
from kvconn.vllm.adapters import Adapters

LATER = time.time() + 1e6
"""A point in time that all files here are older than."""


def adapter(path: Path, weights: bytes = b"weights", rank: int = 8, **others: bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (path / "adapter_model.safetensors").write_bytes(weights)
    for name, content in others.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def request(path: object, name: str = "a", number: int = 1, **fields: Any) -> Any:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(path), **fields)


def known(sees_loads: bool = False, since: float = LATER, settings: str = "{}") -> Adapters:
    return Adapters(since, sees_loads, settings, logging.getLogger("test"))


def scope(of: Adapters, lora: Any) -> str | None:
    """The scope of an adapter, once its files are hashed."""
    until = time.monotonic() + 10
    while of.scope(lora) is None and not of._by_name[lora.lora_name].refused and time.monotonic() < until:
        time.sleep(0.001)
    return of.scope(lora)


def digest(path: Path, **fields: Any) -> str:
    found = scope(known(), request(path, **fields))
    assert found is not None
    return found


def test_defect_1_an_adapter_trained_again_in_its_directory_has_another_scope(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    before = digest(path)
    assert digest(path) == before
    adapter(path, b"retrain")
    assert digest(path) != before


def test_equal_adapters_have_one_scope_whatever_they_are_called(tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "a"), adapter(tmp_path / "b")
    assert digest(first) == digest(second, name="other", number=7)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: adapter(p, rank=16),
        lambda p: adapter(p, b"weightz"),
        lambda p: adapter(p, new_embeddings__safetensors=b"x"),
        lambda p: (p / "adapter_model.safetensors").rename(p / "adapter_model.bin"),
    ],
)
def test_all_that_an_adapter_is_made_of_is_in_its_scope(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = adapter(tmp_path / "a")
    before = digest(path)
    change(path)
    assert digest(path) != before


def test_how_experts_are_read_is_in_the_scope(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    assert digest(path, is_3d_lora_weight=True) != digest(path)
    of = known()
    assert scope(of, request(path))
    assert of.scope(request(path, is_3d_lora_weight=True)) is None


def test_an_adapter_loaded_by_tensorizer_is_refused(tmp_path: Path) -> None:
    assert known().scope(request(adapter(tmp_path / "a"), tensorizer_config_dict={"uri": "s3://b/a"})) is None


def test_settings_that_change_what_adapters_do_are_in_the_scope(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    assert scope(known(settings='{"lora.lora_dtype":"torch.float16"}'), request(path)) != digest(path)


def test_files_beside_an_adapter_are_not_part_of_it(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    of, lora = known(), request(path)
    before = scope(of, lora)
    (path / "checkpoint-1").mkdir()
    (path / "tokenizer.json").write_text("{}")
    assert of.scope(lora) == before is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda p: adapter(p, b"retrain"),
        lambda p: adapter(p, b"weights"),
        lambda p: os.utime(p / "adapter_config.json", (1, 1)),
        lambda p: (p / "adapter_model.bin").write_bytes(b"x"),
        shutil.rmtree,
        lambda p: (p.rename(p.parent / "b"), adapter(p.parent / "new").rename(p)),
    ],
)
def test_an_adapter_that_changes_while_the_engine_runs_is_not_cached_any_more(
    tmp_path: Path, change: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    path = adapter(tmp_path / "a")
    of, lora = known(sees_loads=True), request(path)
    assert scope(of, lora)
    assert of.untouched("a")
    time.sleep(0.02)
    change(path)
    for _ in range(2):
        assert of.scope(lora) is None
        assert of.untouched("a") == ()
    of.loading(request(path, number=2), lambda: True)
    assert of.scope(lora) is None
    (record,) = caplog.records
    assert "have changed while the engine runs" in record.getMessage()


@pytest.mark.parametrize("change", [{"weights": b"retrain"}, {"adapter_model__pt": b"x"}])
def test_a_change_is_seen_without_a_new_request(tmp_path: Path, change: dict[str, bytes]) -> None:
    path = adapter(tmp_path / "a")
    of = known()
    assert scope(of, request(path))
    time.sleep(0.02)
    adapter(path, **change)
    assert of.untouched("a") == ()


def test_a_file_that_comes_after_the_last_look_changes_what_workers_look_at(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    of = known()
    assert scope(of, request(path))
    looked_at = of.untouched("a")
    time.sleep(0.02)
    (path / "adapter_model.pt").write_bytes(b"x")
    assert not all(FileId.of(f.path) == f for f in looked_at)


def test_another_path_under_the_same_name_is_a_change(tmp_path: Path) -> None:
    of = known(sees_loads=True)
    assert scope(of, request(adapter(tmp_path / "a")))
    assert of.scope(request(adapter(tmp_path / "b"))) is None


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    first, second, link = adapter(tmp_path / "a"), adapter(tmp_path / "b", b"others"), tmp_path / "latest"
    link.symlink_to(first)
    of, lora = known(sees_loads=True), request(link)
    assert scope(of, lora) == digest(first)
    link.unlink()
    link.symlink_to(second)
    assert of.scope(lora) is None


def test_what_may_have_been_loaded_before_it_was_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CLOCK_MARGIN_S", 0.0)
    old = adapter(tmp_path / "a")
    time.sleep(0.02)
    since = time.time()
    time.sleep(0.02)
    new = adapter(tmp_path / "b")
    assert scope(known(since=since), request(old))
    of = known(since=since)
    assert scope(of, request(new)) is None
    assert "changed since the engine was started" in of._by_name["a"].refused
    # Where every load is seen, what was not loaded yet has not been loaded before it was changed.
    assert scope(known(sees_loads=True, since=since), request(new))


def test_files_are_looked_at_before_the_engine_loads_them(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    of, lora = known(sees_loads=True), request(path)

    def load() -> str:
        adapter(path, b"replaced while loading")
        return "loaded"

    assert of.loading(lora, load) == "loaded"
    assert scope(of, lora) is None


def test_a_load_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    of, path = known(sees_loads=True), tmp_path / "a"

    def fail() -> None:
        raise FileNotFoundError(path)

    with pytest.raises(FileNotFoundError):
        of.loading(request(path), fail)
    adapter(path)
    of.loading(request(path, number=2), lambda: True)
    assert scope(of, request(path, number=2))
    # Some ranks may have loaded it under its first number, before it was changed.
    of.loading(request(path, number=1), lambda: True)
    assert of.scope(request(path, number=1)) is None


def test_two_adapters_with_one_number_are_not_told_apart(tmp_path: Path) -> None:
    of = known()
    assert scope(of, request(adapter(tmp_path / "a"), "a", 1))
    assert of.scope(request(adapter(tmp_path / "b"), "b", 1)) is None
    assert scope(of, request(adapter(tmp_path / "b"), "c", 2))
    # Loaded again it has another number.
    assert scope(of, request(tmp_path / "a", "a", 3))
    assert of._names == {2: "c", 3: "a"}


@pytest.mark.parametrize(
    ("path", "message"),
    [("/nowhere/a", "no local directory"), ("s3://bucket/a", "no local directory"), ("o/adapter", "was it in the hub")],
)
def test_an_adapter_that_is_no_local_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str, message: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    of = known()
    for _ in range(3):
        assert of.scope(request(path)) is None
    (record,) = caplog.records
    assert message in record.getMessage()


def test_an_adapter_of_the_hub_is_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--o--adapter"
    for commit in ("a" * 40, "b" * 40):
        adapter(repository / "snapshots" / commit, commit.encode())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    of = known()
    assert scope(of, request("o/adapter")) == digest(repository / "snapshots" / ("a" * 40))
    (repository / "refs" / "main").write_text("b" * 40)
    assert of.scope(request("o/adapter")) is None


@pytest.mark.parametrize(
    ("limit", "value", "message"), [("_MAX_BYTES", 10, "GiB"), ("_MAX_FILES", 1, "more than 1 files")]
)
def test_what_is_too_large_to_be_an_adapter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str
) -> None:
    monkeypatch.setattr(adapters_module, limit, value)
    of = known()
    assert of.scope(request(adapter(tmp_path / "a"))) is None
    assert message in of._by_name["a"].refused


def test_too_many_names_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters_module, "_MAX_ADAPTERS", 1)
    of, path = known(), adapter(tmp_path / "a")
    assert scope(of, request(path, "a", 1))
    assert of.scope(request(path, "b", 2)) is None
    assert list(of._by_name) == ["a"]


def test_a_request_does_not_wait_for_hashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    monkeypatch.setattr(Adapters, "_hash_all", lambda self: hashed.append(self._unhashed.get()))
    monkeypatch.setattr(adapters_module, "_PATIENCE_S", 60.0)
    of = known()
    assert of.scope(request(adapter(tmp_path / "a"))) is None
    assert of._by_name["a"].refused == ""
    assert of.soon_known("a")
    assert not of.soon_known("b")
    monkeypatch.setattr(adapters_module, "_PATIENCE_S", 0.0)
    assert not of.soon_known("a")


def test_an_adapter_that_was_just_written_is_looked_at_after_a_tick_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = adapter(tmp_path / "a")
    slept: list[float] = []
    monkeypatch.setattr(adapters_module.time, "sleep", slept.append)
    now = FileId.of(path / "adapter_model.safetensors").ctime_ns

    def looked_at(later_s: float) -> str:
        monkeypatch.setattr(adapters_module.time, "time_ns", lambda: now + int(later_s * 1e9))
        slept.clear()
        of = known(sees_loads=True)
        of.scope(request(path))
        return of._by_name["a"].refused

    assert looked_at(0.5) == ""
    assert slept == []
    assert "being written" in looked_at(0.001)
    monkeypatch.setattr(adapters_module.time, "sleep", lambda s: None)
    times = iter([now + 10**6, now + 10**8])
    monkeypatch.setattr(adapters_module.time, "time_ns", lambda: next(times))
    of = known(sees_loads=True)
    of.scope(request(path))
    assert of._by_name["a"].refused == ""


# Hooks


class Core:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_lora(self, lora_request: Any) -> bool:
        self.calls.append(lora_request)
        return True

    def collective_rpc(self, method: Any, timeout: float | None = None) -> list[str]:
        self.calls.append(method)
        return ["done"]


class Watcher:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def adapter_loads(self, lora: Any, load: Callable[[], Any]) -> Any:
        self.seen.append(f"before {lora}")
        result = load()
        self.seen.append(f"after {lora}")
        return result

    def weights_exchanged(self, by: str) -> None:
        self.seen.append(by)


def update_weights_from_ipc() -> None:
    pass


def test_hooks_see_loads_and_exchanged_weights() -> None:
    class Watched(Core):
        pass

    watcher, core = Watcher(), Watched()
    assert engine_hooks.watch(Watched, watcher)
    assert core.add_lora("x") is True
    assert core.add_lora(lora_request="y") is True
    for method in ("reload_weights", "synchronize_device", "compute_weight_checksums", update_weights_from_ipc):
        assert core.collective_rpc(method, timeout=1) == ["done"]
    assert core.collective_rpc(method="load_weights") == ["done"]
    want = ["before x", "after x", "before y", "after y", "reload_weights", "update_weights_from_ipc", "load_weights"]
    assert watcher.seen == want
    assert len(core.calls) == 7


@pytest.mark.parametrize(
    "method", ["update_named_param", "apply_model", "add_lora", lambda worker: None, Core().add_lora]
)
def test_whatever_trainers_call_in_the_workers_may_exchange_weights(method: Any) -> None:
    class Watched(Core):
        pass

    watcher, core = Watcher(), Watched()
    engine_hooks.watch(Watched, watcher)
    core.collective_rpc(method)
    assert len(watcher.seen) == 1


@pytest.mark.parametrize(
    "method", ["get_model_inspection", "profile", "update_max_model_len", "synchronize_device", "checkpoint_restore"]
)
def test_what_vllm_itself_calls_in_the_workers_exchanges_nothing(method: str) -> None:
    class Watched(Core):
        pass

    watcher, core = Watcher(), Watched()
    engine_hooks.watch(Watched, watcher)
    core.collective_rpc(method)
    assert watcher.seen == []


def test_a_version_without_the_method_is_said_not_to_be_seen() -> None:
    assert not engine_hooks.watch(type("Other", (), {}), Watcher())
