"""Cases of hybrids: families with a recurrent state beside attention, or without attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from family_case import ATTENTION, GATED_MLP, FamilyCase

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STACKED = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
BOTH = {"layer_types": ["linear_attention", "full_attention"]}

OFTEN = {"state_checkpoint_interval": 1, "num_state_checkpoints": 200}
"""Settings of an engine that can use any cached page of a short prompt."""


def hybrid(architecture: str, config: Mapping[str, Any], lora: tuple[str, ...], **options: Any) -> FamilyCase:
    return FamilyCase(architecture, config, lora, settings=OFTEN, **options)


CASES: tuple[FamilyCase, ...] = (
    hybrid(
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
        lora=("in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "w1", "w2", "w3"),
        variants={"biases": {"conv_bias": True}},
    ),
    hybrid(
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
        lora=("in_proj",),
        variants={"biases, limits": {"use_bias": True, "time_step_limit": (0.2, 0.9)}},
    ),
    hybrid(
        "BambaForCausalLM",
        {**MAMBA2, "attn_layer_indices": [1]},
        lora=("in_proj", "out_proj", *ATTENTION, *GATED_MLP),
        variants={"biases": {"mamba_proj_bias": True, "attention_bias": True}},
    ),
    hybrid(
        "GraniteMoeHybridForCausalLM",
        {
            **MAMBA2,
            **BOTH,
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "embedding_multiplier": 1.5,
        },
        lora=("in_proj", "out_proj", *ATTENTION, "input_linear", "output_linear"),
        variants={
            "experts": {"num_local_experts": 4, "num_experts_per_tok": 2},
            "rotary embeddings": {"position_embedding_type": "rope"},
        },
    ),
    hybrid(
        "FalconH1ForCausalLM",
        {
            **MAMBA2,
            "mamba_d_ssm": 128,
            "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
            "mlp_multipliers": [0.9, 1.1],
            "key_multiplier": 0.8,
            "ssm_in_multiplier": 1.1,
            "ssm_out_multiplier": 0.9,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8,
            "lm_head_multiplier": 0.5,
            "embedding_multiplier": 1.3,
        },
        lora=("in_proj", *ATTENTION, *GATED_MLP),
        variants={
            "norm after the gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
            "norm before the gate": {"mamba_rms_norm": True},
        },
    ),
    hybrid(
        "NemotronHForCausalLM",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "chunk_size": 8,
        },
        lora=("in_proj", *ATTENTION, "up_proj", "down_proj"),
        variants={
            "experts": {
                "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
                "n_routed_experts": 4,
                "moe_intermediate_size": 32,
                "moe_shared_expert_intermediate_size": 48,
                "routed_scaling_factor": 1.5,
            }
        },
    ),
    hybrid(
        "OlmoHybridForCausalLM",  # transformers writes its three convolutions right only if they have equal widths
        {**DELTA, **BOTH, "linear_num_value_heads": 2, "rope_parameters": None},
        lora=("a_proj", "b_proj", "g_proj", *ATTENTION, *GATED_MLP),
        variants={"positions": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}},
    ),
    hybrid(
        "MambaForCausalLM",
        {"state_size": 8, "time_step_rank": 6},
        lora=(
            "in_proj",
            "x_proj",
        ),
        variants={"biases": {"use_bias": True}},
    ),
    hybrid(
        "FalconMambaForCausalLM",
        {"state_size": 8, "time_step_rank": 6},
        lora=(
            "in_proj",
            "x_proj",
        ),
    ),
    hybrid(
        "JambaForCausalLM",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 6,
        },
        lora=("in_proj", "x_proj", *ATTENTION, *GATED_MLP),
        variants={"experts": {"num_experts": 4}},
    ),
    hybrid(
        "Lfm2MoeForCausalLM",
        {
            "layer_types": ["conv", "full_attention"],
            "num_dense_layers": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        lora=("in_proj", "q_proj", "k_proj", "v_proj"),
    ),
    hybrid(
        "Qwen3NextForCausalLM",
        {**DELTA, **BOTH, "num_experts": 0, "linear_num_value_heads": 4},
        lora=("in_proj_qkvz", "in_proj_ba", "out_proj", *ATTENTION, *GATED_MLP),
        variants={"experts": {**EXPERTS, "shared_expert_intermediate_size": 48}},
        seed=1,  # rounding errors grow less than with others
    ),
    hybrid(
        "Qwen3_5ForCausalLM",
        {**DELTA, **BOTH},
        lora=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", *ATTENTION, *GATED_MLP),
    ),
    hybrid(
        "Qwen3_5MoeForCausalLM",
        {**DELTA, **BOTH, **EXPERTS, "shared_expert_intermediate_size": 48},
        lora=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", *ATTENTION),
    ),
    hybrid(
        "KimiLinearForCausalLM",
        {
            **BOTH,
            "mlp_layer_types": ["dense", "sparse"],
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "linear_head_dim": 16,
            "linear_num_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "n_group": 4,
            "topk_group": 2,
        },
        lora=(
            *("b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"),
            *(*ATTENTION, "kv_a_proj_with_mqa", "kv_b_proj", *GATED_MLP),
        ),
        lora_options=STACKED,
        variants={"compressed queries": {"q_lora_rank": 20}},
    ),
    hybrid(
        "Zamba2ForCausalLM",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
            "num_key_value_heads": 4,
            "head_dim": 32,
            "mamba_d_state": 16,
            "mamba_ngroups": 2,
            "chunk_size": 8,
            "adapter_rank": 6,
            "use_mem_rope": True,
        },
        lora=("in_proj", "out_proj", *ATTENTION, "gate_up_proj", "down_proj", "linear"),
        variants={
            "matrices of two": {"layers_block_type": ["hybrid"] * 3, "num_mem_blocks": 2, "use_mem_rope": False},
            "corrected attention": {
                "use_shared_attention_adapter": True,
                "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
            },
        },
    ),
)
