"""MiMo V2 Flash: values narrower than keys, sinks and more key-value heads in layers with windows, mixtures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures.moe.mixtures import corrected_router, is_sparse, mixture, with_mixtures

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder


@dataclass(frozen=True)
class Scaling:
    """x times a constant (attention_value_scale)."""

    factor: float

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_plugins.architectures.positions.mimo_modules import ScalingModule

        return ScalingModule(self.factor)


def decoder(c: Any) -> Decoder:
    norm, dense = RMSNorm(c.rms_norm_eps), GatedMlp(c.intermediate_size, configs.act(c.hidden_act))
    moe = mixture(c, c.moe_intermediate_size, c.n_routed_experts, corrected_router(c))
    blocks = tuple(Block(_attention(c, layer), dense, norm) for layer in range(c.num_hidden_layers))
    whole = Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)
    return with_mixtures(whole, moe, is_sparse(c))


def _attention(c: Any, layer: int) -> Attention:
    window = configs.window(c, layer)
    return Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads * (1 if window is None else 2),
        head_dim=c.head_dim,
        value_dim=c.v_head_dim,
        rope=Rope.from_config(c, c.head_dim, c.layer_types[layer]),
        qkv_bias=c.attention_bias,
        window=window,
        sinks=window is not None,
        v_norm=None if c.attention_value_scale is None else Scaling(c.attention_value_scale),
    )


NAMES = names.LLAMA | names.MOE | WeightsMapper((("attention_sink_bias", "sinks"),), ignored=("model.mtp.*",))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`MiMoV2FlashForCausalLM`, the only architecture."""
    yield Architecture(name="MiMoV2FlashForCausalLM", decoder=decoder, names=NAMES)
