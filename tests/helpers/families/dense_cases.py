"""Cases of dense families: attention and an MLP in every block."""

from __future__ import annotations

from typing import Any

from family_case import GEMMA, PARTLY_ROTARY, FamilyCase

ORIGINAL = {"rope_theta": 1e4, "original_max_position_embeddings": 16}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
OPT = {"ffn_dim": 96, "word_embed_proj_dim": 64}
OPT_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


def _scaled(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **parameters}}


CASES = (
    FamilyCase(
        "LlamaForCausalLM",
        variants={
            "tied tables and biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
            "linear scaling": _scaled("linear", factor=2.0),
            "llama3 scaling": _scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
            "yarn": _scaled("yarn", factor=4.0, **ORIGINAL),
            "yarn with mscale": _scaled("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.0, truncate=False, **ORIGINAL),
        },
    ),
    FamilyCase("MistralForCausalLM", {"sliding_window": 13}),
    FamilyCase(
        "Qwen2ForCausalLM",
        {"tie_word_embeddings": True},
        variants={"windows": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}},
    ),
    FamilyCase("Qwen3ForCausalLM"),
    FamilyCase(
        "Phi3ForCausalLM",
        {"sliding_window": 6},
        lora=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        variants={"half of each head rotary": PARTLY_ROTARY},
    ),
    FamilyCase("Gemma2ForCausalLM", GEMMA),
    FamilyCase("Gemma3ForCausalLM", {**GEMMA, "num_hidden_layers": 3, "layer_types": WINDOWS}),
    FamilyCase("Olmo2ForCausalLM"),
    FamilyCase(
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 1.5,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 4.0,
        },
    ),
    FamilyCase(
        "GPT2LMHeadModel",
        GPT2,
        lora=("c_attn", "c_proj", "c_fc"),
        lora_options={"fan_in_fan_out": True},
        variants={"scores scaled by layer": {"scale_attn_by_inverse_layer_idx": True}},
    ),
    FamilyCase(
        "OPTForCausalLM",
        OPT,
        lora=OPT_MODULES,
        variants={"norms after": {"do_layer_norm_before": False, "word_embed_proj_dim": 32}},
    ),
)
