"""The model folder of a GGUF file: config, tokenizer and chat templates, so that all else works as for other models.

It lies in a cache, under a digest of the header that it is made from, and does not change afterwards. It has no
weights: `open_tensors` reads those from the GGUF files themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError, ConfigError
from quire_models.gguf.config import Source, config
from quire_models.gguf.file.metadata import Metadata
from quire_models.gguf.file.reader import GGUFFile, TensorInfo
from quire_models.gguf.text.tokenizer import tokenizer, tokenizer_config
from quire_models.gguf.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from quire_models.gguf.weights.tensors import GGUFTensors

_FORMAT = b"quire gguf folder 1"
"""Part of the digest; to change when other files are written for the same header."""
MAX_FACTORS = 1 << 13
_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Kinds of pooling by `pooling_type`."""
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Names in generation_config.json of sampling settings that a file recommends (`general.sampling.…`)."""


def open_tensors(files: Sequence[GGUFFile]) -> GGUFTensors:
    """The tensors of a model's files. Raises CheckpointError as `model_folder` does."""
    from quire_models.gguf.weights.tensors import (
        GGUFTensors,
    )  # imports torch, which the rest of this package does not need

    return GGUFTensors(files)


def model_folder(files: Sequence[GGUFFile], cache: Path) -> Path:
    """The folder in `cache` for a model with these files (`parts.open_parts`); it is written if it is not there.

    Raises CheckpointError if the files are not usable, and ConfigError if the cache cannot be written.
    """
    target = cache / _digest(files)
    if target.is_dir():
        return target
    contents = folder_contents(files)
    try:
        _write(contents, target)
    except OSError as error:
        raise ConfigError(
            f"The folder for {files[0].path.name} cannot be written to {cache} ({error.strerror or error}); "
            "--download-dir names another place."
        ) from error
    return target


def folder_contents(files: Sequence[GGUFFile]) -> dict[str, str]:
    """The files of the folder as JSON texts, by path."""
    metadata = Metadata(files[0])
    infos = {info.name: (file, info) for file in files for info in file.tensors}
    vocabulary = Vocabulary.read(metadata)
    source = Source(
        metadata=metadata,
        tensors={name: info.shape for name, (_, info) in infos.items()},
        factors=lambda name: _factors(*infos[name]) if name in infos else None,
        tokens=len(vocabulary.tokens),
        roles=vocabulary.roles,
        dtype=_dtype([info for _, info in infos.values()]),
    )
    values: dict[str, Any] = {
        "config.json": config(source),
        "generation_config.json": _generation(metadata, vocabulary),
        "tokenizer.json": tokenizer(vocabulary),
        "tokenizer_config.json": tokenizer_config(vocabulary),
        **_pooling(metadata),
    }
    try:
        return {name: json.dumps(value, ensure_ascii=False, allow_nan=False) for name, value in values.items()}
    except ValueError as error:
        raise CheckpointError(f"{files[0].path} has metadata with a number that is not finite.") from error


def _digest(files: Sequence[GGUFFile]) -> str:
    digest = hashlib.sha256(_FORMAT)
    for file in files:
        digest.update(file.data[: file.header_bytes])
        for info in file.tensors:
            if info.name in _FACTORS:
                digest.update(file.data[info.start : info.start + min(info.size, 4 * MAX_FACTORS)])
    return digest.hexdigest()[:32]


def _write(contents: Mapping[str, str], target: Path) -> None:
    """Write a folder beside `target` and rename it, so that `target` is never half written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    writing = Path(tempfile.mkdtemp(prefix=".writing-", dir=target.parent))
    try:
        for name, text in contents.items():
            place = writing / name
            place.parent.mkdir(exist_ok=True)
            with place.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        try:
            writing.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _dtype(infos: Sequence[TensorInfo]) -> str:
    """float32 if all matrices are; else bfloat16, which the models that are quantized were made in."""
    kinds = {info.type.name for info in infos if len(info.shape) > 1}
    return "float32" if kinds == {"F32"} else "bfloat16"


def _factors(file: GGUFFile, info: TensorInfo) -> Sequence[float]:
    """The numbers of a table of rotary factors. Raises CheckpointError if it is no such table."""
    if info.type.name != "F32" or len(info.shape) != 1 or info.shape[0] > MAX_FACTORS:
        raise CheckpointError(f"{file.path}: tensor {info.name!r} must be a list of at most {MAX_FACTORS} F32 numbers.")
    factors = array("f")
    factors.frombytes(file.data[info.start : info.start + info.size])
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise CheckpointError(f"{file.path}: tensor {info.name!r} has a factor that is not above 0.")
    return factors


def _generation(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of generation_config.json: ids that end an answer, and recommended sampling settings."""
    values: dict[str, Any] = {"eos_token_id": vocabulary.end_ids()}
    if "bos_token" in vocabulary.roles:
        values["bos_token_id"] = vocabulary.roles["bos_token"]
    for theirs, ours in _SAMPLING.items():
        if f"general.sampling.{theirs}" in metadata:
            value = metadata.number(f"general.sampling.{theirs}")
            values[ours] = int(value) if theirs == "top_k" else value
    return values


def _pooling(metadata: Metadata) -> dict[str, Any]:
    """modules.json of sentence-transformers, if the file says how embeddings are pooled; they are normalized."""
    kind = metadata.size("pooling_type", 0)
    if kind not in _POOLING:
        return {}
    names = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(names)
    ]
    pooling = {"word_embedding_dimension": metadata.size("embedding_length"), "pooling_mode": _POOLING[kind]}
    return {"modules.json": modules, "1_Pooling/config.json": pooling}
