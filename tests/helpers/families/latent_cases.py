"""Cases of latent attention."""

from __future__ import annotations

from family_case import GATED_MLP, FamilyCase

LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2}
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
SPARSE = {**LATENT, **EXPERTS, **GROUPS}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0}
LORA = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", *GATED_MLP)
PLAIN_QUERIES = {"q_lora_rank": None}

CASES = (
    FamilyCase(
        "DeepseekV2ForCausalLM",
        {**SPARSE, **PLAIN_QUERIES, "topk_method": "group_limited_greedy"},
        lora=("q_proj", *LORA[2:]),
        variants={
            "YaRN, compressed queries, any experts": {
                "rope_parameters": {**YARN, "mscale_all_dim": 0.7},
                "q_lora_rank": 20,
                "topk_method": "greedy",
            }
        },
    ),
    FamilyCase(
        "DeepseekV3ForCausalLM",
        {**SPARSE, "head_dim": 8},
        lora=LORA,
        variants={
            "YaRN and halves": {
                "rope_parameters": {**YARN, "mscale_all_dim": 1.0},
                "rope_interleave": False,
                "attention_bias": True,
                "norm_topk_prob": False,
            }
        },
    ),
    FamilyCase("Glm4MoeLiteForCausalLM", {**SPARSE, "mlp_layer_types": ["dense", "sparse"]}, lora=LORA),
    FamilyCase(
        "Mistral4ForCausalLM",
        {
            **SPARSE,
            "head_dim": 20,
            "rope_parameters": {**YARN, "type": "yarn", "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
        },
        lora=LORA,
    ),
    FamilyCase("YoutuForCausalLM", {**LATENT, "head_dim": 8}, lora=LORA),
    FamilyCase("MiniCPM3ForCausalLM", {**LATENT, "dim_model_base": 32, "scale_emb": 3}, lora=LORA),
)
