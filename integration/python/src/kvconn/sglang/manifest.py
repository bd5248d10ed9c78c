"""The namespace manifest of an SGLang engine: everything that must match for its pages to be used again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kvconn.identity.background import DRAFT, Source
from kvconn.identity.files import UnknownIdentity
from kvconn.identity.weights import Weights, weights_of
from kvconn.sglang.adapters import adapters_of
from kvconn.sglang.pools import Pool

_MAMBA = "mamba"
"""SGLang's name of the pool of states, which each tensor-parallel rank has its own part of in any model."""
_WINDOWED = (
    *("swa", "draft_swa"),
    *("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state", "deepseek_v4_c128_state"),
)
"""Pools whose pages before the model's window are not needed to go on."""
_UNKNOWN_WINDOWS = ("auxiliary_swa",)
_SETTINGS = (
    *("dtype", "kv_cache_dtype", "quantization", "qsa_indexer_dtype", "model_impl", "is_embedding"),
    *("json_model_override_args", "model_loader_extra_config", "load_format", "modelopt_quant", "rl_quant_profile"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "prefill_kv_cache_dequant_dtype"),
    *("dsa_prefill_backend", "dsa_decode_backend", "dsv4_attn_backend", "device", "mm_attention_backend"),
    *("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay", "language_model_only"),
    *("enable_deepseek_v4_fp4_indexer", "mamba_ssm_dtype", "enable_int8_mamba_checkpoint", "mamba_track_interval"),
    *("enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds", "enable_linear_replayssm"),
    *("enable_precise_embedding_interpolation", "image_processor_backend", "disable_fast_image_processor"),
    *("mm_process_config", "speculative_algorithm", "speculative_draft_kv_cache_dtype", "enable_multi_layer_eagle"),
    *("speculative_draft_model_quantization", "speculative_token_map", "dllm_algorithm", "dllm_algorithm_config"),
    *("flashinfer_mxfp4_moe_precision", "enable_w4a4_mxfp4_megamoe", "deepep_dispatcher_output_dtype"),
    *("enable_quant_communications", "rl_on_policy_target", "enable_deterministic_inference", "c128_page_size"),
    *("enable_tf32_matmul", "disable_shared_experts_fusion", "enable_mis", "kt_weight_path", "kt_method"),
)
"""Settings of the engine that change KV or may. Where and by how many it is computed is no such setting."""
_VARIABLES = ("SGLANG_AITER_KV_CACHE_LAYOUT",)
"""Variables of the environment that change KV."""
_MODEL_PACKAGE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
_REFUSED = {
    "uno_lora_path": "the adapter of a draft is not told apart by its content",
    "quantization_param_path": "scales in a file are not told apart yet",
    "custom_weight_loader": "weights of a custom loader cannot be told apart",
    "decrypted_config_file": "a configuration of its own cannot be told apart",
    "decrypted_draft_config_file": "a configuration of its own cannot be told apart",
    "weight_cache_mode": "weights that another process keeps need not be those of the files",
    "modelopt_checkpoint_restore_path": "a checkpoint beside the model is not told apart by its content",
    "quantize_and_serve": "weights that are quantized at each start cannot be told apart",
    "forward_hooks": "what hooks do cannot be told apart",
}


