"""Writes a model with the weights of a LoRA or IA³ adapter in its own: W' = scale · W + b a, for each matrix.

The adapter is read and checked as the server does it, so a merged model computes what the server computes with the
adapter, apart from the rounding of the weights to the checkpoint's data type.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from quire.errors import CheckpointError, ConfigError
from quire.isolation.plugin_calls import SubprocessCalls
from quire_adapter_tools.inspection import IA3, LORA, read_adapter
from quire_adapter_tools.stored_weights import StoredWeights
from quire_adapter_tools.vectors import ScalingVectors, read_vectors
from quire_adapters.peft.loader import read
from quire_adapters.peft.virtual_tokens import KINDS
from quire_adapters.weights import AdapterWeights, EmbeddingUpdate, ExpertsUpdate
from quire_models.loading import checkpoint, checkpoint_writer
from quire_models.loading.mapping import ParameterSlice

MAX_RANK = 4096
EMBED, HEAD = "embed", "head"
HEAD_NAMES = ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight", "embed_out.weight")
"""Names that the head's tensor may have in a checkpoint that gets one."""


@dataclass(frozen=True)
class Merged:
    """A merged checkpoint. changed: number of tensors that differ from the base. unties: the head has a tensor now."""

    changed: int
    unties: bool


def merge(stored: StoredWeights, adapter: Path, out: Path, in_subprocess: SubprocessCalls) -> Merged:
    """Write the model with the adapter into the folder `out`.

    Raises BadRequest for an adapter that does not run on the model, CheckpointError for weights that cannot be
    written, and ConfigError for a folder that exists or a kind of adapter that cannot be merged.
    """
    kind = read_adapter(adapter, in_subprocess).kind
    if kind not in (LORA, IA3):
        if kind in KINDS:
            raise ConfigError(f"Adapters of the kind {kind} put tokens before the prompt, which no weights contain.")
        raise ConfigError(f"Adapters of the kind {kind} are not merged; `platform adapters extract` makes one LoRA.")
    weights, vectors = AdapterWeights(), ScalingVectors()
    if kind == LORA:
        weights = read(adapter, stored.targets(), MAX_RANK, torch.float32, in_subprocess)
    else:
        vectors = read_vectors(adapter, stored.targets(), in_subprocess)
    merger = _Merger(stored, weights, vectors)
    merger.check()
    with checkpoint_writer.new_folder(out) as target:
        shards = checkpoint_writer.ShardWriter(target)
        changed = 0
        progress = tqdm(merger.tensors(), "merging", len(stored.files), unit="tensor", file=sys.stderr, disable=None)
        for name, tensor, is_changed in progress:
            shards.add(name, tensor)
            changed += is_changed
        shards.finish()
        checkpoint_writer.copy_other_files(stored.base.folder, target)
        config = checkpoint.raw_config(stored.base.folder)
        checkpoint_writer.write_config(target, _untied(config) if merger.unties else config)
    return Merged(changed, merger.unties)


