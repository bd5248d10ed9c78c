from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from kvconn.vllm import manifest


def directory(path: Path, weights: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_the_fingerprint_does_not_depend_on_the_place(tmp_path: Path) -> None:
    weights = bytes(3 << 20)
    first, second = directory(tmp_path / "a", weights), directory(tmp_path / "b", weights)
    assert manifest.fingerprint_directory(first) == manifest.fingerprint_directory(second)


@pytest.mark.parametrize("changed", [0, 1 << 20, (3 << 20) - 1])
def test_other_weights_have_another_fingerprint(tmp_path: Path, changed: int) -> None:
    weights = bytearray(3 << 20)
    first = manifest.fingerprint_directory(directory(tmp_path / "a", bytes(weights)))
    # A retrained tensor is many bytes long.
    end = min(len(weights), changed + (256 << 10))
    weights[changed:end] = b"\x01" * (end - changed)
    assert manifest.fingerprint_directory(directory(tmp_path / "b", bytes(weights))) != first


def test_another_config_has_another_fingerprint(tmp_path: Path) -> None:
    first = directory(tmp_path / "a", b"w")
    before = manifest.fingerprint_directory(first)
    (first / "config.json").write_text('{"rope_theta": 1}')
    assert manifest.fingerprint_directory(first) != before


def test_a_hub_model_is_known_by_its_commit() -> None:
    config = SimpleNamespace(model="o/m", revision="main", hf_config=SimpleNamespace(_commit_hash="abc"))
    assert manifest.model_revision(config) == "abc"
    config.hf_config._commit_hash = None
    assert manifest.model_revision(config) == "main"


def test_weights_that_nothing_tells_apart_are_refused() -> None:
    config = SimpleNamespace(model="o/m", revision=None, hf_config=SimpleNamespace())
    with pytest.raises(ValueError, match="which weights"):
        manifest.model_revision(config)
