from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.identity.files import Digests, UnknownIdentity
from kvconn.identity.weights import weights_of

LATER = time.time() + 1e6
"""A point in time that all files here are older than."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def config(path: object, **fields: Any) -> Any:
    defaults = {"model": str(path), "revision": None, "hf_config": SimpleNamespace(), "code_revision": None}
    return SimpleNamespace(**{**defaults, **fields})


def revision(path: object, load_format: str = "auto", since: float = LATER, **fields: Any) -> str:
    load = SimpleNamespace(load_format=load_format)
    return weights_of(config(path, **fields), load, since).revision(Digests(None))


def safetensors(tensors: dict[str, bytes]) -> bytes:
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors.values())


TENSORS = {f"layer.{i}": bytes([i]) * 300_000 for i in range(20)}


def directory(path: Path, weights: bytes = b"weights", **others: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    for name, text in others.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def test_the_revision_does_not_depend_on_the_place_or_the_time(tmp_path: Path) -> None:
    first, second = directory(tmp_path / "a"), directory(tmp_path / "b" / "c")
    os.utime(second / "model.safetensors", (1, 1))
    assert revision(first) == revision(second)


def test_defect_2_one_changed_tensor_is_another_revision(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", safetensors(TENSORS))
    seen = {revision(path)}
    for name in TENSORS:
        changed = dict(TENSORS)
        changed[name] = b"\xff" + changed[name][1:]
        directory(path, safetensors(changed))
        seen.add(revision(path))
    assert len(seen) == 1 + len(TENSORS)


def test_defect_2_one_flipped_bit_anywhere_is_another_revision(tmp_path: Path) -> None:
    rng = random.Random(2)
    weights = bytearray(rng.randbytes(3 << 20))
    path = directory(tmp_path / "m", bytes(weights))
    seen = {revision(path)}
    for _ in range(20):
        at = rng.randrange(len(weights))
        weights[at] ^= 1 << rng.randrange(8)
        (path / "model.safetensors").write_bytes(weights)
        seen.add(revision(path))
    assert len(seen) == 21


def test_a_file_that_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"a" * 100)
    before = revision(path)
    (tmp_path / "other.gguf").write_bytes(b"another model")
    assert revision(path) == before
    path.write_bytes(b"a" * 99 + b"b")
    assert revision(path) != before


@pytest.mark.parametrize("name", ["m-00002-of-00002.gguf", "mmproj-m.gguf"])
def test_a_file_that_is_a_model_has_parts(tmp_path: Path, name: str) -> None:
    first, other = tmp_path / "m-00001-of-00002.gguf", tmp_path / name
    first.write_bytes(b"a")
    other.write_bytes(b"b")
    before = revision(first)
    other.write_bytes(b"c")
    assert revision(first) != before


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "preprocessor_config.json",
        "hf_quant_config.json",
        "modeling_x.py",
        "adapter.pt",
        "sub/w.bin",
        "model.safetensors.index.json",
    ],
)
def test_every_file_that_can_change_kv_is_in_the_revision(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path / "m")
    before = revision(path)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("other")
    assert revision(path) != before


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
        "original/w.pth",
        ".git/x.json",
        "chat_template.json",
        "checkpoint-500/optimizer.pt",
    ],
)
def test_files_that_change_no_kv_of_given_tokens_are_not(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path / "m")
    before = revision(path)
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("other")
    assert revision(path) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda p: directory(p, b"others"),
        lambda p: os.utime(p / "model.safetensors", (1, 1)),
        lambda p: (p / "extra.safetensors").write_bytes(b"x"),
        lambda p: os.replace(directory(p.parent / "new") / "config.json", p / "config.json"),
    ],
)
def test_weights_that_change_while_the_engine_starts_are_refused(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = directory(tmp_path / "m")
    time.sleep(0.05)
    since = time.time() + 1.0  # the margin of clocks
    assert revision(path, since=since)
    time.sleep(0.05)
    change(path)
    with pytest.raises(UnknownIdentity, match="has changed since the engine was started"):
        revision(path, since=since)


def test_weights_that_change_while_they_are_hashed_are_refused(tmp_path: Path) -> None:
    path = directory(tmp_path / "m")
    weights = weights_of(config(path), SimpleNamespace(load_format="auto"), LATER)
    directory(path, b"others")
    with pytest.raises(UnknownIdentity, match="changing"):
        weights.revision(Digests(None))
    (path / "model.safetensors").unlink()
    with pytest.raises(UnknownIdentity, match="cannot be read"):
        weights.revision(Digests(None))


def test_a_hub_model_is_known_by_its_commit() -> None:
    assert revision("o/m", hf_config=SimpleNamespace(_commit_hash=COMMIT)) == COMMIT
    assert revision("o/m", revision="main", hf_config=SimpleNamespace(_commit_hash=COMMIT)) == COMMIT
    assert revision("o/m", revision=COMMIT) == COMMIT


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no revision"),
        ({"revision": "main"}, "'main' is no commit"),
        ({"revision": "v1.0"}, "'v1.0' is no commit"),
        ({"revision": COMMIT[:12]}, "is no commit"),
        ({"hf_config": SimpleNamespace(_commit_hash=COMMIT), "hf_config_path": "o/other"}, "no revision"),
        ({"model_weights": "s3://b/m"}, "s3://b/m"),
        (
            {
                "revision": COMMIT,
                "trust_remote_code": True,
                "hf_config": SimpleNamespace(auto_map={"AutoModel": "o/code--modeling.Model"}),
            },
            "code comes from another repository",
        ),
    ],
)
def test_weights_that_nothing_tells_apart_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownIdentity, match=message):
        revision("o/m", **fields)


@pytest.mark.parametrize(
    "load_format", ["tensorizer", "ipc_cache", "modelexpress", "npcache", "runai_streamer_sharded", "my_loader"]
)
def test_load_formats_that_do_not_say_what_they_load_are_refused(tmp_path: Path, load_format: str) -> None:
    with pytest.raises(UnknownIdentity, match=load_format):
        revision(directory(tmp_path / "m"), load_format)


def test_dummy_weights_are_not_those_of_the_files(tmp_path: Path) -> None:
    path = directory(tmp_path / "m")
    assert revision(path, "dummy") == "dummy" != revision(path)
    with pytest.raises(UnknownIdentity, match="whatever was in memory"):
        revision(path, "dummy", quantization="gptq")


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnknownIdentity, match="no weights"):
        revision(tmp_path)
