"""Settings of the engine that change KV without its shape showing it, and those that leave no telling.

docs/adr/0010-identity.md has all of vLLM's settings, and why each is here or not;
tests/vllm_fields.py has the same for a test.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from enum import Enum
from pathlib import PurePath
from typing import Any

from kvconn.identity.files import FileId, UnknownIdentity, hash_file

_PARTS = {
    "model": (
        *("quantization", "quantization_config", "disable_sliding_window", "model_impl", "model_class_overrides"),
        *("convert", "runner_type", "is_submodel_config", "code_revision"),
    ),
    "load": ("load_format", "model_loader_extra_config"),
    "cache": ("kv_cache_dtype_skip_layers", "kv_sharing_fast_prefill", "swa_bounded_replay"),
    "attention": ("backend_per_kind", "indexer_kv_dtype", "use_non_causal", "hisparse_config"),
    "speculative": (
        *("method", "num_speculative_tokens", "quantization", "kv_cache_dtype", "parallel_drafting"),
        *("index_share_for_mtp_iteration", "use_heterogeneous_vocab"),
    ),
}
_LORA = (
    *("lora_dtype", "target_modules", "enable_tower_connector_lora"),
    *("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
)
_MULTIMODAL = (
    *("language_model_only", "mm_processor_kwargs", "media_io_kwargs", "mm_device_do_normalize"),
    *("mm_encoder_attn_backend", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path"),
    *("video_pruning_rate", "video_pruning_method", "interleave_mm_strings"),
)
# What says nothing of the model: where it was found, and by which library.
_NOT_CONFIG = {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version"}
# Of these RoPE types the engine picks the frequencies by max_model_len.
_LENGTH_DEPENDENT_ROPE = {"longrope", "su", "dynamic"}
_TUNED_FROM = 32768
"""Llama 4 tunes the temperature of attention by itself where requests may be longer than this."""
_MAX_PLAIN = 80
_MAX_SCALES_BYTES = 64 << 20
_WITHOUT_KV = {"ngram", "ngram_gpu", "suffix"}
"""Methods of speculative decoding that keep no KV of their own."""


def of(vllm_config: Any) -> dict[str, str]:
    """Return the settings as strings. Raises UnknownIdentity where one does not say what it makes of KV."""
    model = vllm_config.model_config
    found = _configuration(model, model.max_model_len)
    owners = {
        "model": model,
        "load": vllm_config.load_config,
        "cache": vllm_config.cache_config,
        "attention": getattr(vllm_config, "attention_config", None),
        "speculative": speculation(vllm_config),
    }
    for part, fields in _PARTS.items():
        found |= _set(part, owners[part], fields)
    multimodal = getattr(model, "multimodal_config", None)
    found |= _set("multimodal", multimodal, _MULTIMODAL)
    if scales := getattr(multimodal, "mm_encoder_fp8_scale_path", None):
        found["multimodal.mm_encoder_fp8_scales"] = _small_file(scales)
    if draft := draft_model(vllm_config):
        found |= {f"speculative.{k}": v for k, v in _configuration(draft, model.max_model_len).items()}
        found["speculative.dtype"] = str(draft.dtype).removeprefix("torch.")
    if additional := getattr(vllm_config, "additional_config", None):
        found["additional"] = _text(additional, "additional_config")
    return found


def of_adapters(vllm_config: Any) -> str:
    """Return the settings that change what an adapter does. Raises UnknownIdentity as `of` does."""
    return _canonical(_set("lora", getattr(vllm_config, "lora_config", None), _LORA), "lora_config")


def speculation(vllm_config: Any) -> Any | None:
    """Return the configuration of speculative decoding, if that keeps KV of its own."""
    speculative = getattr(vllm_config, "speculative_config", None)
    return None if speculative is None or str(speculative.method) in _WITHOUT_KV else speculative


def draft_model(vllm_config: Any) -> Any | None:
    """Return the configuration of the draft model whose layers are in the KV cache, if there is one."""
    return getattr(speculation(vllm_config), "draft_model_config", None)


def check(vllm_config: Any) -> None:
    """Raise UnknownIdentity where settings make KV that nothing can tell apart, or that is no function of a prefix."""
    for holds, why in _REFUSED:
        if holds(vllm_config):
            raise UnknownIdentity(why)


def _own(part: str, field: str) -> Callable[[Any], bool]:
    return lambda config: bool(getattr(getattr(config, part, None), field, None))


def _dynamic_scales(config: Any) -> bool:
    multimodal = getattr(config.model_config, "multimodal_config", None)
    fp8 = str(getattr(multimodal, "mm_encoder_attn_dtype", None)) == "fp8"
    return fp8 and not getattr(multimodal, "mm_encoder_fp8_scale_path", None)


def _nothing_tells_the_draft(config: Any) -> bool:
    return speculation(config) is not None and draft_model(config) is None


_REFUSED: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        _own("cache_config", "calculate_kv_scales"),
        "calculate_kv_scales makes the scales of each start from its first requests",
    ),
    (_own("cache_config", "quantization_param_path"), "quantization_param_path: scales must be in the checkpoint"),
    (_own("model_config", "quantization_param_path"), "quantization_param_path: scales must be in the checkpoint"),
    (
        lambda c: getattr(c, "weight_transfer_config", None) is not None,
        "weight_transfer_config exchanges weights while the engine runs",
    ),
    (lambda c: getattr(c, "diffusion_config", None) is not None, "a diffusion model's KV depends on later tokens"),
    (
        lambda c: getattr(c.model_config, "is_prefix_caching_supported", True) is False,
        "vLLM says that no prefix of this model's KV can be cached",
    ),
    (
        _own("ec_transfer_config", "is_ec_consumer"),
        "ec_transfer_config: nothing tells with which weights another engine encodes images",
    ),
    (_own("kv_transfer_config", "enable_permute_local_kv"), "enable_permute_local_kv changes the layout of blocks"),
    (_dynamic_scales, "mm_encoder_attn_dtype fp8 without mm_encoder_fp8_scale_path makes scales from the inputs"),
    (_nothing_tells_the_draft, "nothing tells what speculative decoding drafts with"),
)


def read_again(model_config: Any) -> Any:
    """Return a model's configuration as its files have it, with overrides.

    `hf_config` is changed by models that load (DeepSeek changes its RoPE type), which the scheduler's process may not
    see. What this returns is the same in all processes of an engine. Raises UnknownIdentity where files cannot be read.
    """
    overrides = model_config.hf_overrides or {}
    function = overrides if callable(overrides) else None
    values = {} if function else copy.deepcopy(overrides)
    nested = {k: v for k, v in values.items() if isinstance(v, dict)}
    # Without the commit a branch may have moved since the start.
    commit = getattr(model_config.hf_config, "_commit_hash", None)
    try:
        from vllm.transformers_utils.config import get_config

        config = get_config(
            model_config.hf_config_path or model_config.model,
            model_config.trust_remote_code,
            commit or getattr(model_config, "_hf_config_revision", None) or model_config.revision,
            model_config.code_revision,
            model_config.config_format,
            hf_overrides_kw={k: v for k, v in values.items() if k not in nested},
            hf_overrides_fn=function,
            token=model_config.hf_token,
        )
        if nested:
            model_config._apply_dict_overrides(config, nested)
    except Exception as err:
        raise UnknownIdentity(f"the model's configuration cannot be read again: {type(err).__name__}: {err}") from err
    return config


def _configuration(model_config: Any, max_model_len: int) -> dict[str, str]:
    """Return the digest of a model's configuration, and what else decides how the engine computes with it."""
    config = read_again(model_config)
    text = config.get_text_config()
    # Some are dataclasses that hold more than their fields.
    plain = _canonical(config.to_dict(), "the model's configuration")
    found = {"config": hashlib.sha256(plain.encode()).hexdigest()}
    if _rope_type(text) in _LENGTH_DEPENDENT_ROPE:
        found["max_model_len"] = str(max_model_len)
    if hasattr(text, "attn_temperature_tuning"):  # Llama 4 replaces it while it loads
        generation = model_config.try_get_generation_config() | model_config.override_generation_config
        found["attn_temperature_tuning"] = str(generation.get("attn_temperature_tuning", max_model_len > _TUNED_FROM))
    return found


