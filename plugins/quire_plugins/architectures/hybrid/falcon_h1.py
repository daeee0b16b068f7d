"""Falcon-H1: attention and Mamba-2 in parallel in every layer, with factors at many places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ParallelMixers,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    with_blocks,
)
from quire_models.parts.recurrent.mamba import GatedNorm
from quire_plugins.architectures import llama
from quire_plugins.architectures.hybrid import mamba_fields

NAMES = mamba_fields.NAMES | WeightsMapper((("self_attn", "attn.attn"), ("mamba", "attn.mixer")))


def decoder(c: Any) -> Decoder:
    norm = GatedNorm(c.rms_norm_eps, c.mamba_n_groups, gate_first=not c.mamba_norm_before_gate)
    mamba = mamba_fields.mamba2(
        c, norm if c.mamba_rms_norm else None, out_bias=c.projectors_bias, factors=tuple(c.ssm_multipliers)
    )
    gate, down = c.mlp_multipliers

    def change(_: int, block: Any) -> Any:
        mixers = ParallelMixers(
            attn=replace(block.attn, scale=configs.head_dim(c) ** -0.5 * c.key_multiplier),
            mixer=mamba,
            attn_in_scale=c.attention_in_multiplier,
            attn_out_scale=c.attention_out_multiplier,
            mixer_in_scale=c.ssm_in_multiplier,
            mixer_out_scale=c.ssm_out_multiplier,
        )
        return replace(block, attn=mixers, mlp=replace(block.mlp, gate_scale=gate, down_scale=down))

    changed = with_blocks(llama.decoder(c), change)
    return replace(changed, embed_scale=c.embedding_multiplier, logit_scale=c.lm_head_multiplier)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`FalconH1ForCausalLM`, the only architecture."""
    yield Architecture(name="FalconH1ForCausalLM", decoder=decoder, names=NAMES)
