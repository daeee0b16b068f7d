"""Architectures whose checkpoints bring code: transformers lacks them, but has a class of the same parts."""

from __future__ import annotations

from collections.abc import Mapping

SAME_PARTS: Mapping[str, str] = {
    "BaichuanForCausalLM": "LlamaForCausalLM",
    "ExaoneForCausalLM": "LlamaForCausalLM",
    "IQuestCoderForCausalLM": "LlamaForCausalLM",
    "InternLM2ForCausalLM": "LlamaForCausalLM",
    "InternLM3ForCausalLM": "LlamaForCausalLM",
    "MiniCPMForCausalLM": "GraniteForCausalLM",
}
