"""Writes a small model with random weights and a byte-level tokenizer: a real one, made locally.

Runs in the environment that has torch: `python tiny_model.py DIRECTORY SEED KIND`. KIND is "llama",
with full attention, "gemma3", where two of three layers have sliding windows, "deepseek", with multi-head
latent attention, "qwen2_audio", which hears, "llava", which sees, "draft", a small one that proposes tokens for
the first, or "adapter", a LoRA adapter of the first. The weights are scaled so that the output depends on the
whole prompt: one token changed early changes the tokens that follow, so wrong KV shows as wrong tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, INTERMEDIATE = 512, 8, 8, 2, 64, 1536
VOCABULARY = 260
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
QK_STD, OUTPUT_STD, EMBEDDING_STD = 0.12, 0.25, 1.0
RANK = 8

HYBRID_LAYERS, WINDOW = 6, 256
# Gemma multiplies embeddings by the root of the hidden size, and normalises queries and keys.
HYBRID_EMBEDDING_STD, HYBRID_QUERY_SCALAR = HIDDEN**-0.5, 1
DRAFT_LAYERS = 1
SOUND_TOKENS = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
"""Of the model that hears, after the others: the second stands for a sound."""
MEL_BINS, SAMPLES_PER_S, HOP, SOUND_S = 32, 16_000, 160, 30
SOUND_ENCODER: dict[str, object] = {
    "d_model": 64,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "num_mel_bins": MEL_BINS,
    "max_source_positions": SOUND_S * SAMPLES_PER_S // HOP // 2,
}
IMAGE_WORD = "<image>"
IMAGE_PIXELS, PATCH_PIXELS = 56, 14
IMAGE_ENCODER: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": IMAGE_PIXELS,
    "patch_size": PATCH_PIXELS,
}
"""It makes 16 tokens of an image."""
MORE_TOKENS = {"qwen2_audio": SOUND_TOKENS, "llava": (IMAGE_WORD,)}
"""Of models that take more than text, after the others."""
# vLLM's CPU backend of multi-head latent attention has one size, that of DeepSeek V2.
LATENT, ROTATED, UNROTATED = 512, 64, 128
LAYERS_OF = {
    "llama": LAYERS,
    "gemma3": HYBRID_LAYERS,
    "deepseek": LAYERS,
    "qwen2_audio": LAYERS,
    "llava": LAYERS,
    "draft": DRAFT_LAYERS,
}


def weights(seed: int, kind: str) -> dict[str, torch.Tensor]:
    """Return the model's tensors: normal, of standard deviation fan_in ** -0.5 unless said otherwise."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float | None = None) -> torch.Tensor:
        scale = columns**-0.5 if std is None else std
        return torch.randn(rows, columns, generator=generator) * scale

    hybrid = kind == "gemma3"
    unit = torch.zeros if hybrid else torch.ones  # Gemma's norms add 1
    vocabulary = VOCABULARY + len(MORE_TOKENS.get(kind, ()))
    tensors = {
        "model.embed_tokens.weight": normal(vocabulary, HIDDEN, HYBRID_EMBEDDING_STD if hybrid else EMBEDDING_STD),
        "lm_head.weight": normal(vocabulary, HIDDEN, EMBEDDING_STD),
        "model.norm.weight": unit(HIDDEN),
    }
    for i in range(LAYERS_OF[kind]):
        layer = f"model.layers.{i}"
        if kind == "deepseek":
            tensors |= {
                f"{layer}.self_attn.q_proj.weight": normal(HEADS * (UNROTATED + ROTATED), HIDDEN, QK_STD),
                f"{layer}.self_attn.kv_a_proj_with_mqa.weight": normal(LATENT + ROTATED, HIDDEN),
                f"{layer}.self_attn.kv_a_layernorm.weight": torch.ones(LATENT),
                f"{layer}.self_attn.kv_b_proj.weight": normal(HEADS * 2 * UNROTATED, LATENT),
                f"{layer}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * UNROTATED, OUTPUT_STD),
            }
        else:
            tensors |= {
                f"{layer}.self_attn.q_proj.weight": normal(HEADS * HEAD_SIZE, HIDDEN, QK_STD),
                f"{layer}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN, QK_STD),
                f"{layer}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN),
                f"{layer}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_SIZE, OUTPUT_STD),
            }
        tensors |= {
            f"{layer}.mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE),
            f"{layer}.input_layernorm.weight": unit(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": unit(HIDDEN),
        }
        if hybrid:
            tensors |= {
                f"{layer}.self_attn.q_norm.weight": unit(HEAD_SIZE),
                f"{layer}.self_attn.k_norm.weight": unit(HEAD_SIZE),
                f"{layer}.pre_feedforward_layernorm.weight": unit(HIDDEN),
                f"{layer}.post_feedforward_layernorm.weight": unit(HIDDEN),
            }
    return tensors


def config(kind: str) -> dict[str, object]:
    """Return the model's config.json."""
    common: dict[str, object] = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "torch_dtype": "float32",
    }
    if kind == "gemma3":
        layers = ["sliding_attention", "sliding_attention", "full_attention"] * (HYBRID_LAYERS // 3)
        return common | {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "num_hidden_layers": HYBRID_LAYERS,
            "layer_types": layers,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": HYBRID_QUERY_SCALAR,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        }
    common |= {"num_hidden_layers": LAYERS_OF[kind], "rope_theta": 10000.0, "hidden_act": "silu"}
    if kind == "deepseek":
        del common["head_dim"]
        return common | {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_key_value_heads": HEADS,
            "kv_lora_rank": LATENT,
            "q_lora_rank": None,
            "qk_rope_head_dim": ROTATED,
            "qk_nope_head_dim": UNROTATED,
            "v_head_dim": UNROTATED,
            "first_k_dense_replace": LAYERS,  # no experts
            # With unscaled positions vLLM's CPU build rotates rows of other tokens (0.32).
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 40.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
            },
        }
    if kind == "qwen2_audio":
        return {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "model_type": "qwen2_audio",
            "text_config": common | {"model_type": "qwen2", "vocab_size": VOCABULARY + len(SOUND_TOKENS)},
            "audio_config": SOUND_ENCODER | {"model_type": "qwen2_audio_encoder"},
            "audio_token_index": VOCABULARY + 1,
            "torch_dtype": "float32",
        }
    if kind == "llava":
        return {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "text_config": common | {"model_type": "llama", "vocab_size": VOCABULARY + 1},
            "vision_config": IMAGE_ENCODER | {"model_type": "clip_vision_model"},
            "vision_feature_layer": -1,
            "image_token_index": VOCABULARY,
            "torch_dtype": "float32",
        }
    return common | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def hearing(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return a model that hears, given what it does with embeddings."""
    from transformers import Qwen2AudioEncoder, Qwen2AudioEncoderConfig

    biases: dict[str, torch.Tensor] = {}
    for i in range(LAYERS):
        for projection, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
            bias = f"language_model.model.layers.{i}.self_attn.{projection}.bias"
            biases[bias] = torch.zeros(heads * HEAD_SIZE)
    width = SOUND_ENCODER["d_model"]
    linear = "multi_modal_projector.linear"
    shapes = {f"{linear}.weight": torch.empty(HIDDEN, width), f"{linear}.bias": torch.empty(HIDDEN)}
    encoder = Qwen2AudioEncoder(Qwen2AudioEncoderConfig(**SOUND_ENCODER)).state_dict()
    shapes |= {f"audio_tower.{name}": t for name, t in encoder.items()}
    return of_language(tensors) | biases | random_weights(shapes, seed)


def seeing(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return a model that sees, given what it does with embeddings."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    shapes: dict[str, torch.Tensor] = {}
    for i, width in ((1, IMAGE_ENCODER["hidden_size"]), (2, HIDDEN)):
        linear = f"multi_modal_projector.linear_{i}"
        shapes |= {f"{linear}.weight": torch.empty(HIDDEN, width), f"{linear}.bias": torch.empty(HIDDEN)}
    encoder = CLIPVisionModel(CLIPVisionConfig(**IMAGE_ENCODER)).state_dict()
    inner = "vision_model."
    shapes |= {f"vision_tower.{inner}{name.removeprefix(inner)}": t for name, t in encoder.items()}
    return of_language(tensors) | random_weights(shapes, seed)


def of_language(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a model of text under the names that they have in one that takes more."""
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


def random_weights(shapes: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return weights of these shapes; norms and biases do nothing."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in shapes.items():
        if tensor.dim() > 1:
            weights[name] = torch.randn(tensor.shape, generator=generator) * tensor[0].numel() ** -0.5
        elif name.endswith("class_embedding"):
            weights[name] = torch.randn(tensor.shape, generator=generator)
        else:
            norm = "norm" in name and name.endswith("weight")
            weights[name] = torch.ones(tensor.shape) if norm else torch.zeros(tensor.shape)
    return weights


def write_ears(directory: Path) -> None:
    """Write what turns sound into features."""
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen2AudioProcessor",
        "feature_size": MEL_BINS,
        "sampling_rate": SAMPLES_PER_S,
        "hop_length": HOP,
        "chunk_length": SOUND_S,
        "n_fft": 400,
        "n_samples": SOUND_S * SAMPLES_PER_S,
        "nb_max_frames": SOUND_S * SAMPLES_PER_S // HOP,
        "padding_side": "right",
        "return_attention_mask": True,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(extractor, indent=2))


def write_eyes(directory: Path) -> None:
    """Write what turns an image into pixels of the encoder's, and its place in a prompt into tokens."""
    square = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
    pixels = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": IMAGE_PIXELS},
        "do_center_crop": True,
        "crop_size": square,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(pixels, indent=2))
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": PATCH_PIXELS,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_token": IMAGE_WORD,
    }
    (directory / "processor_config.json").write_text(json.dumps(processor, indent=2))


