"""What a family's test needs to know: an architecture of transformers at a tiny size, and what peft adapts in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED_MLP = ("gate_proj", "up_proj", "down_proj")
LLAMA = (*ATTENTION, *GATED_MLP)

GEMMA = {"sliding_window": 9, "query_pre_attn_scalar": 24}
PARTLY_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}


@dataclass(frozen=True)
class FamilyCase:
    """A family at a tiny size, for `family_checks.check_family`.

    config: settings of transformers' config beyond `quire_testing.tiny.SIZES`; two layers by default. lora: modules
    that peft adapts (`target_modules`), with every kind of projection among them; lora_options: other fields of
    `LoraConfig`, such as `target_parameters`. variants: settings to add to `config`, by a name, each compared by its
    logits only. attention: `attn_implementation` of transformers ("sdpa" where "eager" computes something else).
    scale: factor of a tied embedding table, without which such a model says its last token for ever. settings: of the
    engine. seed: of the weights.
    """

    architecture: str
    config: Mapping[str, Any] = field(default_factory=dict)
    lora: tuple[str, ...] = LLAMA
    lora_options: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attention: str = "eager"
    scale: float = 0.1
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __str__(self) -> str:
        return self.architecture
