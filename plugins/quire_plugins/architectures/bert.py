"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT as encoders, classifiers and token classifiers.

MiniLM and most models of sentence-transformers are BERTs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire import Architecture, DemoModel, hookimpl
from quire.errors import CheckpointError
from quire_demos import FOLDER as DEMOS
from quire_models import Dense, Encoder, Head, LayerNorm, Mlp, Pooler, Pooling, Positions, PostNormBlock, RowAttention
from quire_models.loading import config_fields as configs, weight_names_encoders as names
from quire_models.loading.weight_names import WeightsMapper
from quire_models.parts.pooling import classification_poolers

COLBERT_DIMENSIONS = 128
"""Size of a token's vector, if the config of a late-interaction model does not give it."""


def bert(c: Any) -> Encoder:
    return _encoder(c, Positions(c.max_position_embeddings))


def roberta(c: Any) -> Encoder:
    """Describes `RobertaConfig`: positions start after the id of the padding token."""
    unused = c.pad_token_id + 1
    return _encoder(c, Positions(c.max_position_embeddings - unused, offset=unused))


def _encoder(c: Any, positions: Positions) -> Encoder:
    if configs.optional(c, "is_decoder", False):
        raise CheckpointError("config.json says `is_decoder`; only encoders of this family can be run.")
    kind = configs.optional(c, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise CheckpointError(f"config.json asks for positions of kind {kind!r:.40}; only 'absolute' can be run.")
    norm = LayerNorm(c.layer_norm_eps)
    heads = c.num_attention_heads
    attention = RowAttention(heads, heads, c.hidden_size // heads)
    block = PostNormBlock(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm)
    return Encoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(block,) * c.num_hidden_layers,
        embed_norm=norm,
        positions=positions,
        token_types=c.type_vocab_size,
    )


def distilbert(c: Any) -> Encoder:
    """Describes `DistilBertConfig`: no token types; positions are a table even with sinusoidal embeddings."""
    norm = LayerNorm(1e-12)
    attention = RowAttention(c.n_heads, c.n_heads, c.dim // c.n_heads)
    block = PostNormBlock(attention, Mlp(c.hidden_dim, configs.act(c.activation)), norm)
    return Encoder(
        vocab=c.vocab_size,
        width=c.dim,
        blocks=(block,) * c.n_layers,
        embed_norm=norm,
        positions=Positions(c.max_position_embeddings),
    )


def _sequence_classes(act: str) -> Callable[[Any], Pooling]:
    """Classes of a prompt: a dense layer on the first token, then the classifier."""

    def pooling(c: Any) -> Pooling:
        layers = (Dense(c.hidden_size, act=act), Dense(configs.num_labels(c)))
        return Pooling(
            classification_poolers("first", "classify", configs.classifier_activation(c)), {"classify": Head(layers)}
        )

    return pooling


def token_classes(c: Any) -> Pooling:
    head = Head((Dense(configs.num_labels(c)),))
    return Pooling({"token_classify": Pooler("every", "classify", "softmax")}, {"classify": head})


def late_interaction(c: Any) -> Pooling:
    """One normalized vector per token, as in ColBERT."""
    outputs = configs.optional(c, "dim", None) or COLBERT_DIMENSIONS
    head = Head((Dense(outputs, bias=False),))
    return Pooling({"token_embed": Pooler("every", "colbert", "normalize")}, {"colbert": head})


def _head(*layers: str) -> WeightsMapper:
    """Checkpoint names of a classifier's dense layers, in order."""
    return WeightsMapper(tuple((name, f"heads.classify.{i}.dense") for i, name in enumerate(layers)))


def _family(name: str, encoder: Callable[[Any], Encoder], table: WeightsMapper, *kinds: str) -> Iterable[Architecture]:
    """Architectures of a family that embed."""
    for kind in kinds:
        yield Architecture(name=f"{name}{kind}", decoder=encoder, names=table)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """BERT, RoBERTa and DistilBERT families."""
    table = names.BERT | names.NO_POOLER
    yield from _family("Bert", bert, table, "Model", "ForMaskedLM", "ForPreTraining")
    pooled = names.BERT | _head("bert.pooler.dense", "classifier")
    yield Architecture("BertForSequenceClassification", bert, pooled, pooling=_sequence_classes("tanh"))
    yield Architecture("BertForTokenClassification", bert, table | _head("classifier"), pooling=token_classes)
    colbert = table | WeightsMapper((("linear", "heads.colbert.0.dense"),))
    yield Architecture("HF_ColBERT", bert, colbert, pooling=late_interaction)

    table = names.ROBERTA | names.NO_POOLER
    for name in ("Roberta", "XLMRoberta"):
        yield from _family(name, roberta, table, "Model", "ForMaskedLM")
        head = _head("classifier.dense", "classifier.out_proj")
        yield Architecture(f"{name}ForSequenceClassification", roberta, table | head, pooling=_sequence_classes("tanh"))
        yield Architecture(f"{name}ForTokenClassification", roberta, table | _head("classifier"), pooling=token_classes)

    table = names.DISTILBERT
    yield from _family("DistilBert", distilbert, table, "Model", "ForMaskedLM")
    head = _head("pre_classifier", "classifier")
    yield Architecture(
        "DistilBertForSequenceClassification", distilbert, table | head, pooling=_sequence_classes("relu")
    )
    yield Architecture(
        "DistilBertForTokenClassification", distilbert, table | _head("classifier"), pooling=token_classes
    )


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """An embedder and a reranker of a million parameters each, for questions about small invented worlds."""
    yield DemoModel(
        name="demo-embed",
        summary="small sentence embedder trained on text that this repository generates",
        folder=lambda: DEMOS / "demo_embed",
    )
    yield DemoModel(
        name="demo-rerank",
        summary="small cross-encoder that tells whether a passage answers a question, trained on the same text",
        folder=lambda: DEMOS / "demo_rerank",
    )
