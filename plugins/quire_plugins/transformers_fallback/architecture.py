"""From a model folder to an `Architecture`, or to a sentence that says why there is none."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from quire.errors import CheckpointError
from quire.records import Architecture, ArchitectureQuery, Context
from quire_models.loading.checkpoint import raw_config
from quire_models.loading.headless import sequence_classes, token_classes
from quire_plugins.transformers_fallback.checkpoint.names import names_of
from quire_plugins.transformers_fallback.model_class import ModelClass, find_class
from quire_plugins.transformers_fallback.part import TransformersPart
from quire_plugins.transformers_fallback.pictures.processing import PictureProcessor
from quire_plugins.transformers_fallback.pictures.tower import PictureTower
from quire_plugins.transformers_fallback.replacing import scale_of
from quire_plugins.transformers_fallback.tracing import TracedModel, body_of, trace

log = logging.getLogger(__name__)


def find(query: ArchitectureQuery) -> Architecture:
    """The architecture of a model that transformers has. Raises CheckpointError."""
    found = find_class(query)
    try:
        traced = trace(found)
        part = with_pictures(describe(found, traced), query)
    except CheckpointError as error:
        raise CheckpointError(
            f"transformers has {found.name}, but its model cannot run over pages of a KV cache: {error.message}."
        ) from error
    pooling, heads = _classes(found)
    tower = None if part.pictures is None else (lambda _: PictureTower())
    return Architecture(found.name, lambda _: part, names_of(traced, heads), tower, pooling)


def with_pictures(part: TransformersPart, query: ArchitectureQuery) -> TransformersPart:
    """The part, with transformers' processor of pictures if the model takes pictures and the folder has one."""
    body = body_of(part.traced.model)
    if not hasattr(body, "get_image_features") or not part.has_lm_head or "inputs_embeds" not in part.traced.takes:
        return part
    if scale_of(body.get_input_embeddings()) is None:
        return part
    try:
        processor = PictureProcessor(Context(config=raw_config(query.folder), folder=str(query.folder)))
    except CheckpointError as error:
        log.warning("%s: the model takes text only, no pictures: %s.", part.found.name, error.message)
        return part
    axes = 1
    if hasattr(body, "get_rope_index"):
        text = part.found.config.get_text_config(decoder=True)
        axes = len((getattr(text, "rope_parameters", None) or {}).get("mrope_section") or (0, 0, 0))
    return replace(part, pictures=processor, position_axes=axes)


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
