"""Reads modules.json of sentence-transformers: how hidden states become an embedding.

It lists a transformer, a pooling, then dense layers and normalizations in any order. Dense layers have their weights in
folders of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire_models.loading.config_fields import act
from quire_models.loading.json_files import read_object, read_objects
from quire_models.parts.pooling import (
    Dense,
    Head,
    Normalize,
    Pooling,
    PoolingActivation,
    PoolingType,
    embedding_poolers,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

HEAD = "sentence"
"""Name of the head that the dense layers form."""

_POOLING_TYPES: Mapping[str, PoolingType] = {
    "mean": "mean",
    "cls": "first",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_NO_LENGTH = 1 << 40
"""transformers writes a number far above this for a tokenizer without maximum length."""
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_ONLY = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
"""Settings of a dense layer for which only the usual value is supported."""
_ACTS = {"GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Identity": "linear"}


@dataclass(frozen=True)
class SentenceTransformersConfig:
    """Contents of modules.json. max_length: maximum tokens of a text, None = the model's own limit.

    dense_folders: folders with the weights of the head's dense layers, in order.
    """

    pooling: Pooling
    dense_folders: tuple[Path, ...]
    max_length: int | None


def read_modules(folder: Path) -> SentenceTransformersConfig | None:
    """Read a model folder; None if it has no modules.json, or one without a pooling.

    Raises CheckpointError for an unsupported module or order, or a file that cannot be read.
    """
    listed = read_objects(folder, "modules.json")
    if listed is None:
        return None
    modules = [_module(folder, entry) for entry in listed]
    modules = [(kind, where) for kind, where in modules if kind != "Dropout"]
    kinds = [kind for kind, _ in modules]
    if kinds[:1] == ["Transformer"] and len(kinds) == 1:
        return None
    if kinds[:2] != ["Transformer", "Pooling"] or kinds.count("Transformer") + kinds.count("Pooling") > 2:
        raise CheckpointError(
            f"{folder / 'modules.json'} lists {', '.join(kinds) or 'nothing'}; it must list one Transformer, one "
            "Pooling and then Dense and Normalize in any order."
        )
    (_, transformer), (_, pooler), *after = modules
    pooling_type = _pooling_type(read_object(pooler, "config.json") or {}, pooler)
    activation: PoolingActivation = "normalize" if kinds[-1] == "Normalize" else "none"
    while after and after[-1][0] == "Normalize":
        after.pop()
    layers = tuple(Normalize() if kind == "Normalize" else _dense(where) for kind, where in after)
    heads = {HEAD: Head(layers)} if layers else {}
    pooling = Pooling(embedding_poolers(pooling_type, HEAD if layers else None, activation), heads)
    folders = tuple(where for kind, where in after if kind == "Dense")
    return SentenceTransformersConfig(pooling, folders, _max_length(transformer))


def _module(folder: Path, entry: Mapping[str, Any]) -> tuple[str, Path]:
    """A module's kind and its folder."""
    kind = str(entry.get("type", "")).rpartition(".")[2]
    if kind not in _KINDS:
        raise CheckpointError(
            f"{folder / 'modules.json'} asks for {kind or 'a module without a type'!r:.60}; supported are "
            f"{', '.join(_KINDS)}."
        )
    return kind, _inside(folder, str(entry.get("path", "")))


def load_dense(head: nn.Module, folders: tuple[Path, ...]) -> None:
    """Load a head's dense layers from these folders. Raises CheckpointError if the weights do not fit."""
    import torch

    from quire_models.loading.mapping import process_weights
    from quire_models.loading.tensor_files import find
    from quire_models.modules.pooling_heads import DenseLayer

    layers: Any = head
    for layer, folder in zip((each for each in layers if isinstance(each, DenseLayer)), folders, strict=True):
        files = find(folder)
        for name, parameter in layer.dense.named_parameters():
            theirs = f"linear.{name}"
            if theirs not in files or files[theirs] != tuple(parameter.shape):
                raise CheckpointError(
                    f"{folder} needs a tensor {theirs!r} of shape {list(parameter.shape)}; it has "
                    f"{ {n: list(s) for n, s in files.items()} }."
                )
            found: Tensor = files.read(theirs)
            with torch.no_grad():
                parameter.copy_(found)
    process_weights(head)


def _inside(folder: Path, path: str) -> Path:
    """The folder of a module, which must be inside the model's folder."""
    where = (folder / path).resolve()
    if not where.is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / 'modules.json'} names {path!r:.80}, which is outside its folder.")
    return where


def _pooling_type(config: Mapping[str, Any], where: Path) -> PoolingType:
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [])
    modes = modes or [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = modes or ["mean"]
    if len(modes) > 1 or modes[0] not in _POOLING_TYPES:
        raise CheckpointError(
            f"{where / 'config.json'} asks for pooling by {' and '.join(map(str, modes)):.120}; supported is one of "
            "mean, cls, lasttoken."
        )
    return _POOLING_TYPES[modes[0]]


def _dense(where: Path) -> Dense:
    config = read_object(where, "config.json") or {}
    outputs, bias = config.get("out_features"), config.get("bias", True)
    function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if not isinstance(outputs, int) or not 0 < outputs <= 1 << 17 or not isinstance(bias, bool):
        raise CheckpointError(f"{where / 'config.json'} must say `out_features`, an integer, and perhaps `bias`.")
    if function not in _ACTS:
        raise CheckpointError(
            f"{where / 'config.json'} asks for the activation {function!r:.60}; supported are {', '.join(_ACTS)}."
        )
    for name, only in _ONLY.items():
        if config.get(name, only) not in (only, None):
            raise CheckpointError(
                f"{where / 'config.json'} asks for `{name}` {config[name]!r:.60}; only {only!r} is supported."
            )
    return Dense(outputs, bias, act(_ACTS[function]))


def _max_length(transformer: Path) -> int | None:
    """Read the maximum length: sentence-transformers stores it in its own file, since 6.0 in the tokenizer's config."""
    own = read_object(transformer, "sentence_bert_config.json") or {}
    tokenizer = read_object(transformer, "tokenizer_config.json") or {}
    found = own.get("max_seq_length") or tokenizer.get("model_max_length")
    return found if isinstance(found, int) and 0 < found < _NO_LENGTH else None