def tokenizer(*more: str) -> Tokenizer:
    """Return a tokenizer whose tokens are the 256 bytes, between the special ones and more of these."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    tok = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[0]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([*SPECIAL, *more])
    return tok


def write(directory: Path, seed: int, kind: str) -> None:
    """Write the model's files."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors, more = weights(seed, kind), MORE_TOKENS.get(kind, ())
    if kind == "qwen2_audio":
        tensors = hearing(tensors, seed)
        write_ears(directory)
    elif kind == "llava":
        tensors = seeing(tensors, seed)
        write_eyes(directory)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config(kind), indent=2))
    tokenizer(*more).save(str(directory / "tokenizer.json"))
    special = {
        "unk_token": SPECIAL[0],
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[3],
    }
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, **special}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))


def write_adapter(directory: Path, seed: int) -> None:
    """Write a LoRA adapter of the "llama" model: of its keys and values, and strong, so that it changes the output."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for i in range(LAYERS):
        for projection in ("k_proj", "v_proj"):
            name = f"base_model.model.model.layers.{i}.self_attn.{projection}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator) * HIDDEN**-0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(KV_HEADS * HEAD_SIZE, RANK, generator=generator) * 0.3
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    adapter = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["k_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    if sys.argv[3] == "adapter":
        write_adapter(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        write(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
