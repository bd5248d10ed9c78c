from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_identity_weights import LATER, directory
from test_vllm_manifest import kv_config, spec
from test_vllm_settings import speculate, vllm_config

from kvconn.identity import background
from kvconn.identity.background import digest_directory
from kvconn.identity.files import Digests, UnknownIdentity
from kvconn.vllm import manifest, settings
from kvconn.vllm.identity import Identity


@pytest.fixture(autouse=True)
def no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_extra", lambda config, specs: settings.of(config))
    monkeypatch.setattr(settings, "read_again", lambda model: model.hf_config)


def engine(path: Path) -> Any:
    config = vllm_config()
    vars(config.model_config).update(model=str(path), revision=None)
    config.parallel_config = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1)
    return config


def identity(config: Any, digests: Digests | None = None) -> Identity:
    return Identity(
        config,
        kv_config((["l"], spec())),
        "vllm/x",
        loading_since=LATER,
        digests=digests or Digests(None),
        logger=logging.getLogger("test"),
    )


def made(config: Any) -> dict[str, Any]:
    known = identity(config)
    known.wait(10)
    encoded = known.manifest()
    assert encoded is not None
    decoded: dict[str, Any] = json.loads(encoded)
    return decoded


def test_the_windows_of_the_layer_groups_are_known_at_once(tmp_path: Path) -> None:
    assert identity(engine(directory(tmp_path / "m"))).windows == [0]


def test_other_weights_are_another_manifest(tmp_path: Path) -> None:
    path = directory(tmp_path / "m")
    before = made(engine(path))
    assert before["revision"].startswith("sha256:")
    assert made(engine(path)) == before
    directory(path, b"other weights")
    assert made(engine(path))["revision"] != before["revision"]


def test_other_weights_of_the_draft_model_are_another_manifest(tmp_path: Path) -> None:
    path, draft = directory(tmp_path / "m"), directory(tmp_path / "d", b"draft")

    def with_draft() -> dict[str, Any]:
        config = speculate(engine(path))
        vars(config.speculative_config.draft_model_config).update(model=str(draft), revision=None)
        return made(config)

    before = with_draft()
    assert "speculative.revision" not in made(engine(path))["extra"]
    assert with_draft() == before
    directory(draft, b"other draft")
    after = with_draft()
    assert after["extra"]["speculative.revision"] != before["extra"]["speculative.revision"]
    assert after["revision"] == before["revision"]


def test_a_draft_that_is_part_of_the_model_has_its_weights(tmp_path: Path) -> None:
    path = directory(tmp_path / "m")
    config = speculate(engine(path), method="mtp")
    vars(config.speculative_config.draft_model_config).update(model=str(path), revision=None)
    got = made(config)
    assert got["extra"]["speculative.revision"] == got["revision"]


def test_a_draft_model_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    config = speculate(engine(directory(tmp_path / "m")))
    vars(config.speculative_config.draft_model_config).update(model="o/draft", revision="main")
    with pytest.raises(UnknownIdentity, match="'main' is no commit"):
        identity(config)


def test_the_engine_does_not_wait_for_large_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()

    class Slow(Digests):
        def of(self, files: Any) -> dict[str, str]:
            read.wait(10)
            return super().of(files)

    known = identity(engine(directory(tmp_path / "m")), Slow(None))
    known.wait(0.01)
    assert known.manifest() is None
    read.set()
    known.wait(10)
    assert known.manifest() is not None


def test_weights_that_change_under_the_hash_are_never_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = directory(tmp_path / "m")

    class Late(Digests):
        def of(self, files: Any) -> dict[str, str]:
            directory(path, b"others")
            return super().of(files)

    known = identity(engine(path), Late(None))
    known.wait(10)
    assert known.manifest() is None
    (record,) = caplog.records
    assert "neither loaded nor saved" in record.getMessage()


def test_digests_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert digest_directory(None) == Path("/c/kvconn/digests")
    assert digest_directory("/d") == Path("/d")
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(background.Path, "home", no_home)
    assert digest_directory(None) is None
