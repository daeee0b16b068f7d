"""Phi-3.5-MoE: two experts chosen one after another (SparseMixer), layer norms, and a head with a bias."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    CheckpointError,
    Decoder,
    ExpertRouter,
    LayerNorm,
    Rope,
    Routing,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_models.parts.rope_config import LongRope
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures

NAMES = names.LLAMA | names.MIXTRAL


def _rope(c: Any, rope: Rope) -> Rope:
    """The rotary embedding with the factor of cosines and sines that the config names `short_mscale`."""
    if not isinstance(rope.scaling, LongRope):
        return rope
    short, long = (c.rope_parameters.get(f"{kind}_mscale") for kind in ("short", "long"))
    if short != long:
        raise CheckpointError(f"config.json has short_mscale {short} and long_mscale {long}; they must be equal.")
    return replace(rope, scaling=replace(rope.scaling, attention_factor=short))


def decoder(c: Any) -> Decoder:
    norm, plain = LayerNorm(c.rms_norm_eps), llama.decoder(c)
    rope = _rope(c, Rope.from_config(c, configs.head_dim(c)))
    plain = with_attention(plain, rope=rope, window=c.sliding_window)
    normed = with_blocks(plain, lambda _, block: replace(block, norm=norm))
    router = ExpertRouter(Routing(c.num_experts_per_tok, "sparsemixer", jitter=c.router_jitter_noise))
    moe = mixture(c, c.intermediate_size, c.num_local_experts, router)
    return replace(with_mixtures(normed, moe), norm=norm, head_bias=bool(c.lm_head_bias))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, by transformers' name and by that of its checkpoint."""
    yield Architecture(name="PhimoeForCausalLM", decoder=decoder, names=NAMES)
    yield Architecture(name="PhiMoEForCausalLM", decoder=decoder, names=NAMES)
