"""Qwen3-Next and Qwen3.5: gated delta nets, and gated attention in every fourth layer; dense or mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    Expert,
    GatedMlp,
    Moe,
    RMSNorm,
    Rope,
    RowOrder,
    SigmoidGated,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
    weight_names as names,
)
from quire_models.parts.recurrent.delta import GatedDeltaNet

if TYPE_CHECKING:
    from torch import Tensor


def next_decoder(c: Any) -> Decoder:
    """Describes `Qwen3NextConfig`: every `decoder_sparse_step`-th layer is a mixture of experts."""
    dense, moe = _mlp(c), _moe(c) if c.num_experts else None
    mlps = [
        moe if moe and layer not in c.mlp_only_layers and (layer + 1) % c.decoder_sparse_step == 0 else dense
        for layer in range(c.num_hidden_layers)
    ]
    return _decoder(c, mlps, ("qkvz", "ba"))


def decoder(c: Any) -> Decoder:
    """Describes `Qwen3_5TextConfig`: every MLP is dense."""
    return _decoder(c, [_mlp(c)] * c.num_hidden_layers)


def moe_decoder(c: Any) -> Decoder:
    """Describes `Qwen3_5MoeTextConfig`: every MLP is a mixture of experts."""
    return _decoder(c, [_moe(c)] * c.num_hidden_layers)


def _mlp(c: Any) -> GatedMlp:
    return GatedMlp(c.intermediate_size, configs.act(c.hidden_act))


def _moe(c: Any) -> Moe:
    act = configs.act(c.hidden_act)
    return Moe(
        expert=Expert(c.moe_intermediate_size, act),
        experts=c.num_experts,
        router=softmax_router(c.num_experts_per_tok, configs.optional(c, "norm_topk_prob", True)),
        shared=SigmoidGated(GatedMlp(c.shared_expert_intermediate_size, act)),
    )


def delta_net(c: Any, matrices: tuple[str, ...]) -> GatedDeltaNet:
    """Describes configs with the field names of Qwen3-Next."""
    return GatedDeltaNet(
        heads=c.linear_num_value_heads,
        key_heads=c.linear_num_key_heads,
        key_dim=c.linear_key_head_dim,
        value_dim=c.linear_value_head_dim,
        kernel=c.linear_conv_kernel_dim,
        act=configs.act(c.hidden_act),
        eps=c.rms_norm_eps,
        matrices=matrices,
    )


def _decoder(c: Any, mlps: list[Any], matrices: tuple[str, ...] = ("qkv", "z", "b", "a")) -> Decoder:
    norm = RMSNorm(c.rms_norm_eps, offset=1.0)  # the checkpoint stores weight - 1
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        rope=replace(Rope.from_config(c, c.head_dim), sections=(), mixed=False),  # of text, all axes are equal
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        qk_norm=norm,
        gate=True,
    )
    delta = delta_net(c, matrices)
    mixers = [delta if kind == "linear_attention" else attention for kind in c.layer_types]
    blocks = tuple(Block(mixer, mlp, norm) for mixer, mlp in zip(mixers, mlps, strict=True))
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


def _grouped_rows(decoder: Any, sizes: Any) -> Tensor:
    """Rows of a matrix that the checkpoint groups by key head; sizes(part): outputs of a group, by name."""
    import torch

    part = next(block.attn for block in decoder.blocks if isinstance(block.attn, GatedDeltaNet))
    widths = sizes(part)
    theirs = torch.arange(part.key_heads * sum(widths)).view(part.key_heads, -1)
    return torch.cat([piece.flatten() for piece in theirs.split(widths, -1)])


def _qkvz(decoder: Any) -> Tensor:
    def sizes(p: GatedDeltaNet) -> list[int]:
        values = p.heads // p.key_heads * p.value_dim
        return [p.key_dim, p.key_dim, values, values]

    return _grouped_rows(decoder, sizes)


def _ba(decoder: Any) -> Tensor:
    return _grouped_rows(decoder, lambda p: [p.heads // p.key_heads] * 2)


_GATED_QUERIES = (("*.attn.q.weight", names.GATED_QUERIES), ("*.attn.q.bias", names.GATED_QUERIES))
NAMES = (
    names.LLAMA
    | names.LANGUAGE_MODEL
    | names.MOE
    | names.GATED_SHARED
    | WeightsMapper(
        (
            ("linear_attn", "attn"),
            ("in_proj_qkvz", "qkvz"),
            ("in_proj_ba", "ba"),
            ("in_proj_qkv", "qkv"),
            ("in_proj_z", "z"),
            ("in_proj_b", "b"),
            ("in_proj_a", "a"),
            ("conv1d", "conv"),
            ("out_proj", "o"),
            ("linear_attn.norm", "attn.norm"),
        ),
        transforms=(
            *_GATED_QUERIES,
            ("*.attn.qkvz.weight", RowOrder(_qkvz)),
            ("*.attn.ba.weight", RowOrder(_ba)),
        ),
        ignored=("mtp.*",),
    )
)
"""The names of language models, also within models with images."""

TEXT_NAMES = NAMES | WeightsMapper(ignored=("model.visual.*",))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models; `vision.qwen3_vl.qwen3_5` has Qwen3.5 with images and videos."""
    yield Architecture(name="Qwen3NextForCausalLM", decoder=next_decoder, names=TEXT_NAMES)
    yield Architecture(name="Qwen3_5ForCausalLM", decoder=decoder, names=TEXT_NAMES)
    yield Architecture(name="Qwen3_5MoeForCausalLM", decoder=moe_decoder, names=TEXT_NAMES)
