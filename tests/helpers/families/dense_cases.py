"""Cases of dense families: attention and an MLP in every block."""

from __future__ import annotations

from typing import Any

from family_case import ATTENTION, GEMMA, PARTLY_ROTARY, FamilyCase

ORIGINAL = {"rope_theta": 1e4, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, **ORIGINAL}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
OPT = {"ffn_dim": 96, "word_embed_proj_dim": 64}
OPT_MODULES = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
FUSED_MLP = (*ATTENTION, "gate_up_proj", "down_proj")
PLAIN_MLP = (*ATTENTION, "up_proj", "down_proj")
NEOX = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}


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
    FamilyCase("Ministral3ForCausalLM", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}),
    FamilyCase("CwmForCausalLM", {**PLAIN_ROPE, "sliding_window": 9, "layer_types": WINDOWS[:2], "bos_token_id": 1}),
    FamilyCase("MistralForCausalLM", {"sliding_window": 13}),
    FamilyCase("MinistralForCausalLM", {"sliding_window": 9, "layer_types": WINDOWS[:2]}),
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
    FamilyCase("GemmaForCausalLM"),
    FamilyCase("Gemma2ForCausalLM", GEMMA),
    FamilyCase("VaultGemmaForCausalLM", GEMMA),
    FamilyCase("Gemma3ForCausalLM", {**GEMMA, "num_hidden_layers": 3, "layer_types": WINDOWS}),
    FamilyCase("OlmoForCausalLM", variants={"clipped queries, keys and values": {"clip_qkv": 1.0}}),
    FamilyCase("Olmo2ForCausalLM"),
    FamilyCase("Olmo3ForCausalLM", {"sliding_window": 9, "layer_types": WINDOWS, "num_hidden_layers": 3}),
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
        "HyperCLOVAXForCausalLM",
        {"embedding_multiplier": 1.5, "attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 0.5},
    ),
    FamilyCase("CohereForCausalLM", {"use_qk_norm": True}, variants={"no norm of queries": {"use_qk_norm": False}}),
    FamilyCase("Cohere2ForCausalLM", {"sliding_window": 9, "layer_types": WINDOWS, "num_hidden_layers": 3}),
    FamilyCase("Exaone4ForCausalLM", {"sliding_window": 9, "layer_types": WINDOWS, "num_hidden_layers": 3}),
    FamilyCase("GlmForCausalLM", lora=FUSED_MLP),
    FamilyCase("Glm4ForCausalLM", lora=FUSED_MLP),
    FamilyCase("HeliumForCausalLM"),
    FamilyCase("SeedOssForCausalLM", variants={"biases": {"attention_out_bias": True, "mlp_bias": True}}),
    FamilyCase("ArceeForCausalLM", lora=PLAIN_MLP),
    FamilyCase("ApertusForCausalLM", PLAIN_ROPE, lora=PLAIN_MLP),
    FamilyCase("NemotronForCausalLM", lora=PLAIN_MLP),
    FamilyCase("Jais2ForCausalLM", lora=PLAIN_MLP),
    FamilyCase(
        "GraniteSWAForCausalLM",
        {"attention_multiplier": 0.2, "logits_scaling": 4.0, "sliding_window": 9, "layer_rope_theta": [0, 1e4]},
    ),
    FamilyCase(
        "StableLmForCausalLM",
        {"qk_layernorm": True},
        variants={
            "parallel branches": {"use_parallel_residual": True},
            "biases": {"use_qkv_bias": True, "qk_layernorm": False},
        },
    ),
    FamilyCase(
        "PhiForCausalLM",
        lora=("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
        variants={"norms of queries": {"qk_layernorm": True}},
    ),
    FamilyCase("Starcoder2ForCausalLM", {"sliding_window": 9}, lora=(*ATTENTION, "c_fc", "c_proj")),
    FamilyCase("GPTNeoXForCausalLM", lora=NEOX, variants={"branches in turn": {"use_parallel_residual": False}}),
    FamilyCase("PersimmonForCausalLM", lora=NEOX, variants={"no norms of queries": {"qk_layernorm": False}}),
    FamilyCase("GPTJForCausalLM", {**GPT2, "rotary_dim": 8}, lora=(*OPT_MODULES[:4], "fc_in", "fc_out")),
    FamilyCase("CodeGenForCausalLM", {**GPT2, "rotary_dim": 8}, lora=("qkv_proj", "out_proj", "fc_in", "fc_out")),
    FamilyCase(
        "GPTNeoForCausalLM",
        {"num_layers": 2, "num_heads": 4, "window_size": 9, "attention_types": [[["global", "local"], 1]]},
        lora=(*OPT_MODULES[:4], "c_fc", "c_proj"),
    ),
    FamilyCase(
        "GPTBigCodeForCausalLM",
        GPT2,
        lora=("c_attn", "c_proj", "c_fc"),
        variants={"a key for each query": {"multi_query": False}},
    ),
    FamilyCase("BioGptForCausalLM", lora=OPT_MODULES),
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