def describe(engine: str, args: Any, storage: Any, pools: Sequence[Pool], windows: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest without the weights; connector/manifest.go defines the fields.

    Every rank of an engine gets the same. `args` are SGLang's ServerArgs, `storage` its configuration of the
    backend, `windows` those of `windows`. Raises UnknownIdentity where nothing would tell the KV of this engine
    from others', or where it is of a kind that is not supported.
    """
    for name, why in _REFUSED.items():
        if getattr(args, name, None) not in (None, False, "", "off", [], {}):
            raise UnknownIdentity(f"{name} is set, and {why}")
    if os.environ.get(_MODEL_PACKAGE):
        raise UnknownIdentity(f"{_MODEL_PACKAGE} is set, and what its code computes cannot be told apart")
    if storage.is_mla_model and int(storage.tp_size) > 1:
        _check_heads(pools)
    anchor = pools[0].host
    return {
        "engine": engine,
        "model": str(args.model_path),
        "kv_dtype": _dtype(anchor.dtype),
        "block_size": int(anchor.page_size),
        "groups": [_group(p, storage, windows.get(p.name, 0) * int(anchor.page_size)) for p in pools],
        "tensor_parallel": int(storage.tp_size),
        "pipeline_parallel": int(storage.pp_size),
        "key_scheme": "engine",
        "hash_scheme": "kvconn-1",
        "extra": _extra(args, pools),
    }


def _check_heads(pools: Sequence[Pool]) -> None:
    """Refuse pools with heads, which differ by rank: SGLang saves what the first rank has alone."""
    if heads := [p.name for p in pools if getattr(p.host, "head_num", None) and p.name != _MAMBA]:
        raise UnknownIdentity(f"of pools with heads ({', '.join(heads)}) SGLang saves those of the first rank alone")


def windows(pools: Sequence[Pool], model_config: Callable[[], Any]) -> dict[str, int]:
    """Return how many of a prompt's last pages are needed to go on, of each pool that has a window.

    SGLang does not say so before it asks, and then in whole pages. `model_config` gives the engine's model
    configuration. Raises UnknownIdentity where that does not tell.
    """
    names = [pool.name for pool in pools]
    if unknown := sorted(set(names) & set(_UNKNOWN_WINDOWS)):
        raise UnknownIdentity(f"pools with sliding windows ({', '.join(unknown)}) are not supported yet")
    found = {name: 1 for name in names if name == _MAMBA}
    if windowed := [name for name in names if name in _WINDOWED]:
        found |= dict.fromkeys(windowed, _window_pages(model_config(), int(pools[0].host.page_size)))
    return found


def _window_pages(config: Any, page_tokens: int) -> int:
    """Return the pages of the model's window, as SGLang's load_model_utils.resolve_sliding_window_size finds it."""
    tokens = getattr(config, "sliding_window_size", None) if getattr(config, "is_hybrid_swa", False) else None
    tokens = tokens or getattr(config, "attention_chunk_size", None)
    if not isinstance(tokens, int) or tokens < 1:
        raise UnknownIdentity("the model's configuration does not say how long its sliding window is")
    # Some models count the token itself, and others do not.
    pages = -(-tokens // page_tokens)
    if pages != max(1, -(-(tokens - 1) // page_tokens)):
        raise UnknownIdentity(
            f"a window of {tokens} tokens may be {pages - 1} pages of {page_tokens} tokens, or {pages}"
        )
    return pages


def check(storage: Any) -> None:
    """Raise ValueError where ranks share prompts in a way that is not supported."""
    for name in ("pp_size", "attn_cp_size", "dcp_size"):
        if int(getattr(storage, name, 1) or 1) > 1:
            raise ValueError(f"kvconn: {name} above 1 is not supported yet")
    if getattr(storage, "should_split_heads", False):
        raise ValueError("kvconn: tp_lcm_size, which stores heads apart, is not supported: leave it out")


def weights(args: Any, loading_since: float) -> Weights:
    """Return where the model's weights come from. Raises UnknownIdentity where nothing tells."""
    model = SimpleNamespace(
        model=args.model_path,
        revision=args.revision,
        quantization=args.quantization,
        trust_remote_code=args.trust_remote_code,
        code_revision=None,
        hf_config=SimpleNamespace(auto_map=_auto_map(args.model_path) if args.trust_remote_code else None),
    )
    return weights_of(model, SimpleNamespace(load_format=args.load_format), loading_since)


def others(args: Any, loading_since: float) -> dict[str, Source]:
    """Return where the weights of a draft model and of adapters come from, by their fields of the manifest."""
    found: dict[str, Source] = {}
    if (draft := _draft_weights(args, loading_since)) is not None:
        found[DRAFT] = draft
    if (adapters := adapters_of(args, loading_since)) is not None:
        found["lora.adapters"] = adapters
    return found


def _draft_weights(args: Any, loading_since: float) -> Weights | None:
    """Return where the weights of a draft model come from, None where there is no other model."""
    path = getattr(args, "speculative_draft_model_path", None)
    if not path or path == args.model_path:
        return None
    draft = SimpleNamespace(
        model_path=path,
        revision=getattr(args, "speculative_draft_model_revision", None),
        quantization=getattr(args, "speculative_draft_model_quantization", None),
        trust_remote_code=args.trust_remote_code,
        load_format=getattr(args, "speculative_draft_load_format", None) or args.load_format,
    )
    return weights(draft, loading_since)


def _group(pool: Pool, storage: Any, window: int) -> dict[str, Any]:
    host = pool.host
    return {
        "layers": int(getattr(host, "layer_num", 0) or getattr(host, "num_mamba_layers", 1)),
        "kv_heads": int(getattr(host, "head_num", 1)),
        "head_size": int(getattr(host, "head_dim", 0)) + int(getattr(host, "v_head_dim", 0)),
        "layout": "/".join([pool.name, type(host).__name__, str(host.layout), pool.shape]),
        "window": window,
        "replicated": bool(storage.is_mla_model) and pool.name != _MAMBA,
    }


def _extra(args: Any, pools: Sequence[Pool]) -> dict[str, str]:
    extra = {
        "pool_dtypes": ",".join(_dtype(getattr(p.host, "dtype", "")) for p in pools),
        "pool_formats": ",".join(str(getattr(p.host, "storage_format_tag", None) or "") for p in pools),
    }
    for name in _SETTINGS:
        value = getattr(args, name, None)
        if value not in (None, False, "", {}, [], ()):
            extra[f"args.{name}"] = _text(name, value)
    extra |= {f"env.{name}": _text(name, os.environ[name]) for name in _VARIABLES if os.environ.get(name)}
    return extra


def _text(name: str, value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    except TypeError as err:
        raise UnknownIdentity(f"{name} holds a {type(value).__name__}, which nothing tells apart from another") from err
    return text if len(text) <= 80 else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _auto_map(path: str) -> Any:
    """Return where a model's own code is, by its configuration."""
    try:
        with open(f"{path}/config.json", encoding="utf-8") as config:
            return json.load(config).get("auto_map")
    except (OSError, ValueError) as err:
        raise UnknownIdentity(f"--trust-remote-code: no telling whose code {path} runs: {err}") from err
