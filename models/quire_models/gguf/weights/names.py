"""Names of tensors: what llama.cpp's converter called them, and what they are called in transformers.

A name is `MODULE.weight` or `MODULE.bias`; modules of block N are `blk.N.MODULE`. Tables give the module in
transformers, with {n} for the block and {e} for the expert, of which GGUF stores one after another in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_BLOCK = re.compile(r"blk\.(?P<n>\d{1,4})\.(?P<module>[a-z0-9_]+)")


@dataclass(frozen=True)
class Family:
    """How the tensors of an architecture are named and changed.

    modules: name in transformers of each module outside of blocks. blocks: of the modules of blocks.
    permuted: rows of queries and keys are in the order of neighbouring rotary pairs, as in the original Llama.
    norms_plus_one: 1 was added to the weights of norms. transposed: modules that transformers stores as [in, out].
    """

    modules: Mapping[str, str]
    blocks: Mapping[str, str]
    permuted: bool = False
    norms_plus_one: bool = False
    transposed: frozenset[str] = field(default_factory=frozenset)

    def rename(self, name: str) -> tuple[str, str] | None:
        """The module in GGUF's terms, without the block, and the name in transformers; None for an unknown tensor."""
        module, _, suffix = name.rpartition(".")
        if suffix not in ("weight", "bias"):
            return None
        match = _BLOCK.fullmatch(module)
        if match is None:
            found = self.modules.get(module)
            return None if found is None else (module, f"{found}.{suffix}")
        found = self.blocks.get(match["module"])
        if found is None:
            return None
        return match["module"], f"{found}.{suffix}".replace("{n}", str(int(match["n"])))


IGNORED = re.compile(r"(blk\.\d+\.)?(rope_freqs|rope_factors_long|rope_factors_short|attn_rot_embd)\.weight")
"""Tables of rotary frequencies, which the config states."""

_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = "model.layers.{n}."
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
}
_MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BOTH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
}


def _in_layers(*tables: Mapping[str, str], prefix: str = _LAYER) -> dict[str, str]:
    return {theirs: prefix + ours for table in tables for theirs, ours in table.items()}


_LLAMA = _in_layers(_ATTENTION, _MLP)
_GEMMA = _in_layers(_ATTENTION, _MLP, _BOTH_NORMS)
_QWEN_MOE = _in_layers(_ATTENTION, _MLP, _EXPERTS, _SHARED_EXPERT)
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}

FAMILIES = {
    "llama": Family(_MODULES, _in_layers(_ATTENTION, _MLP, _MIXTRAL), permuted=True),
    "granite": Family(_MODULES, _LLAMA, permuted=True),
    "qwen2": Family(_MODULES, _LLAMA),
    "qwen3": Family(_MODULES, _LLAMA),
    "qwen2moe": Family(_MODULES, _QWEN_MOE),
    "qwen3moe": Family(_MODULES, _QWEN_MOE),
    "gemma": Family(_MODULES, _LLAMA, norms_plus_one=True),
    "gemma2": Family(_MODULES, _GEMMA, norms_plus_one=True),
    "gemma3": Family(_MODULES, _GEMMA, norms_plus_one=True),
    "olmo2": Family(_MODULES, _GEMMA),
    "phi3": Family(_MODULES, _in_layers(_ATTENTION, _MLP, {"ffn_up": "mlp.gate_up_proj"})),
    "gpt2": Family(
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        _in_layers(_GPT2, prefix="transformer.h.{n}."),
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
    "bert": Family(
        {
            "token_embd": "embeddings.word_embeddings",
            "position_embd": "embeddings.position_embeddings",
            "token_types": "embeddings.token_type_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
        },
        _in_layers(_BERT, prefix="encoder.layer.{n}."),
    ),
}
"""The families that can be read, by `general.architecture`."""
