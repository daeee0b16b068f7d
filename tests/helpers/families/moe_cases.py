"""Cases of mixtures of experts."""

from __future__ import annotations

from typing import Any

from family_case import ATTENTION, LLAMA, FamilyCase

TOP_2_OF_4 = {"num_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {**TOP_2_OF_4, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
STACKED = {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
GRANITE: dict[str, Any] = {**LOCAL, "embedding_multiplier": 1.5, "attention_multiplier": 0.2, "logits_scaling": 4.0}
GRANITE_LORA = {"target_parameters": [*STACKED["target_parameters"], "router.weight"]}
ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1}

CASES = (
    FamilyCase(
        "MixtralForCausalLM",
        {"num_local_experts": 4},
        lora=(*ATTENTION, "gate", "w1", "w2", "w3"),  # by these names peft still takes the router and the experts
    ),
    FamilyCase(
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "norm_topk_prob": True},
        lora=ATTENTION,
        lora_options=STACKED,
        variants={"weights that do not sum to one, a dense layer": {"norm_topk_prob": False, "mlp_only_layers": [0]}},
    ),
    FamilyCase(
        "Qwen2MoeForCausalLM",
        {**EXPERTS, "shared_expert_intermediate_size": 48},
        lora=(*LLAMA, "shared_expert_gate"),
        lora_options=STACKED,
        variants={"weights that sum to one, a dense layer": {"norm_topk_prob": True, "mlp_only_layers": [0]}},
    ),
    FamilyCase("OlmoeForCausalLM", TOP_2_OF_4, lora=ATTENTION, lora_options=STACKED),
    FamilyCase("FlexOlmoForCausalLM", TOP_2_OF_4, lora=ATTENTION, lora_options=STACKED),
    FamilyCase("GraniteMoeForCausalLM", GRANITE, lora=ATTENTION, lora_options=GRANITE_LORA),
    FamilyCase(
        "GraniteMoeSharedForCausalLM",
        {**GRANITE, "shared_intermediate_size": 48},
        lora=(*ATTENTION, "input_linear", "output_linear"),
        lora_options=STACKED,
    ),
    FamilyCase(
        "Glm4MoeForCausalLM",
        {**DEEPSEEK, "use_qk_norm": True},
        lora_options=STACKED,
        variants={"biases, one group": {"attention_bias": True, "use_qk_norm": False, "n_group": 1, "topk_group": 1}},
    ),
    FamilyCase(
        "Dots1ForCausalLM",
        {**DEEPSEEK, "sliding_window": 13, "layer_types": ["sliding_attention", "full_attention"]},
        lora_options=STACKED,
    ),
    FamilyCase("Ernie4_5ForCausalLM", variants={"biases": {"use_bias": True}}),
    FamilyCase(
        "Ernie4_5_MoeForCausalLM",
        {**ERNIE, "moe_layer_start_index": 0},
        lora_options=STACKED,
        variants={"a dense layer, biases": {"moe_layer_start_index": 1, "use_bias": True}},
    ),
    FamilyCase("MiniMaxM2ForCausalLM", LOCAL, lora=ATTENTION, lora_options=STACKED),
    FamilyCase(
        "PhimoeForCausalLM",
        {**LOCAL, "router_jitter_noise": 0.2, "lm_head_bias": True, "attention_bias": True},
        lora=ATTENTION,
        lora_options=STACKED,
    ),
    FamilyCase(
        "HunYuanDenseV1ForCausalLM",
        variants={
            "a larger base": {
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
            }
        },
    ),
    FamilyCase("HunYuanMoEV1ForCausalLM", {"num_experts": 4, "moe_topk": 2}, lora_options=STACKED),
    FamilyCase(
        "DbrxForCausalLM",
        {
            "d_model": 64,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
            "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
        lora=("Wqkv", "out_proj", "layer"),
    ),
    FamilyCase("SolarOpenForCausalLM", DEEPSEEK, lora=ATTENTION, lora_options=STACKED),
    FamilyCase(
        "ExaoneMoeForCausalLM",
        {**EXPERTS, "num_experts": 8, "n_group": 2, "topk_group": 1, "sliding_window": 9, "sliding_window_pattern": 2},
        lora_options=STACKED,
    ),
    FamilyCase("HYV3ForCausalLM", {**EXPERTS, "router_scaling_factor": 1.5}, lora_options=STACKED),
    FamilyCase(
        "MellumForCausalLM",
        {**EXPERTS, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
        lora=ATTENTION,
        lora_options=STACKED,
        variants={"a dense layer": {"mlp_layer_types": ["sparse", "dense"]}},
    ),
    FamilyCase(
        "GraniteMoeSWAForCausalLM",
        {**GRANITE, "sliding_window": 9, "shared_intermediate_size": 48, "layer_rope_theta": [0, 1e4]},
        lora=(*ATTENTION, "input_linear", "output_linear"),
        lora_options=STACKED,
    ),
    FamilyCase(
        "Cohere2MoeForCausalLM",
        {**TOP_2_OF_4, "num_shared_experts": 1, "sliding_window": 9, "sliding_window_pattern": 2, "logit_scale": 0.5},
        lora=LLAMA,
        lora_options=STACKED,
        variants={
            "dense layers, sigmoid": {
                "expert_selection_fn": "sigmoid",
                "first_k_dense_replace": 1,
                "shared_expert_combination_strategy": "sum",
                "rms_norm_eps": 1e-5,
            }
        },
    ),
    FamilyCase(
        "MiMoV2FlashForCausalLM",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "v_head_dim": 12,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
                for kind, theta in (("full_attention", 5e4), ("sliding_attention", 1e4))
            },
        },
        lora_options=STACKED,
    ),
)
