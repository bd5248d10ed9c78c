"""LoRA adapters of SGLang: their content is in the namespace, and ids of later ones are unique."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.identity.files import Digests, UnknownIdentity
from kvconn.sglang.adapters import adapters_of

LATER_S = 60.0


def adapter(path: Path, weights: bytes = b"a") -> str:
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    (path / "adapter_model.safetensors").write_bytes(weights)
    return str(path)


def args(*named: tuple[str, str], **settings: Any) -> Any:
    refs = [SimpleNamespace(lora_name=name, lora_path=path) for name, path in named]
    return SimpleNamespace(lora_paths=refs, **settings)


def revision(arguments: Any) -> str:
    found = adapters_of(arguments, time.time() + LATER_S)
    assert found is not None
    return found.revision(Digests(None))


def test_content_names_paths_and_settings_tell_adapters_apart(tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "a"), adapter(tmp_path / "b", b"b")
    seen = [
        revision(args(("x", first))),
        revision(args(("y", first))),
        revision(args(("x", second))),
        revision(args(("x", first), ("y", second))),
        revision(args(("y", first), ("x", second))),
        revision(args(("x", first), lora_target_modules={"q_proj", "v_proj"})),
    ]
    assert len(set(seen)) == len(seen)
    assert revision(args(("y", second), ("x", first))) == seen[3], "their order changes nothing"
    adapter(tmp_path / "a", b"c")
    assert revision(args(("x", first))) != seen[0]


@pytest.mark.parametrize("name", ["adapter_config.json", "added_tokens.json", "adapter_model.bin"])
def test_every_file_that_sglang_reads_counts(tmp_path: Path, name: str) -> None:
    path = adapter(tmp_path / "a")
    before = revision(args(("x", path)))
    (tmp_path / "a" / name).write_text('{"other": 1}')
    assert revision(args(("x", path))) != before


def test_an_adapter_whose_files_changed_after_the_start_is_refused(tmp_path: Path) -> None:
    path = adapter(tmp_path / "a")
    with pytest.raises(UnknownIdentity, match="has changed since the engine was started"):
        adapters_of(args(("x", path)), time.time())


def test_what_nothing_tells_apart_is_refused(tmp_path: Path) -> None:
    later = time.time() + LATER_S
    (tmp_path / "empty").mkdir()
    for path in ("someone/adapter", str(tmp_path / "empty"), str(tmp_path / "missing")):
        with pytest.raises(UnknownIdentity):
            adapters_of(args(("x", path)), later)
    with pytest.raises(UnknownIdentity):
        adapters_of(SimpleNamespace(lora_paths=["x=/a"]), later)
    path = adapter(tmp_path / "a")
    with pytest.raises(UnknownIdentity, match="setting"):
        adapters_of(args(("x", path), lora_target_modules=object()), later)


def test_without_adapters_at_start_there_is_nothing_to_tell_apart() -> None:
    assert adapters_of(SimpleNamespace(), 0.0) is None
    assert adapters_of(SimpleNamespace(lora_paths=[], enable_lora=True), 0.0) is None


def test_sglang_gives_each_adapter_that_it_loads_later_an_id_of_its_own() -> None:
    """The same name and path, loaded, unloaded and loaded again through SGLang's own code."""
    pytest.importorskip("sglang.srt.lora.lora_registry")
    import asyncio

    from sglang.srt.lora.lora_registry import LoRARegistry
    from sglang.srt.managers import tokenizer_control_mixin as control
    from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput, LoadLoRAAdapterReqInput

    told: list[str] = []

    async def ranks(obj: Any) -> Any:
        told.append(obj.lora_id)
        return [SimpleNamespace(success=True, error_message="", loaded_adapters={})]

    async def load() -> None:
        registry = LoRARegistry([])
        manager = SimpleNamespace(
            auto_create_handle_loop=lambda: None,
            lora_update_lock=asyncio.Lock(),
            pending_lora_unloads={},
            lora_ref_cache={},
            lora_registry=registry,
            update_lora_adapter_communicator=ranks,
        )
        mixin = control.TokenizerControlMixin
        for _ in range(2):
            asked = LoadLoRAAdapterReqInput(lora_name="x", lora_path="/a", lora_id="chosen by a client")
            assert (await mixin.load_lora_adapter(manager, asked)).success
            await registry.unregister("x")
        for _ in range(2):
            tensors = LoadLoRAAdapterFromTensorsReqInput(
                lora_name="x", config_dict={}, serialized_named_tensors=[b""], lora_id="chosen by a client"
            )
            assert (await mixin.load_lora_adapter_from_tensors(manager, tensors)).success
            await registry.unregister("x")

    patch = pytest.MonkeyPatch()
    with patch.context() as m:
        m.setattr(control, "get_lora", lambda: SimpleNamespace(enable_lora=True, max_loaded_loras=None))
        m.setattr(control, "get_parallel", lambda: SimpleNamespace(dp_size=1))
        m.setattr(control, "normalize_serialized_named_tensor_payloads", lambda tensors: tensors)
        m.setattr(control, "_merge_lora_update_results", lambda results: results[0])
        asyncio.run(load())
    assert len(set(told)) == 4
    assert "chosen by a client" not in told


def test_sglangs_ids_of_adapters_at_start_ignore_their_content(tmp_path: Path) -> None:
    registry = pytest.importorskip("sglang.srt.lora.lora_registry")
    path = adapter(tmp_path / "a")
    before = registry.LoRARef.deterministic_id("x", path)
    adapter(tmp_path / "a", b"other")
    assert registry.LoRARef.deterministic_id("x", path) == before, "so the namespace must hold the content"
