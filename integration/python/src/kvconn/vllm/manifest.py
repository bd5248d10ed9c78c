"""The namespace manifest: everything that must match for KV bytes to be reusable."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
_WINDOW_BYTES = 64 << 10
_WINDOWS = 16
# Of these RoPE types the engine picks the frequencies by max_model_len.
_LENGTH_DEPENDENT_ROPE = {"longrope", "su", "dynamic"}


def build_manifest(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, engine: str) -> bytes:
    """Return the manifest as JSON; connector/manifest.go defines the fields.

    The scheduler and every worker of an engine get the same bytes: nothing in here depends on the
    rank. `engine` is the engine's name and version.
    """
    model = vllm_config.model_config
    parallel = vllm_config.parallel_config
    spec = first_layer_spec(kv_cache_config)
    layout = kv_cache_config.kv_cache_layout or vllm_config.cache_config.kv_cache_layout
    manifest = {
        "engine": engine,
        "model": str(model.model),
        "revision": model_revision(model),
        "kv_dtype": str(spec.dtype).removeprefix("torch."),
        "block_size": spec.block_size,
        "layers": model.get_total_num_hidden_layers(),
        "kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size + (spec.head_size if spec.head_size_v is None else spec.head_size_v),
        "layout": str(layout),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "key_scheme": "tokens",
        "hash_scheme": "kvconn-1",
        "extra": _extra(vllm_config, spec),
    }
    return json.dumps(manifest, sort_keys=True).encode()


def first_layer_spec(kv_cache_config: KVCacheConfig) -> Any:
    """Return the attention spec of the first layer of the only group."""
    group = kv_cache_config.kv_cache_groups[0]
    return layer_spec(group.kv_cache_spec, group.layer_names[0])


def layer_spec(group_spec: Any, layer: str) -> Any:
    """Return a layer's own spec out of its group's."""
    per_layer = getattr(group_spec, "kv_cache_specs", None)
    return group_spec if per_layer is None else per_layer[layer]


def _extra(vllm_config: VllmConfig, spec: Any) -> dict[str, str]:
    """What else changes the bytes, without their shape showing it."""
    from vllm.platforms import current_platform

    model, cache = vllm_config.model_config, vllm_config.cache_config
    extra = {
        "spec": type(spec).__name__,
        "model_dtype": str(model.dtype).removeprefix("torch."),
        "cache_dtype": str(cache.cache_dtype),
        "attention": f"{current_platform.device_type}:{_backend_name(vllm_config)}",
    }
    if current_platform.is_cpu():
        # The kernels lay K out inside a page by instruction set.
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        extra["isa"] = _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)
        extra["arch"] = current_platform.get_cpu_architecture().name
    if getattr(model, "quantization", None):
        extra["quantization"] = str(model.quantization)
    if getattr(model, "hf_overrides", None):
        overrides = json.dumps(model.hf_overrides, sort_keys=True, default=str)
        extra["hf_overrides"] = hashlib.sha256(overrides.encode()).hexdigest()
    if _rope_type(model.hf_text_config) in _LENGTH_DEPENDENT_ROPE:
        extra["max_model_len"] = str(model.max_model_len)
    if getattr(spec, "sliding_window", None):
        extra["sliding_window"] = str(spec.sliding_window)
    return extra


def _backend_name(vllm_config: VllmConfig) -> str:
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    return "auto" if backend is None else str(getattr(backend, "name", backend))


def _rope_type(config: Any) -> str:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(rope.get("rope_type") or rope.get("type") or "") if isinstance(rope, dict) else ""


def model_revision(model_config: Any) -> str:
    """Return what tells the model's weights apart from others under the same name.

    For a local directory a fingerprint of its files; otherwise the hub's commit, else the revision
    asked for. Raises ValueError where nothing tells: a later version of the weights would be
    served the KV of an earlier one.
    """
    path = Path(str(model_config.model))
    if path.is_dir():
        return fingerprint_directory(path)
    if path.is_file():
        return f"sha256:{_fingerprint([path])}"
    commit = getattr(model_config.hf_config, "_commit_hash", None) or model_config.revision
    if not commit:
        raise ValueError(f"no telling which weights {model_config.model!r} are: pass --revision or a local directory")
    return str(commit)


def fingerprint_directory(directory: Path) -> str:
    """Return a fingerprint of a model's directory: its config, and every weight file by samples."""
    files = sorted(p for p in directory.iterdir() if p.suffix in _WEIGHT_SUFFIXES and p.is_file())
    config = directory / "config.json"
    return f"sha256:{_fingerprint(([config] if config.is_file() else []) + files)}"


def _fingerprint(files: list[Path]) -> str:
    """Hash name, size and up to 16 windows of 64 KiB of each file.

    The windows are spread evenly, the first and the last at the ends: retrained weights differ in
    most tensors, and hashing whole files would take minutes.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as f:
            last = max(0, size - _WINDOW_BYTES)
            for offset in sorted({last * i // (_WINDOWS - 1) for i in range(_WINDOWS)}):
                f.seek(offset)
                digest.update(f.read(_WINDOW_BYTES))
    return digest.hexdigest()
