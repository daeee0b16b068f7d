"""Qwen 2 and 2.5: Llama with biases on queries, keys and values. Qwen 3: norms instead, dense or mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire import Architecture, hookimpl
from quire_models import Decoder, Expert, Moe, RMSNorm, softmax_router, with_attention, with_blocks
from quire_models.loading import config_fields as configs, weight_names as names
from quire_models.loading.headless import headless, without_head
from quire_models.parts.pooling import Dense, Head, Pooler, Pooling, classification_poolers
from quire_plugins.architectures import llama


def qwen2(c: Any) -> Decoder:
    return with_attention(llama.windowed(c), qkv_bias=True)


def qwen3(c: Any) -> Decoder:
    return with_attention(llama.windowed(c), qk_norm=RMSNorm(c.rms_norm_eps))


def qwen3_moe(c: Any) -> Decoder:
    """Describes `Qwen3MoeConfig`, or `Qwen3VLMoeTextConfig`: every `decoder_sparse_step`-th layer is a mixture of
    experts.
    """
    expert = Expert(c.moe_intermediate_size, configs.act(c.hidden_act))
    renormalize = configs.optional(c, "norm_topk_prob", True)
    moe = Moe(expert, c.num_experts, softmax_router(c.num_experts_per_tok, renormalize))

    def change(layer: int, block: Any) -> Any:
        dense = layer in c.mlp_only_layers or (layer + 1) % c.decoder_sparse_step
        return block if dense else replace(block, mlp=moe)

    decoder = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps), window=c.sliding_window)
    return with_blocks(decoder, change)


_REWARD = names.WeightsMapper((("score.0", "heads.score.0.dense"), ("score.2", "heads.score.1.dense")))


def reward(c: Any) -> Pooling:
    """A reward model: one number for the whole answer, or one per token."""
    return Pooling(classification_poolers("last", "score", "none"), {"score": _reward_head(c, 1)})


def process_reward(c: Any) -> Pooling:
    """A process reward model: two classes for each step of an answer, at the token that ends the step."""
    return Pooling({"token_classify": Pooler("every", "score", "softmax")}, {"score": _reward_head(c, 2)})


def _reward_head(c: Any, outputs: int) -> Head:
    return Head((Dense(c.hidden_size, act="relu"), Dense(outputs)))


def _headless_qwen2(c: Any) -> Decoder:
    return without_head(qwen2(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Qwen 2, Qwen 3 and Qwen 3 MoE, the classes without a language head, and reward models of Qwen 2."""
    yield Architecture(name="Qwen2ForCausalLM", decoder=qwen2, names=names.LLAMA)
    yield Architecture(name="Qwen3ForCausalLM", decoder=qwen3, names=names.LLAMA)
    yield Architecture(name="Qwen3MoeForCausalLM", decoder=qwen3_moe, names=names.LLAMA | names.MOE)
    yield from headless("Qwen2", qwen2, names.LLAMA)
    yield from headless("Qwen3", qwen3, names.LLAMA)
    yield from headless("Qwen3Moe", qwen3_moe, names.LLAMA | names.MOE)
    yield Architecture("Qwen2ForRewardModel", _headless_qwen2, names.LLAMA | _REWARD, pooling=reward)
    yield Architecture("Qwen2ForProcessRewardModel", _headless_qwen2, names.LLAMA | _REWARD, pooling=process_reward)
