"""Command, Cohere's models: one layer norm for both branches of a block, interleaved rotary embedding, scaled logits.

Command R7B and Command A (Cohere 2) rotate only in layers with a sliding window; the others have no positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ExpertRouter,
    GatedMlp,
    LayerNorm,
    ParallelBlock,
    PerHead,
    RMSNorm,
    Rope,
    Routing,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import mixture


def cohere(c: Any) -> Decoder:
    norm, plain = _norm(c), llama.decoder(c)
    qk_norm = PerHead(norm) if c.use_qk_norm else None

    def block(_: int, part: Any) -> ParallelBlock:
        rope = replace(part.attn.rope, interleaved=True)
        return ParallelBlock(replace(part.attn, rope=rope, qk_norm=qk_norm), part.mlp, norm)

    return replace(with_blocks(plain, block), norm=norm, logit_scale=c.logit_scale)


def cohere2(c: Any) -> Decoder:
    norm = _norm(c)

    def block(layer: int, part: Any) -> ParallelBlock:
        window = configs.window(c, layer)
        rope = None if window is None else replace(part.attn.rope, interleaved=True)
        return ParallelBlock(replace(part.attn, rope=rope, window=window), part.mlp, norm)

    return replace(with_blocks(llama.decoder(c), block), norm=norm, logit_scale=c.logit_scale)


def cohere2_moe(c: Any) -> Decoder:
    """Describes `Cohere2MoeConfig`, whose first layers may be dense."""
    norm = RMSNorm(c.rms_norm_eps) if c.rms_norm_eps is not None else _norm(c)
    dense = GatedMlp(c.prefix_dense_intermediate_size or c.intermediate_size, configs.act(c.hidden_act))
    share = 0.5 if c.num_shared_experts and c.shared_expert_combination_strategy == "average" else 1.0
    scores, size = c.expert_selection_fn, c.intermediate_size * c.num_shared_experts
    routing = Routing(c.num_experts_per_tok, scores, scores == "softmax" or c.norm_topk_prob, share)
    shared = GatedMlp(size, configs.act(c.hidden_act), down_scale=share) if size else None
    moe = mixture(c, c.intermediate_size, c.num_experts, ExpertRouter(routing), shared)
    rope = replace(Rope.from_config(c, configs.head_dim(c)), interleaved=True)

    def block(layer: int, part: Any) -> ParallelBlock:
        is_dense = c.mlp_layer_types[layer] == "dense"
        rotates = part.attn.window is not None or (is_dense and c.prefix_dense_sliding_window_pattern == 1)
        return ParallelBlock(replace(part.attn, rope=rope if rotates else None), dense if is_dense else moe, norm)

    return replace(with_blocks(cohere2(c), block), norm=norm)


def _norm(c: Any) -> LayerNorm:
    return LayerNorm(c.layer_norm_eps, bias=False)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Command R and Aya (Cohere), Command R7B and Command A (Cohere 2), mixtures, and classes without a head."""
    yield Architecture("CohereForCausalLM", cohere, names.LLAMA)
    yield Architecture("Cohere2ForCausalLM", cohere2, names.LLAMA)
    yield Architecture("Cohere2MoeForCausalLM", cohere2_moe, names.LLAMA | names.MOE)
    yield from headless("Cohere", cohere, names.LLAMA)
    yield from headless("Cohere2", cohere2, names.LLAMA)
