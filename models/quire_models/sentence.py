"""modules.json: how a folder in the format of sentence-transformers says that hidden states become an embedding.

A transformer, a pooling, then dense layers and normalisations in any order; dense layers have weights in folders of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire_models.configs import act
from quire_models.json_files import read_object, read_objects
from quire_models.poolers import Dense, Finish, Head, Normalize, Pooling, Take, embedding

if TYPE_CHECKING:
    from torch import Tensor, nn

HEAD = "sentence"
"""Name of the head that the dense layers make up."""

_TAKES: Mapping[str, Take] = {
    "mean": "mean",
    "cls": "first",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_NO_LENGTH = 1 << 40
"""What transformers writes for a tokenizer without a longest text is far above."""
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_ONLY = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
"""Settings of a dense layer that must be as they usually are."""
_ACTS = {"GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Identity": "linear"}


@dataclass(frozen=True)
class SentenceModules:
    """What modules.json asks for. max_length: tokens that a text may have, None = the model's own limit.

    dense_folders: where the weights of the head's layers lie, in order.
    """

    pooling: Pooling
    dense_folders: tuple[Path, ...]
    max_length: int | None


def read_modules(folder: Path) -> SentenceModules | None:
    """What a model folder says; None if it has no modules.json, or one without a pooling.

    Raises CheckpointError for a module that there is not, an order that cannot be, or a file that cannot be read.
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
    take = _take(read_object(pooler, "config.json") or {}, pooler)
    finish: Finish = "normalize" if kinds[-1] == "Normalize" else "none"
    while after and after[-1][0] == "Normalize":
        after.pop()
    layers = tuple(Normalize() if kind == "Normalize" else _dense(where) for kind, where in after)
    heads = {HEAD: Head(layers)} if layers else {}
    pooling = Pooling(embedding(take, HEAD if layers else None, finish), heads)
    folders = tuple(where for kind, where in after if kind == "Dense")
    return SentenceModules(pooling, folders, _max_length(transformer))


def _module(folder: Path, entry: Mapping[str, Any]) -> tuple[str, Path]:
    """A module's kind, and where its files lie."""
    kind = str(entry.get("type", "")).rpartition(".")[2]
    if kind not in _KINDS:
        raise CheckpointError(
            f"{folder / 'modules.json'} asks for {kind or 'a module without a type'!r:.60}; known are "
            f"{', '.join(_KINDS)}."
        )
    return kind, _inside(folder, str(entry.get("path", "")))


def load_dense(head: nn.Module, folders: tuple[Path, ...]) -> None:
    """Fill a head's layers with the weights in these folders. Raises CheckpointError if they do not fit."""
    import torch

    from quire_models.heads import DenseLayer
    from quire_models.mapping import prepare
    from quire_models.tensors import find

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
    prepare(head)


def _inside(folder: Path, path: str) -> Path:
    """The folder of a module, which must lie below the model's."""
    where = (folder / path).resolve()
    if not where.is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder / 'modules.json'} names {path!r:.80}, which is outside its folder.")
    return where


def _take(config: Mapping[str, Any], where: Path) -> Take:
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [])
    modes = modes or [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    modes = modes or ["mean"]
    if len(modes) > 1 or modes[0] not in _TAKES:
        raise CheckpointError(
            f"{where / 'config.json'} asks for pooling by {' and '.join(map(str, modes)):.120}; one of mean, cls, "
            "lasttoken can be done."
        )
    return _TAKES[modes[0]]


def _dense(where: Path) -> Dense:
    config = read_object(where, "config.json") or {}
    outputs, bias = config.get("out_features"), config.get("bias", True)
    function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if not isinstance(outputs, int) or not 0 < outputs <= 1 << 17 or not isinstance(bias, bool):
        raise CheckpointError(f"{where / 'config.json'} must say `out_features`, an integer, and perhaps `bias`.")
    if function not in _ACTS:
        raise CheckpointError(
            f"{where / 'config.json'} asks for the activation {function!r:.60}; known are {', '.join(_ACTS)}."
        )
    for name, only in _ONLY.items():
        if config.get(name, only) not in (only, None):
            raise CheckpointError(
                f"{where / 'config.json'} asks for `{name}` {config[name]!r:.60}; only {only!r} can be."
            )
    return Dense(outputs, bias, act(_ACTS[function]))


def _max_length(transformer: Path) -> int | None:
    """As sentence-transformers wrote it: in a file of its own, since 6.0 with the tokenizer."""
    own = read_object(transformer, "sentence_bert_config.json") or {}
    of_tokenizer = read_object(transformer, "tokenizer_config.json") or {}
    found = own.get("max_seq_length") or of_tokenizer.get("model_max_length")
    return found if isinstance(found, int) and 0 < found < _NO_LENGTH else None
