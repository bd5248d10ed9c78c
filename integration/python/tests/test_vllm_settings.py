from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvconn.identity.files import UnknownIdentity
from kvconn.vllm import settings


class Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def get_text_config(self) -> Config:
        return self


class Model(SimpleNamespace):
    """A model whose configuration is in files: `stored`. `hf_config` is what the process has made of it."""

    def _apply_dict_overrides(self, config: Any, overrides: dict[str, Any]) -> None:
        vars(config).update(overrides)


def get_config(model: str, *args: Any, hf_overrides_kw: Any, hf_overrides_fn: Any, **kwargs: Any) -> Any:
    config = Config(**copy.deepcopy(STORED[model]))
    vars(config).update(hf_overrides_kw)
    return hf_overrides_fn(config) if hf_overrides_fn else config


STORED: dict[str, dict[str, Any]] = {}


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM read the configurations of models from STORED."""
    STORED.clear()
    monkeypatch.setitem(sys.modules, "vllm.transformers_utils.config", SimpleNamespace(get_config=get_config))


def stored(name: str, **config: Any) -> Any:
    """Return a model whose files have a configuration."""
    STORED[name] = config
    where = {"model": name, "hf_config_path": None, "revision": None, "code_revision": None, "hf_token": None}
    how = {"trust_remote_code": False, "config_format": "auto", "hf_overrides": {}, "max_model_len": 4096}
    return Model(hf_config=Config(**copy.deepcopy(config)), **where, **how)


def vllm_config() -> Any:
    model = stored("m", rope_theta=1e4, layers=2)
    vars(model).update(quantization=None, multimodal_config=None)
    return SimpleNamespace(
        model_config=model,
        load_config=SimpleNamespace(load_format="auto"),
        cache_config=SimpleNamespace(),
        lora_config=None,
        speculative_config=None,
    )


def speculate(config: Any, method: str = "eagle3", **fields: Any) -> Any:
    draft = stored("d", layers=1)
    draft.dtype = "torch.bfloat16"
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
        lambda c: STORED["m"].update(rope_theta=1e6),
        lambda c: STORED["m"].update(rope_scaling={"factor": 2.0, "type": "yarn"}),
        lambda c: setattr(c.model_config, "hf_overrides", {"rope_theta": 1e6}),
        lambda c: setattr(c.model_config, "hf_overrides", {"rope_scaling": {"factor": 2.0, "type": "yarn"}}),
        lambda c: setattr(c.model_config, "hf_overrides", lambda config: Config(**vars(config), x=1)),
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
        lambda c: (speculate(c), STORED["d"].update(layers=2)),
    ],
)
def test_settings_that_change_kv_are_in_the_manifest(change: Callable[[Any], object]) -> None:
    assert of(change) != of(lambda _: None)
    assert of(change) == of(change)


def test_what_loading_makes_of_a_configuration_is_not_in_the_manifest() -> None:
    scheduler, worker = speculate(vllm_config()), speculate(vllm_config())
    worker.model_config.hf_config.rope_parameters = {"rope_type": "deepseek_yarn"}
    worker.speculative_config.draft_model_config.hf_config.layers = 3
    assert settings.of(worker) == settings.of(scheduler)
    worker.model_config.hf_config = Config()  # some models put a part in place of the whole
    assert settings.of(worker) == settings.of(scheduler)


def test_a_configuration_is_read_again_from_where_the_start_had_it() -> None:
    asked: list[tuple[Any, ...]] = []

    def note(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return get_config("m", hf_overrides_kw={}, hf_overrides_fn=None)

    sys.modules["vllm.transformers_utils.config"].get_config = note  # type: ignore[attr-defined]
    config = vllm_config()
    vars(config.model_config).update(revision="main", code_revision="code", hf_config_path="o/config")
    settings.of(config)
    config.model_config.hf_config._commit_hash = "c" * 40
    settings.of(config)
    assert asked == [("o/config", False, revision, "code", "auto") for revision in ("main", "c" * 40)]


def test_a_configuration_that_cannot_be_read_again_is_refused() -> None:
    with pytest.raises(UnknownIdentity, match="cannot be read again: KeyError"):
        of(lambda c: setattr(c.model_config, "model", "gone"))


def test_overrides_are_not_changed_by_reading_again() -> None:
    model = vllm_config().model_config
    model.hf_overrides = {"rope_scaling": {"factor": 2.0}}
    settings.read_again(model).rope_scaling["factor"] = 4.0
    assert model.hf_overrides == {"rope_scaling": {"factor": 2.0}}


@pytest.mark.parametrize("rope", ["longrope", "su", "dynamic"])
def test_the_longest_request_counts_where_frequencies_depend_on_it(rope: str) -> None:
    def change(config: Any, longest: int) -> None:
        STORED["m"].update(rope_parameters={"rope_type": rope})
        config.model_config.max_model_len = longest

    assert of(lambda c: change(c, 4096))["max_model_len"] == "4096"
    assert of(lambda c: change(c, 8192))["max_model_len"] == "8192"
    assert "max_model_len" not in of(lambda _: None)


@pytest.mark.parametrize(
    ("longest", "generation", "override", "want"),
    [
        (4096, {}, {}, "False"),
        (100_000, {}, {}, "True"),
        (4096, {"attn_temperature_tuning": True}, {}, "True"),
        (100_000, {"attn_temperature_tuning": True}, {"attn_temperature_tuning": False}, "False"),
    ],
)
def test_what_llama_4_takes_from_elsewhere_is_in_the_manifest(
    longest: int, generation: dict[str, Any], override: dict[str, Any], want: str
) -> None:
    def change(config: Any) -> None:
        STORED["m"].update(attn_temperature_tuning=True)
        vars(config.model_config).update(
            max_model_len=longest,
            try_get_generation_config=lambda: dict(generation),
            override_generation_config=override,
        )

    assert of(change)["attn_temperature_tuning"] == want


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
        lambda c: STORED["m"].update(_commit_hash="x"),
        lambda c: STORED["m"].update(_name_or_path="/elsewhere"),
        lambda c: STORED["m"].update(transformers_version="9"),
        lambda c: setattr(c.model_config, "hf_overrides", lambda config: config),
        lambda c: setattr(c.model_config, "hf_overrides", {"rope_theta": 1e4}),
        lambda c: speculate(c, method="ngram"),
    ],
)
def test_what_changes_no_kv_is_not(change: Callable[[Any], object]) -> None:
    assert of(change) == of(lambda _: None)


def test_long_values_are_shortened_to_their_digest() -> None:
    found = of(lambda c: setattr(c.model_config, "quantization_config", {"layers": ["x"] * 5000}))
    assert len(found["model.quantization_config"]) == len("sha256:") + 64


def test_sets_have_one_form() -> None:
    forms = {str(of(lambda c, o=o: STORED["m"].update(x=set(o)))) for o in ("abc", "cba", "bca")}
    assert len(forms) == 1


def test_what_has_no_fixed_form_is_refused() -> None:
    with pytest.raises(UnknownIdentity, match="function"):
        of(lambda c: STORED["m"].update(x=lambda: None))


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


def test_vllm_reads_a_configuration_again_with_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    config = pytest.importorskip("vllm.config")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stored_config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(stored_config))
    model = stored(str(tmp_path))
    model._apply_dict_overrides = lambda *args: config.ModelConfig._apply_dict_overrides(model, *args)
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for overrides, theta, layers in (
        ({}, 5e5, 32),
        ({"num_hidden_layers": 7}, 5e5, 7),
        ({"rope_parameters": scaling}, 1e4, 32),
    ):
        model.hf_overrides = overrides
        read = settings.read_again(model)
        assert (read.rope_parameters["rope_theta"], read.num_hidden_layers) == (theta, layers)
    before = settings._configuration(model, 4096)
    (tmp_path / "config.json").write_text(json.dumps(stored_config | {"of_the_models_own_code": 1}))
    assert settings._configuration(model, 4096) != before
