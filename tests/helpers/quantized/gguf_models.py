"""Writes transformers models as GGUF files with the package `gguf`, as llama.cpp's converter writes them.

Names come from the package. What the converter changes is done here: the order of rows of queries and keys, norms plus
one, experts stacked, matrices transposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import Tensor

PERMUTED, PLUS_ONE = ("llama", "granite"), ("gemma2", "gemma3")
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]
"""A vocabulary of 264 tokens; models of other sizes get more or fewer."""
_MERGED = re.compile(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.")
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(.*)")

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
    "GPT2LMHeadModel": "gpt2",
    "BertModel": "bert",
}
"""`general.architecture` by class in transformers."""
MODEL_ARCHES = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}

Chosen = Callable[[str], Type]
"""A function from the GGUF name of a matrix to the type that it is stored in."""


def all_f32(name: str) -> Type:
    return Type.F32


def write_model(
    model: Any,
    path: Path,
    chosen: Chosen = all_f32,
    extra: Mapping[str, Tensor] | None = None,
    **metadata: Any,
) -> None:
    """Write `model` to `path`. metadata: values of further or other keys, with `__` for dots.

    chosen: for matrices, whose rows the type's blocks must divide; vectors are F32. extra: further tensors.
    """
    architecture = ARCHITECTURES[type(model).__name__]
    writer = gguf.GGUFWriter(str(path), architecture)
    given = {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in {**_metadata(architecture, model.config), **given}.items():
        _put(writer, key, value)
    write_tokens(writer, model.config.vocab_size)
    for name, tensor in {**converted(architecture, model), **(extra or {})}.items():
        data = tensor.float().contiguous().numpy()
        kind = chosen(name) if data.ndim > 1 else Type.F32
        packed = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _put(writer: Any, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(key, value)


def write_tokens(writer: Any, count: int, tokens: list[str] = TOKENS) -> None:
    """A vocabulary of `count` tokens like SentencePiece's."""
    texts = (tokens + [f"word{index}" for index in range(max(0, count - len(tokens)))])[:count]
    kinds = [2, 3, 3, *([6] * 256)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([-float(index) for index in range(count)])
    writer.add_token_types((kinds + [1] * max(0, count - len(kinds)))[:count])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def converted(architecture: str, model: Any) -> dict[str, Tensor]:
    """The tensors of `model` in GGUF's names and layouts."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(Path(folder) / "model.safetensors")
    experts: dict[str, dict[int, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        match = _EXPERT.fullmatch(name)
        if match is not None:
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            tensors[name] = tensor
    for name, found in experts.items():
        tensors[name] = torch.stack([found[index] for index in range(len(found))])
    known = gguf.get_tensor_name_map(MODEL_ARCHES[architecture], model.config.num_hidden_layers)
    made = {}
    for name, tensor in tensors.items():
        if "pooler" in name:
            continue
        merged = _MERGED.sub(r"layers.\1.feed_forward.experts.", name)
        theirs = known.get_name(merged, (".weight", ".bias"))
        assert theirs is not None, name
        made[theirs] = _changed(architecture, theirs, tensor, model.config)
    return made


def _changed(architecture: str, name: str, tensor: Tensor, config: Any) -> Tensor:
    if architecture in PERMUTED and ("attn_q." in name or "attn_k." in name):
        heads = config.num_attention_heads if "attn_q." in name else config.num_key_value_heads
        halves = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    if architecture in PLUS_ONE and name.endswith("norm.weight"):
        return tensor + 1
    if architecture == "gpt2" and tensor.ndim == 2 and name.startswith("blk."):
        return tensor.T
    return tensor


def _metadata(architecture: str, config: Any) -> dict[str, Any]:
    """The keys that the converter writes."""
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    values: Mapping[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_eps", None)
        or getattr(config, "layer_norm_epsilon", None),
        "rope.freq_base": full.get("rope_theta"),
        "attention.key_length": getattr(config, "head_dim", None),
        "expert_count": getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "attention.scale": getattr(config, "attention_multiplier", None),
        "embedding_scale": getattr(config, "embedding_multiplier", None),
        "residual_scale": getattr(config, "residual_multiplier", None),
        "logit_scale": getattr(config, "logits_scaling", None),
    }
    if architecture == "gpt2":
        values = {**values, "feed_forward_length": 4 * config.hidden_size}
    if architecture in ("gemma2", "gemma3", "phi3"):
        values = {**values, "attention.sliding_window": config.sliding_window or 0}
    if architecture == "bert":
        values = {**values, "attention.causal": False, "pooling_type": 1}
    return {f"{architecture}.{key}": value for key, value in values.items() if value is not None}


def random_blocks(kind: Type, rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random bytes [rows, bytes] of a type, with scales that are ordinary numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // elements, size), np.uint8)
    for start in SCALES_AT[kind.name]:
        numbers = generator.uniform(0.001, 0.02, len(blocks)).astype(np.float16)
        blocks[:, start : start + 2] = numbers.view(np.uint8).reshape(-1, 2)
    if kind == Type.MXFP4:
        blocks[:, 0] = generator.integers(118, 126, len(blocks))
    return blocks.reshape(rows, -1)


SCALES_AT = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
"""Bytes of a block at which numbers of 16 bits begin."""
