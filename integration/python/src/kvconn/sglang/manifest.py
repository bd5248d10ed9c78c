"""The namespace manifest of an SGLang engine: everything that must match for its pages to be used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvconn.sglang.pools import Pool
from kvconn.vllm.files import UnknownIdentity
from kvconn.vllm.weights import Weights, weights_of

_MAMBA = "mamba"
"""SGLang's name of the pool of states, which each tensor-parallel rank has its own part of in any model."""
_WINDOW_PAGES = {_MAMBA: 1}
"""Pools whose last pages alone are needed to go on, and how many. SGLang does not say how long other windows are."""
_UNKNOWN_WINDOWS = ("swa", "auxiliary_swa", "draft_swa")
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
    *("enable_tf32_matmul", "disable_shared_experts_fusion", "enable_mis", "kt_weight_path", "kt_method"),
)
"""Settings of the engine that change KV or may. Where and by how many it is computed is no such setting."""
_REFUSED = {
    "enable_lora": "adapters are not told apart by their content yet",
    "lora_paths": "adapters are not told apart by their content yet",
    "quantization_param_path": "scales in a file are not told apart yet",
    "custom_weight_loader": "weights of a custom loader cannot be told apart",
    "decrypted_config_file": "a configuration of its own cannot be told apart",
    "decrypted_draft_config_file": "a configuration of its own cannot be told apart",
}


def describe(engine: str, args: Any, storage: Any, pools: Sequence[Pool]) -> dict[str, Any]:
    """Return the manifest without the weights; connector/manifest.go defines the fields.

    Every rank of an engine gets the same. `args` are SGLang's ServerArgs, `storage` its configuration of the
    backend. Raises UnknownIdentity where nothing would tell the KV of this engine from others',
    or where it is of a kind that is not supported.
    """
    for name, why in _REFUSED.items():
        if getattr(args, name, None):
            raise UnknownIdentity(f"{name} is set, and {why}")
    if windows := sorted({pool.name for pool in pools} & set(_UNKNOWN_WINDOWS)):
        raise UnknownIdentity(f"pools with sliding windows ({', '.join(windows)}) are not supported yet")
    anchor = pools[0].host
    return {
        "engine": engine,
        "model": str(args.model_path),
        "kv_dtype": _dtype(anchor.dtype),
        "block_size": int(anchor.page_size),
        "groups": [_group(pool, storage, int(anchor.page_size)) for pool in pools],
        "tensor_parallel": int(storage.tp_size),
        "pipeline_parallel": int(storage.pp_size),
        "key_scheme": "engine",
        "hash_scheme": "kvconn-1",
        "extra": _extra(args, pools),
    }


def window_pages(name: str) -> int:
    """Return how many of a prompt's last pages of a pool are needed to go on, 0 for all."""
    return _WINDOW_PAGES.get(name, 0)


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


def draft_weights(args: Any, loading_since: float) -> Weights | None:
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


def _group(pool: Pool, storage: Any, page_tokens: int) -> dict[str, Any]:
    host = pool.host
    return {
        "layers": int(getattr(host, "layer_num", 0) or getattr(host, "num_mamba_layers", 1)),
        "kv_heads": int(getattr(host, "head_num", 1)),
        "head_size": int(getattr(host, "head_dim", 0)) + int(getattr(host, "v_head_dim", 0)),
        "layout": "/".join([pool.name, type(host).__name__, str(host.layout), pool.shape]),
        "window": window_pages(pool.name) * page_tokens,
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
