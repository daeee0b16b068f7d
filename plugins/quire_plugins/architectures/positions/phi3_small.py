"""Phi-3-small: block-sparse attention in all layers but every second, maximal update parametrization, GEGELU.

transformers has no class for the config, whose checkpoints bring code; arXiv 2404.14219 describes the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    LayerNorm,
    Rope,
    RowOrder,
    Stripes,
    WeightsMapper,
    hookimpl,
    weight_names as names,
)
from quire_models.parts.rope_config import LinearScaling

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quire.plugin import ModuleBuilder
    from quire_models import DecoderModel


@dataclass(frozen=True)
class GegeluMlp:
    """down(quick_gelu(min(gate, limit)) * (clamp(up, ± limit) + 1)), with biases.

    intermediate_size: outputs of gate and of up (ff_intermediate_size). limit: gegelu_limit.
    """

    intermediate_size: int
    limit: float

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_plugins.architectures.positions.phi3_small_modules import GegeluFeedForward

        return GegeluFeedForward(width, self, builder)


@dataclass(frozen=True)
class DummyTokenDecoder(Decoder):
    """A decoder that never says some tokens, to which no text belongs. dummies: their ids (dummy_token_indices)."""

    dummies: tuple[int, ...] = ()

    def build(self, builder: ModuleBuilder) -> DecoderModel:
        """The model, with uninitialized weights."""
        from quire_plugins.architectures.positions.phi3_small_modules import DummyTokenModel

        return DummyTokenModel(self, builder)


def decoder(c: Any) -> DummyTokenDecoder:
    head_dim, norm = c.hidden_size // c.num_attention_heads, LayerNorm(c.layer_norm_epsilon)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=_rope(c, head_dim),
        qkv_bias=True,
        out_bias=True,
        scale=c.mup_attn_multiplier / head_dim if c.mup_use_scaling else None,
    )
    step = 0 if c.blocksparse_homo_head_pattern else max(1, c.blocksparse_vert_stride // c.num_attention_heads)
    stripes = Stripes(c.blocksparse_block_size, c.blocksparse_num_local_blocks, c.blocksparse_vert_stride, step)
    every = c.dense_attention_every_n_layers

    def block(layer: int) -> Block:
        dense = every and (layer + 1) % every == 0
        attn = attention if dense else replace(attention, stripes=stripes)
        return Block(attn, GegeluMlp(c.ff_intermediate_size, c.gegelu_limit), norm)

    return DummyTokenDecoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(map(block, range(c.num_hidden_layers))),
        norm=norm,
        tied=True,
        embed_scale=c.mup_embedding_multiplier or 1.0,
        logit_scale=1 / c.mup_width_multiplier if c.mup_width_multiplier else 1.0,
        dummies=tuple(getattr(c, "dummy_token_indices", ())),
    )


def _rope(c: Any, head_dim: int) -> Rope:
    """That of the config, whose fields have names of their own."""
    factor = c.rope_position_scale
    return Rope(head_dim, float(c.rope_embedding_base), None if factor == 1.0 else LinearScaling(factor=factor))


def _halves(decoder: Any) -> Tensor:
    """Gates are the even rows, the others the odd ones."""
    import torch

    size = decoder.blocks[0].mlp.intermediate_size
    return torch.arange(2 * size).view(size, 2).T.flatten()


NAMES = names.LLAMA | WeightsMapper(
    (
        ("model.final_layernorm", "norm"),
        ("query_key_value", "qkv"),
        ("dense", "o"),
        ("up_proj", "gate_up"),
    ),
    transforms=(
        ("*.attn.qkv.*", names.BY_HEAD),
        ("*.mlp.gate_up.*", RowOrder(_halves)),
    ),
)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Phi3SmallForCausalLM`, the only architecture."""
    yield Architecture(name="Phi3SmallForCausalLM", decoder=decoder, names=NAMES)
