"""ModernBERT: rotary positions, gated MLPs, and layers with sliding-window attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Block,
    Dense,
    Encoder,
    GatedMlp,
    Head,
    LayerNorm,
    Pooler,
    Pooling,
    Rope,
    RowAttention,
    WeightsMapper,
    classification_poolers,
    config_fields as configs,
    hookimpl,
    weight_names_encoders as names,
)
from quire_models.parts.pooling import PoolingType

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder


@dataclass(frozen=True)
class FirstBlock(Block):
    """A block without a norm before attention, because the embeddings are normalized already."""

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """Builds a module (x, forward) -> [tokens, width]."""
        module: Any = super().build(width, builder)
        module.attn_in = None
        return module


def encoder(c: Any) -> Encoder:
    norm = _norm(c)
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_activation), bias=c.mlp_bias)
    return Encoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(
            (Block if layer else FirstBlock)(_attention(c, kind), mlp, norm) for layer, kind in enumerate(c.layer_types)
        ),
        norm=norm,
        embed_norm=norm,
    )


def _norm(c: Any) -> LayerNorm:
    return LayerNorm(c.norm_eps, bias=c.norm_bias)


def _attention(c: Any, kind: str) -> RowAttention:
    head_dim = c.hidden_size // c.num_attention_heads
    return RowAttention(
        heads=c.num_attention_heads,
        kv_heads=c.num_attention_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim, kind),
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        window=c.local_attention // 2 + 1 if kind == "sliding_attention" else None,
    )


def sequence_classes(c: Any) -> Pooling:
    """Classes of a prompt, from the first token or the mean of all tokens, as the config says."""
    take: PoolingType = "mean" if c.classifier_pooling == "mean" else "first"
    return Pooling(classification_poolers(take, "classify", configs.classifier_activation(c)), {"classify": _head(c)})


def token_classes(c: Any) -> Pooling:
    return Pooling({"token_classify": Pooler("every", "classify", "softmax")}, {"classify": _head(c)})


def _head(c: Any) -> Head:
    dense = Dense(c.hidden_size, bias=c.classifier_bias, act=configs.act(c.classifier_activation))
    return Head((dense, _norm(c), Dense(configs.num_labels(c))))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Encoder, sequence classifier and token classifier."""
    table = names.MODERNBERT
    yield Architecture("ModernBertModel", encoder, table)
    yield Architecture("ModernBertForMaskedLM", encoder, table | WeightsMapper(ignored=("head.*",)))
    table |= WeightsMapper(
        (
            ("head.dense", "heads.classify.0.dense"),
            ("head.norm", "heads.classify.1"),
            ("classifier", "heads.classify.2.dense"),
        )
    )
    yield Architecture("ModernBertForSequenceClassification", encoder, table, pooling=sequence_classes)
    yield Architecture("ModernBertForTokenClassification", encoder, table, pooling=token_classes)
