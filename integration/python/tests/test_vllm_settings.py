from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.vllm import settings
from kvconn.vllm.files import UnknownIdentity


class Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def vllm_config() -> Any:
    model = SimpleNamespace(hf_config=Config(rope_theta=1e4, layers=2), quantization=None, multimodal_config=None)
    return SimpleNamespace(
        model_config=model,
        load_config=SimpleNamespace(load_format="auto"),
        cache_config=SimpleNamespace(),
        lora_config=None,
        speculative_config=None,
    )


def speculate(config: Any, method: str = "eagle3", **fields: Any) -> Any:
    draft = SimpleNamespace(hf_config=Config(layers=1), dtype="torch.bfloat16", model="d")
    defaults = {"method": method, "num_speculative_tokens": 3, "draft_model_config": draft}
    config.speculative_config = SimpleNamespace(**{**defaults, **fields})
    return config


def of(change: Callable[[Any], object]) -> dict[str, str]:
    config = vllm_config()
    change(config)
    return settings.of(config)


class Backend(Enum):
    FLASH = "x"


@dataclass
class Quantization:
    bits: int


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c.model_config.hf_config, "rope_theta", 1e6),
        lambda c: setattr(c.model_config.hf_config, "rope_scaling", {"factor": 2.0, "type": "yarn"}),
        lambda c: setattr(c.model_config, "quantization", "fp8"),
        lambda c: setattr(c.model_config, "quantization_config", Quantization(4)),
        lambda c: setattr(c.model_config, "disable_sliding_window", True),
        lambda c: setattr(c.load_config, "load_format", "dummy"),
        lambda c: setattr(c.load_config, "model_loader_extra_config", {"pattern": "x"}),
        lambda c: setattr(c.cache_config, "kv_cache_dtype_skip_layers", ["0"]),
        lambda c: setattr(c, "attention_config", SimpleNamespace(backend_per_kind={"full": Backend.FLASH})),
        lambda c: setattr(c.model_config, "multimodal_config", SimpleNamespace(mm_processor_kwargs={"max_pixels": 9})),
        lambda c: setattr(c, "additional_config", {"x": 1}),
        speculate,
        lambda c: speculate(c, num_speculative_tokens=4),
        lambda c: speculate(c, method="mtp"),
        lambda c: setattr(speculate(c).speculative_config.draft_model_config.hf_config, "layers", 2),
    ],
)
def test_settings_that_change_kv_are_in_the_manifest(change: Callable[[Any], object]) -> None:
    assert of(change) != of(lambda _: None)
    assert of(change) == of(change)


def test_settings_of_adapters_are_not_of_the_model() -> None:
    config = vllm_config()
    none = settings.of_adapters(config)
    config.lora_config = SimpleNamespace(lora_dtype="torch.float16", max_loras=3)
    assert settings.of(config) == of(lambda _: None)
    assert settings.of_adapters(config) != none
    other = vllm_config()
    other.lora_config = SimpleNamespace(lora_dtype="torch.float16", max_loras=9)
    assert settings.of_adapters(other) == settings.of_adapters(config)


def test_each_setting_makes_another_namespace() -> None:
    assert len({str(of(lambda c, n=n: speculate(c, num_speculative_tokens=n))) for n in (1, 2, 3)}) == 3
    with_draft = of(lambda c: speculate(c, method="eagle"))
    assert with_draft["speculative.method"] == "eagle"
    assert with_draft["speculative.dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c.model_config.hf_config, "_commit_hash", "x"),
        lambda c: setattr(c.model_config.hf_config, "_name_or_path", "/elsewhere"),
        lambda c: setattr(c.model_config.hf_config, "transformers_version", "9"),
        lambda c: setattr(c.model_config, "hf_overrides", lambda config: config),
        lambda c: speculate(c, method="ngram"),
    ],
)
def test_what_changes_no_kv_is_not(change: Callable[[Any], object]) -> None:
    assert of(change) == of(lambda _: None)


def test_long_values_are_shortened_to_their_digest() -> None:
    found = of(lambda c: setattr(c.model_config, "quantization_config", {"layers": ["x"] * 5000}))
    assert len(found["model.quantization_config"]) == len("sha256:") + 64


def test_sets_have_one_form() -> None:
    forms = {str(of(lambda c, o=o: setattr(c.model_config.hf_config, "x", set(o)))) for o in ("abc", "cba", "bca")}
    assert len(forms) == 1


def test_what_has_no_fixed_form_is_refused() -> None:
    with pytest.raises(UnknownIdentity, match="function"):
        of(lambda c: setattr(c.model_config.hf_config, "x", lambda: None))


def test_scales_of_an_encoder_are_known_by_content(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"

    def change(config: Any) -> None:
        config.model_config.multimodal_config = SimpleNamespace(mm_encoder_fp8_scale_path=str(path))

    path.write_text("1")
    first = of(change)
    path.write_text("2")
    assert of(change) != first
    path.unlink()
    with pytest.raises(UnknownIdentity, match="cannot be read"):
        of(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.cache_config, "calculate_kv_scales", True), "calculate_kv_scales"),
        (lambda c: setattr(c.cache_config, "quantization_param_path", "s.json"), "quantization_param_path"),
        (lambda c: setattr(c.model_config, "quantization_param_path", "s.json"), "quantization_param_path"),
        (lambda c: setattr(c, "weight_transfer_config", SimpleNamespace(backend="nccl")), "weight_transfer_config"),
        (lambda c: setattr(c, "diffusion_config", SimpleNamespace()), "diffusion"),
        (lambda c: setattr(c.model_config, "is_prefix_caching_supported", False), "no prefix"),
        (lambda c: setattr(c, "ec_transfer_config", SimpleNamespace(is_ec_consumer=True)), "ec_transfer_config"),
        (lambda c: setattr(c, "kv_transfer_config", SimpleNamespace(enable_permute_local_kv=True)), "permute"),
        (
            lambda c: setattr(c.model_config, "multimodal_config", SimpleNamespace(mm_encoder_attn_dtype="fp8")),
            "mm_encoder_attn_dtype",
        ),
        (lambda c: speculate(c, method="custom_class", draft_model_config=None), "drafts with"),
    ],
)
def test_settings_that_leave_no_telling_are_refused(change: Callable[[Any], object], message: str) -> None:
    config = vllm_config()
    settings.check(config)
    refused = copy.deepcopy(config)
    change(refused)
    with pytest.raises(UnknownIdentity, match=message):
        settings.check(refused)