class _Merger:
    """Applies an adapter to the tensors of a checkpoint."""

    def __init__(self, stored: StoredWeights, weights: AdapterWeights, vectors: ScalingVectors) -> None:
        self._stored, self._weights, self._vectors = stored, weights, vectors
        changes_head = HEAD in weights.linear or HEAD in weights.replaced
        self.unties = stored.base.decoder.tied and (changes_head or EMBED in weights.tables)
        self._changed = {f"{path}.weight" for path in (*weights.linear, *weights.replaced, *weights.tables)}
        self._changed |= {f"{path}.weight" for path in (*vectors.outputs, *vectors.inputs)}
        self._changed |= {f"{path}.bias" for path in (*weights.linear, *vectors.outputs)}
        for path, update in weights.experts.items():
            self._changed |= {f"{path}.{leaf}" for leaf in ("gate_up", "down") if getattr(update, leaf)}
        self._last: tuple[str, Tensor] | None = None

    def check(self) -> None:
        """Raise CheckpointError if something that the adapter changes has no place in a checkpoint."""
        parameters = dict(self._stored.base.module.named_parameters())
        for path, updates in self._weights.linear.items():
            if f"{path}.bias" not in parameters and any(u is not None and u.shift is not None for u in updates):
                raise CheckpointError(f"The adapter adds a bias to {path!r}, which has none in this model.")
        for name in self._stored.files:
            slice_ = self._stored.slice_of(name)
            if slice_ is not None and slice_.parameter in self._changed:
                shape = self._stored.base.module.get_parameter(slice_.parameter)[slice_.index].shape
                self._stored.from_ours(name, torch.empty(shape, device="meta"))
        if self.unties:
            self._head_name()

    def tensors(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Name and content of every tensor of the merged checkpoint, and whether it differs from the base's."""
        head = self._head_name() if self.unties else None
        for name in self._stored.files:
            slice_ = self._stored.slice_of(name)
            if name == head:
                continue
            if slice_ is None or slice_.parameter not in self._changed:
                yield name, self._stored.files.read(name), False
                continue
            yield name, self._written(name, slice_), True
        if head is not None:
            weight = self._stored.parameter(f"{EMBED}.weight")
            yield head, self._matrix(HEAD, weight.float()).to(weight.dtype).clone(), True

    def _written(self, name: str, slice_: ParameterSlice) -> Tensor:
        before = self._stored.files.read(name)
        merged = self._merged(slice_.parameter)[slice_.index]
        return self._stored.from_ours(name, merged).to(before.dtype).contiguous().clone()

    def _merged(self, parameter: str) -> Tensor:
        if self._last is None or self._last[0] != parameter:
            self._last = parameter, self._compute(parameter)
        return self._last[1]

    def _compute(self, parameter: str) -> Tensor:
        """A changed parameter, float32, or in the checkpoint's data type for experts."""
        path, _, leaf = parameter.rpartition(".")
        before = self._stored.parameter(parameter)
        if path in self._weights.experts:
            return _with_experts(before.clone(), self._weights.experts[path], leaf)
        if path in self._weights.tables:
            return _with_table(before.float(), self._weights.tables[path], self._scale_of(path))
        if leaf == "bias":
            return self._bias(path, before.float())
        return self._matrix(path, before.float())

    def _scale_of(self, path: str) -> float:
        return self._stored.base.module.embed_scale if path == EMBED else 1.0

    def _matrix(self, path: str, before: Tensor) -> Tensor:
        """before: float32 [outputs, inputs], a copy of the weight."""
        merged = self._weights.replaced.get(path, before).float().clone()
        for rows, update in self._updates(path):
            if update.scale is not None:
                merged[rows] *= update.scale[:, None]
            if update.a is not None and update.b is not None:
                merged[rows] += update.b @ update.a
        for (start, stop), factors in self._vectors.outputs.get(path, {}).items():
            merged[start:stop] *= factors[:, None]
        for (start, stop), factors in self._vectors.inputs.get(path, {}).items():
            merged[start:stop] *= factors
        return merged

    def _bias(self, path: str, merged: Tensor) -> Tensor:
        for rows, update in self._updates(path):
            if update.scale is not None:
                merged[rows] *= update.scale
            if update.shift is not None:
                merged[rows] += update.shift
        for (start, stop), factors in self._vectors.outputs.get(path, {}).items():
            merged[start:stop] *= factors
        return merged

    def _updates(self, path: str) -> Iterator[tuple[slice, Any]]:
        """Rows of a projection, and their update."""
        updates = self._weights.linear.get(path, ())
        module: Any = self._stored.base.module.get_submodule(path) if updates else None
        slices = list(module.slices.values()) or [slice(None)] if updates else []
        yield from ((rows, update) for rows, update in zip(slices, updates, strict=True) if update is not None)

    def _head_name(self) -> str:
        for name in (*self._stored.files, *HEAD_NAMES):
            if self._stored.base.names.rename(name) == "head.weight":
                return name
        raise CheckpointError("The head is tied to the embeddings, and its name in an untied checkpoint is not known.")


def _with_table(before: Tensor, update: EmbeddingUpdate, scale: float) -> Tensor:
    """before: float32 [rows, width]. scale: factor of rows that are looked up, which the update contains."""
    merged = before if update.replaced is None else update.replaced.float() / scale
    if update.scale is not None:
        merged = merged * update.scale
    if update.a is not None and update.b is not None:
        merged = merged + update.a.float() @ (update.b / scale)
    return merged


def _with_experts(merged: Tensor, update: ExpertsUpdate, leaf: str) -> Tensor:
    """merged: [experts, outputs, inputs], changed in place."""
    for expert, updates in getattr(update, leaf).items():
        for one in updates:
            rows = merged[expert, one.start : one.start + len(one.b)]
            rows.copy_(rows.float() + one.b.float() @ one.a.float())
    return merged


def _untied(config: Any) -> dict[str, Any]:
    """config.json of a model whose head is no longer the embeddings."""
    changed: dict[str, Any] = {**json.loads(json.dumps(dict(config))), "tie_word_embeddings": False}
    for value in changed.values():
        if isinstance(value, dict) and "tie_word_embeddings" in value:
            value["tie_word_embeddings"] = False
    return changed
