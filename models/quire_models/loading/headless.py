"""Architectures of a family's decoder without its LM head: bare, or with a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from quire.records import Architecture
from quire_models.loading.config_fields import classifier_activation, num_labels
from quire_models.loading.weight_names import WeightsMapper
from quire_models.parts.decoder import Decoder
from quire_models.parts.pooling import Dense, Head, Pooler, Pooling, classification_poolers

SCORE = WeightsMapper((("score", "heads.score.0.dense"),))
"""A classifier of one matrix, named as in transformers' generic classes for sequences and tokens."""

BARE = WeightsMapper((("embed_tokens", "embed"), ("layers", "blocks")))
"""Added to LLAMA: a checkpoint of the bare decoder, whose names lack the prefix."""


def headless(family: str, decoder: Callable[[Any], Decoder], names: WeightsMapper) -> Iterable[Architecture]:
    """FAMILYModel, which embeds, FAMILYForSequenceClassification and FAMILYForTokenClassification.

    decoder, names: of the family's language model.
    """

    def bare(c: Any) -> Decoder:
        return without_head(decoder(c))

    yield Architecture(f"{family}Model", bare, names | BARE)
    yield Architecture(f"{family}ForSequenceClassification", bare, names | SCORE, pooling=sequence_classes)
    yield Architecture(f"{family}ForTokenClassification", bare, names | SCORE, pooling=token_classes)


def without_head(decoder: Decoder) -> Decoder:
    """A copy without LM head, for pooling only."""
    return replace(decoder, has_lm_head=False)


def sequence_classes(c: Any) -> Pooling:
    """Classes of a text, from its last token."""
    return Pooling(
        classification_poolers("last", "score", classifier_activation(c)),
        {"score": Head((Dense(num_labels(c), bias=False),))},
    )


def token_classes(c: Any) -> Pooling:
    """Classes of each token."""
    pooler = Pooler("every", "score", "softmax")
    return Pooling({"token_classify": pooler}, {"score": Head((Dense(num_labels(c)),))})
