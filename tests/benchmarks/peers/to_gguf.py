"""Converts a folder of a Llama or Qwen2 model in bfloat16 to a GGUF file in bfloat16, for llama-quantize.

    python tests/benchmarks/peers/to_gguf.py MODEL OUT.gguf

The tokenizer is the folder's BPE; ids that it does not use become unused tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf.quants import quantize
from safetensors.torch import load_file

BF16 = gguf.GGMLQuantizationType.BF16
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(
            config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        )
        writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer(writer: gguf.GGUFWriter, config: dict[str, Any], bpe: dict[str, Any], pre: str) -> None:
    tokens = {number: token for token, number in bpe["vocab"].items()}
    kinds, numbers = gguf.TokenType, range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(number, f"<|unused_{number}|>") for number in numbers])
    unused = [kinds.NORMAL if number in tokens else kinds.UNUSED for number in numbers[4:]]
    writer.add_token_types([kinds.CONTROL] * 4 + unused)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    if config["bos_token_id"] is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys [heads · dim, …] whose rotary pairs are neighbors, as GGUF's Llama has them."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def add_tensors(writer: gguf.GGUFWriter, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, source in OUTSIDE.items():
        if source in tensors:
            add_tensor(writer, name, tensors[source])
    for block in range(config["num_hidden_layers"]):
        for name, source in BLOCK.items():
            for part in ("weight", "bias"):
                tensor = tensors.get(f"model.layers.{block}.{source}.{part}")
                if tensor is not None:
                    if config["model_type"] == "llama" and name in heads:
                        tensor = interleaved(tensor, heads[name])
                    add_tensor(writer, f"blk.{block}.{name}.{part}", tensor)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    array = tensor.float().contiguous().numpy()
    if tensor.ndim == 2:
        writer.add_tensor(name, quantize(array, BF16), raw_dtype=BF16)
    else:
        writer.add_tensor(name, array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pre", default="gpt-2", help="llama.cpp's name of the pre-tokenizer (default: gpt-2)")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    if config["model_type"] not in ("llama", "qwen2"):
        parser.error(f"a model of type llama or qwen2, not {config['model_type']}")
    writer = gguf.GGUFWriter(args.out, config["model_type"])
    writer.add_name(args.model.name)
    add_config(writer, config)
    add_tokenizer(writer, config, json.loads((args.model / "tokenizer.json").read_text())["model"], args.pre)
    add_tensors(writer, config, load_file(args.model / "model.safetensors"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
