"""From a model folder to an `Architecture`, or to a sentence that says why there is none."""

from __future__ import annotations

from typing import Any

from quire.errors import CheckpointError
from quire.records import Architecture, ArchitectureQuery
from quire_models.loading.headless import sequence_classes, token_classes
from quire_plugins.transformers_fallback.checkpoint.names import names_of
from quire_plugins.transformers_fallback.model_class import ModelClass, find_class
from quire_plugins.transformers_fallback.part import TransformersPart
from quire_plugins.transformers_fallback.tracing import TracedModel, trace


def find(query: ArchitectureQuery) -> Architecture:
    """The architecture of a model that transformers has. Raises CheckpointError."""
    found = find_class(query)
    try:
        traced = trace(found)
        part = describe(found, traced)
    except CheckpointError as error:
        raise CheckpointError(
            f"transformers has {found.name}, but its model cannot run over pages of a KV cache: {error.message}."
        ) from error
    pooling, heads = _classes(found)
    return Architecture(found.name, lambda _: part, names_of(traced, heads), pooling=pooling)


def describe(found: ModelClass, traced: TracedModel) -> TransformersPart:
    """The part of a traced model. Raises CheckpointError with a reason."""
    for call in traced.calls:
        if not call.causal and call.value_dim > call.head_dim:
            raise CheckpointError(f"its values have {call.value_dim} dimensions and its keys {call.head_dim}")
        if not call.causal and (call.softcap or call.attention_options):
            raise CheckpointError("its attention to later tokens is capped, or has sinks or chunks")
    if not traced.causal and any(call.causal for call in traced.calls):
        raise CheckpointError("only some of its layers attend to later tokens")
    if not traced.causal and traced.states:
        raise CheckpointError("its layers keep a state for each sequence, and attend to later tokens")
    model = traced.model
    ropes = {rope for _, rope in traced.ropes}
    if len(ropes) > 1:
        raise CheckpointError("it has several rotary embeddings that depend on the length of the text")
    table = model.get_submodule(traced.body_path).get_input_embeddings()
    head = model.get_output_embeddings() if traced.has_lm_head else None
    config = found.config.get_text_config(decoder=True)
    return TransformersPart(
        found,
        traced,
        vocab=int(table.weight.shape[0] if head is None else head.weight.shape[0]),
        width=traced.width,
        embed_width=int(table.weight.shape[1]),
        tied=head is not None and head.weight is table.weight,
        position_offset=_position_offset(model),
        has_token_types="token_type_ids" in traced.takes and (getattr(config, "type_vocab_size", 0) or 0) > 1,
        rope=next(iter(ropes), None),
    )


def _position_offset(model: Any) -> int:
    """The number of the first position: one after that of padding, in models that number positions by their tokens."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(getattr(module, "padding_idx", None) or 0) + 1
    return 0


def _classes(found: ModelClass) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """The pooling of transformers' generic classifiers, and the names of their heads."""
    from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

    for kind, pooling in (
        (GenericForSequenceClassification, sequence_classes),
        (GenericForTokenClassification, token_classes),
    ):
        if issubclass(found.cls, kind):
            return pooling, (("score", "heads.score.0.dense"),)
    return None, ()
