"""Cases of mixtures of experts."""

from __future__ import annotations

from family_case import ATTENTION, FamilyCase

EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}

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
        variants={"weights that do not sum to one, a dense layer": {"norm_topk_prob": False, "mlp_only_layers": [0]}},
    ),
)