def _rope_type(config: Any) -> str:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(rope.get("rope_type") or rope.get("type") or "") if isinstance(rope, dict) else ""


def _set(part: str, owner: Any, fields: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of a part that are set to something."""
    values = {f: getattr(owner, f, None) for f in fields}
    return {f"{part}.{f}": _text(v, f) for f, v in values.items() if v not in (None, False, "", {}, [], ())}


def _text(value: Any, name: str) -> str:
    plain = _plain(value, name)
    text = plain if isinstance(plain, str) else _canonical(plain, name)
    return text if len(text) <= _MAX_PLAIN else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any, name: str) -> str:
    return json.dumps(_plain(value, name), sort_keys=True, separators=(",", ":"))


def _plain(value: Any, name: str) -> Any:
    """Return a value as JSON has it, the same at every start. Raises UnknownIdentity where that cannot be."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, dict):
        return {_key(k, name): _plain(v, name) for k, v in value.items() if k not in _NOT_CONFIG}
    if isinstance(value, list | tuple):
        return [_plain(v, name) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(v, name) for v in value), key=str)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), name) for f in dataclasses.fields(value)}
    if callable(getattr(value, "to_dict", None)):
        return _plain(value.to_dict(), name)
    if type(value).__module__ == "torch":  # a dtype
        return str(value)
    raise UnknownIdentity(f"{name} holds a {type(value).__name__}, which nothing tells apart from another")


def _key(key: Any, name: str) -> str:
    return key if isinstance(key, str) else json.dumps(_plain(key, name))


def _small_file(path: str) -> str:
    try:
        file = FileId.of(path)
        if file.size > _MAX_SCALES_BYTES:
            raise UnknownIdentity(f"{path} has more than {_MAX_SCALES_BYTES >> 20} MiB")
        return hash_file(file)
    except OSError as err:
        raise UnknownIdentity(f"{path} cannot be read: {err}") from err
