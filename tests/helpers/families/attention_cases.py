"""Cases of families whose attention is of its own kind: sinks, ALiBi, chunks, layers without positions, shared keys."""

from __future__ import annotations

from family_case import ATTENTION, GATED_MLP, LLAMA, FamilyCase

FUSED = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "sliding_window": 9,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
    },
}
LLAMA4 = {
    "num_hidden_layers": 4,
    "no_rope_layer_interval": 2,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 80,
    "num_local_experts": 4,
    "attention_chunk_size": 11,
    "floor_scale": 5,
}

GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "sliding_window": 9,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 288,
    "global_head_dim": 24,
    "use_double_wide_mlp": True,
}

GEMMA3N = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "sliding_window": 9,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 260,
    "altup_num_inputs": 3,
    "laurel_rank": 6,
    "activation_sparsity_pattern": [0.6, 0.0] * 3,
}
ALTUP = ("modality_router", "prediction_coefs", "correction_coefs", "linear_left", "linear_right")

CASES = (
    FamilyCase("GptOssForCausalLM", GPT_OSS, lora=ATTENTION),
    FamilyCase(
        "Gemma4ForCausalLM",
        GEMMA4,
        lora=(*LLAMA, "per_layer_input_gate", "per_layer_projection"),
        variants={
            "one projection for keys and values, no embeddings for layers": {
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
            }
        },
    ),
    FamilyCase(
        "Gemma3nForCausalLM",
        GEMMA3N,
        lora=(*LLAMA, *ALTUP, "per_layer_input_gate", "per_layer_projection"),
        variants={"another stream": {"altup_active_idx": 1, "altup_correct_scale": False}},
    ),
    FamilyCase(
        "Llama4ForCausalLM",
        LLAMA4,
        lora=(*ATTENTION, *GATED_MLP),
        variants={"two experts, no norms": {"use_qk_norm": False, "num_experts_per_tok": 2}},
    ),
    FamilyCase(
        "SmolLM3ForCausalLM",
        {"no_rope_layer_interval": 2},
        lora=LLAMA,
        variants={"windows": {"use_sliding_window": True, "sliding_window": 7}},
    ),
    FamilyCase(
        "BloomForCausalLM",
        {"n_head": 4, "n_layer": 2, "tie_word_embeddings": False},
        lora=FUSED,
        variants={"six heads": {"hidden_size": 96, "n_head": 6}},
    ),
    FamilyCase(
        "MptForCausalLM",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"clip_qkv": 1.5}},
        lora=("Wqkv", "out_proj", "up_proj", "down_proj"),
        variants={"six heads": {"d_model": 96, "n_heads": 6, "attn_config": {"softmax_scale": 0.3}}},
    ),
    FamilyCase(
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96},
        lora=FUSED,
        attention="sdpa",  # "eager" adds ALiBi twice
        variants={
            "one head of keys": {"new_decoder_architecture": False, "multi_query": True},
            "ALiBi in sequence": {
                "new_decoder_architecture": False,
                "multi_query": False,
                "alibi": True,
                "bias": True,
                "parallel_attn": False,
                "num_kv_heads": 4,
            },
        },
    ),
)
