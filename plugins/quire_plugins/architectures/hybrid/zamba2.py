"""Zamba2: Mamba-2, and before some layers attention and an MLP whose matrices these layers share (arXiv 2411.15242)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Decoder,
    GatedMlp,
    KvShape,
    MixerBlock,
    RMSNorm,
    Rope,
    StateShape,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_models.parts.recurrent.mamba import GatedNorm, Mamba2
from quire_plugins.architectures.hybrid import mamba_fields

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder
    from quire_models import DecoderModel


@dataclass(frozen=True)
class SharedBlock:
    """x += mixer(norm(x + linear(mlp(norm(attention(norm(x, first input))))))), as in figure 2 of arXiv 2411.15242.

    shared: number of the transformer of attention and MLP; blocks with the same one have the same matrices there. To
    those of the MLP and, with `corrects_attention`, of the attention, each block adds a product of `rank`.
    """

    attn: Attention
    mlp: GatedMlp
    mixer: Mamba2
    norm: RMSNorm
    shared: int
    rank: int
    corrects_attention: bool = False

    @property
    def kv_shape(self) -> KvShape:
        return self.attn.kv_shape

    @property
    def state_shape(self) -> StateShape:
        """What the mixer keeps for each seq."""
        return self.mixer.state_shape

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_plugins.architectures.hybrid.zamba2_modules import SharedBlockModule

        return SharedBlockModule(width, self, builder)


@dataclass(frozen=True)
class FirstInputDecoder(Decoder):
    """A decoder whose blocks may read the input of the first one."""

    def build(self, builder: ModuleBuilder) -> DecoderModel:
        """The model, with uninitialized weights."""
        from quire_plugins.architectures.hybrid.zamba2_modules import FirstInputDecoderModel

        return FirstInputDecoderModel(self, builder)


def decoder(c: Any) -> FirstInputDecoder:
    norm, head_dim = RMSNorm(c.rms_norm_eps), c.attention_head_dim
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim) if c.use_mem_rope else None,
        scale=(head_dim / 2) ** -0.5,
        out_width=c.hidden_size,
    )
    mamba = Mamba2(
        heads=c.n_mamba_heads,
        head_dim=c.mamba_headdim,
        state_size=c.mamba_d_state,
        groups=c.mamba_ngroups,
        kernel=c.mamba_d_conv,
        bias=c.add_bias_linear,
        out_bias=c.add_bias_linear,
        norm=GatedNorm(1e-5, c.mamba_ngroups),
        limits=(c.time_step_min, float("inf")),
    )
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act), bias=c.add_bias_linear)
    hybrids = _hybrids(c)

    def block(layer: int) -> MixerBlock | SharedBlock:
        if layer not in hybrids:
            return MixerBlock(mamba, norm)
        number = hybrids.index(layer) % c.num_mem_blocks
        return SharedBlock(attention, mlp, mamba, norm, number, c.adapter_rank, c.use_shared_attention_adapter)

    blocks = tuple(map(block, range(c.num_hidden_layers)))
    return FirstInputDecoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


def _hybrids(c: Any) -> list[int]:
    """The layers with attention."""
    return [layer for layer, kind in enumerate(c.layers_block_type) if kind == "hybrid"]


_MATRICES = {
    "self_attn.linear_q_adapter_list": ("attn.qkv", "q"),
    "self_attn.linear_k_adapter_list": ("attn.qkv", "k"),
    "self_attn.linear_v_adapter_list": ("attn.qkv", "v"),
    "feed_forward.gate_up_proj_adapter_list": ("mlp.gate_up", "gate_up"),
}
"""What the small matrices of each use are a correction of."""


def tensor_names(c: Any) -> WeightsMapper:
    """A shared matrix has the name of the first layer that uses it, which also has the small matrices of all uses."""
    hybrids, attn = _hybrids(c), "attn.qkv" if c.use_shared_attention_adapter else "attn"
    small = []
    for use, layer in enumerate(hybrids):
        first = hybrids[use % c.num_mem_blocks]
        for listed, (matrix, name) in _MATRICES.items():
            theirs, ours = f"model.layers.{first}.shared_transformer.{listed}.{use}", f"blocks.{layer}.shared.{matrix}"
            small += [(f"{theirs}.0", f"{ours}.{name}_small"), (f"{theirs}.1", f"{ours}.wide.{name}")]
    return mamba_fields.NAMES | WeightsMapper(
        (
            ("mamba", "mixer"),
            ("mamba_decoder.mamba", "mixer"),
            ("input_layernorm", "mixer_in"),
            ("mamba_decoder.input_layernorm", "mixer_in"),
            ("shared_transformer.input_layernorm", "shared.attn_in"),
            ("shared_transformer.pre_ff_layernorm", "shared.mlp_in"),
            *((f"shared_transformer.self_attn.{name}_proj", f"shared.{attn}.{name}") for name in "qkv"),
            ("shared_transformer.self_attn.o_proj", "shared.attn.o"),
            ("shared_transformer.feed_forward.gate_up_proj", "shared.mlp.gate_up.matrix"),
            ("shared_transformer.feed_forward.down_proj", "shared.mlp.down"),
            *small,
        ),
        ignored=tuple(f"model.layers.{layer}.shared_transformer.*" for layer in hybrids[c.num_mem_blocks :]),
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Zamba2ForCausalLM`, the only architecture."""
    yield Architecture(name="Zamba2ForCausalLM", decoder=decoder, names=tensor_names)
