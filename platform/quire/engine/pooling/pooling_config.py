"""Resolves the poolers of a model, from its architecture, its folder or the defaults, and the tasks it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, ConfigError
from quire.settings.model_config import ModelConfig
from quire_models.loading.config_fields import optional
from quire_models.loading.sentence_transformers import HEAD, SentenceTransformersConfig, load_dense, read_modules
from quire_models.model_part import ModelPart
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.pooling import Head, Pooler, Pooling, PoolingType, embedding_poolers

_POOLING_TYPES: Mapping[str, PoolingType] = {"last": "last", "cls": "first", "mean": "mean"}

_TASKS_OF: Mapping[str, tuple[str, ...]] = {
    "generate": ("generate",),
    "embed": ("embed", "token_embed"),
    "classify": ("classify", "token_classify"),
    "reward": ("classify", "token_classify"),
    "score": ("classify", "embed", "token_embed"),
}
"""Pooling tasks and generation that each value of --task enables."""


@dataclass(frozen=True, kw_only=True)
class PoolingConfig:
    """The resolved pooling of a model.

    own_heads: heads whose weights are in the model's checkpoint. sentence: its `modules.json`, if it has one. tasks,
    labels, embedding_size: as in `quire.types.ModelInfo`.
    """

    pooling: Pooling
    own_heads: Mapping[str, Head]
    sentence: SentenceTransformersConfig | None
    tasks: tuple[str, ...]
    labels: tuple[str, ...]
    embedding_size: int | None

    @property
    def max_length(self) -> int | None:
        """Maximum tokens of a text, by the Sentence Transformers configuration; None if it has none."""
        return None if self.sentence is None else self.sentence.max_length

    def add_sentence_head(self, module: Any, builder: ModuleBuilder) -> None:
        """Add the dense layers of `modules.json` to the model, with their weights."""
        if self.sentence is None or HEAD not in self.sentence.pooling.heads:
            return
        head = self.sentence.pooling.heads[HEAD].build(module.part.width, builder)
        load_dense(head, self.sentence.dense_folders)
        module.heads[HEAD] = head


def choose_pooling(
    config: ModelConfig, own: Pooling | None, decoder: ModelPart, parsed: Any, folder: Path
) -> PoolingConfig:
    """Resolve the poolers of a model. own: those of its architecture (`Architecture.pooling`), if it has some.

    Raises ConfigError for a task or a setting that the model does not support, CheckpointError for a folder whose
    pooling cannot be built.
    """
    sentence = read_modules(folder) if own is None or "embed" not in own.poolers else None
    poolers: dict[str, Pooler] = {}
    heads = dict(own.heads) if own is not None else {}
    if sentence is not None:
        poolers |= sentence.pooling.poolers
        heads |= sentence.pooling.heads
    elif own is None and decoder.encoder_input is None:
        poolers |= embedding_poolers("mean" if decoder.non_causal else "last")
    if own is not None:
        poolers |= own.poolers
    poolers = _with_pooling_type(config, poolers)
    pooling = Pooling(poolers, heads, _dimensions(config, own, parsed))
    return PoolingConfig(
        pooling=pooling,
        own_heads={} if own is None else own.heads,
        sentence=sentence,
        tasks=_tasks(config, decoder, pooling),
        labels=_labels(pooling, parsed, decoder.width),
        embedding_size=_size(pooling, "embed", decoder.width) or _size(pooling, "token_embed", decoder.width),
    )


def _with_pooling_type(config: ModelConfig, poolers: dict[str, Pooler]) -> dict[str, Pooler]:
    """The poolers, that for embeddings with the pooling type of --pooling."""
    if config.pooling == "auto":
        return poolers
    if "embed" not in poolers:
        raise ConfigError("--pooling sets the pooling type of embeddings, and this model has no embeddings.")
    return {**poolers, "embed": replace(poolers["embed"], pooling_type=_POOLING_TYPES[config.pooling])}


def _dimensions(config: ModelConfig, own: Pooling | None, parsed: Any) -> tuple[int, ...] | None:
    if own is not None and own.dimensions is not None:
        return own.dimensions
    listed = optional(parsed, "matryoshka_dimensions", None)
    if listed is not None:
        if not isinstance(listed, list | tuple) or not all(isinstance(n, int) and n > 0 for n in listed):
            raise CheckpointError("config.json: `matryoshka_dimensions` must be a list of integers above 0.")
        return tuple(listed)
    return () if config.matryoshka or optional(parsed, "is_matryoshka", False) is True else None


def _tasks(config: ModelConfig, decoder: ModelPart, pooling: Pooling) -> tuple[str, ...]:
    supported = (*(("generate",) if decoder.has_lm_head else ()), *pooling.poolers)
    if config.task == "auto":
        return supported
    tasks = tuple(task for task in supported if task in _TASKS_OF[config.task])
    if not tasks:
        raise ConfigError(f"--task {config.task}: this model does not support it; it supports {', '.join(supported)}.")
    return tasks


def _labels(pooling: Pooling, parsed: Any, width: int) -> tuple[str, ...]:
    count = _size(pooling, "classify", width) or _size(pooling, "token_classify", width)
    if count is None:
        return ()
    names = optional(parsed, "id2label", None) or {}
    return tuple(str(names.get(i, names.get(str(i), f"LABEL_{i}"))) for i in range(count))


def _size(pooling: Pooling, task: str, width: int) -> int | None:
    """Length of the vectors of a task, None if the model does not support it."""
    pooler = pooling.poolers.get(task)
    if pooler is None:
        return None
    return width if pooler.head is None else pooling.heads[pooler.head].outputs(width)
