"""Mamba, Falcon Mamba and Mamba-2: state space models without attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    MixerBlock,
    RMSNorm,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_models.parts.recurrent.mamba import GatedNorm, Mamba1, Mamba2

NAMES = WeightsMapper(
    (
        ("backbone.embeddings", "embed"),
        ("backbone.embedding", "embed"),
        ("backbone.layers", "blocks"),
        ("backbone.norm_f", "norm"),
        ("lm_head", "head"),
        ("norm", "mixer_in"),
        ("mixer.norm", "mixer.norm"),
        ("conv1d", "conv"),
        ("out_proj", "o"),
    )
)


def mamba(c: Any) -> Decoder:
    return _mamba(c, None)


def falcon_mamba(c: Any) -> Decoder:
    """Describes `FalconMambaConfig`: steps, B and C are normalized without a weight."""
    return _mamba(c, RMSNorm(c.mixer_rms_eps, affine=False))


def _mamba(c: Any, norm: RMSNorm | None) -> Decoder:
    mixer = Mamba1(
        inner=c.intermediate_size,
        state_size=c.state_size,
        rank=int(c.time_step_rank),
        kernel=c.conv_kernel,
        act=configs.act(c.hidden_act),
        conv_bias=c.use_conv_bias,
        bias=c.use_bias,
        norm=norm,
    )
    return _decoder(c, mixer)


def mamba2(c: Any) -> Decoder:
    mixer = Mamba2(
        heads=c.num_heads,
        head_dim=c.head_dim,
        state_size=c.state_size,
        groups=c.n_groups,
        kernel=c.conv_kernel,
        act=configs.act(c.hidden_act),
        conv_bias=c.use_conv_bias,
        bias=c.use_bias,
        out_bias=c.use_bias,
        norm=GatedNorm(c.layer_norm_epsilon, c.n_groups),
        limits=tuple(c.time_step_limit),
    )
    return _decoder(c, mixer)


def _decoder(c: Any, mixer: Mamba1 | Mamba2) -> Decoder:
    norm = RMSNorm(c.layer_norm_epsilon)
    blocks = (MixerBlock(mixer, norm),) * c.num_hidden_layers
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Mamba, Falcon Mamba and Mamba-2, without attention."""
    yield Architecture(name="MambaForCausalLM", decoder=mamba, names=NAMES)
    yield Architecture(name="FalconMambaForCausalLM", decoder=falcon_mamba, names=NAMES)
    yield Architecture(name="Mamba2ForCausalLM", decoder=mamba2, names=NAMES)
