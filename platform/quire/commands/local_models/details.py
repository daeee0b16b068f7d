"""What `platform show` says of a model, by its configuration and the headers of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire import hub
from quire.commands.terminal_text import file_size
from quire.errors import QuireError, UnknownArchitecture
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire_models.gguf.folder import open_tensors
from quire_models.loading import checkpoint, tensor_files

TEMPLATES = ("chat_template.jinja", "chat_template.json")


def details(path: str, config: ModelConfig, registry: Registry) -> Iterator[tuple[str, str]]:
    """Name and value of each fact about the model in a folder or a GGUF file.

    Raises ConfigError and CheckpointError.
    """
    found = hub.locate(path, config)
    raw = checkpoint.raw_config(found.folder)
    yield "folder", str(found.gguf or found.folder)
    if (found.folder / "adapter_config.json").is_file() and not raw:
        yield "kind", "adapter (`platform adapters inspect` says more)"
        return
    yield from _of_config(found.folder, raw, registry)
    yield from _of_weights(found, raw)
    yield "chat template", "yes" if _has_template(found.folder) else "no"


def _of_config(folder: Path, raw: Any, registry: Registry) -> Iterator[tuple[str, str]]:
    from quire.engine.architectures.choice import find_architecture

    parsed = checkpoint.read_config(folder)
    names = [str(name) for name in parsed.architectures]
    try:
        architecture = find_architecture(names, registry)
        plugin = registry.plugin_of("quire_architectures", architecture.name)
        yield "architecture", f"{architecture.name} (plugin {plugin})"
    except UnknownArchitecture:
        yield "architecture", f"{', '.join(names)} (no loaded plugin builds it)"
    length = checkpoint.max_length(parsed)
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else raw
    for label, value in (
        ("context", f"{length} tokens" if length else None),
        ("layers", text.get("num_hidden_layers") or text.get("n_layer")),
        ("width", text.get("hidden_size") or text.get("n_embd")),
        ("vocabulary", text.get("vocab_size")),
    ):
        if value is not None:
            yield label, str(value)


def _of_weights(found: hub.ModelFiles, raw: Any) -> Iterator[tuple[str, str]]:
    try:
        files = tensor_files.find(found.folder) if found.gguf is None else open_tensors(found.parts)
    except QuireError as error:
        yield "weights", error.message
        return
    stored = checkpoint.quantization_config(found.folder) if found.gguf is None else None
    if stored is None:
        yield "parameters", _count(sum(math.prod(shape) for shape in files.values()))
    if found.gguf is not None:
        yield "weights", f"GGUF, {', '.join(getattr(files, 'quantized_types', ())) or 'not quantized'}"
    else:
        dtype = checkpoint.checkpoint_dtype(found.folder) or "float32"
        yield "weights", dtype if stored is None else f"quantized: {stored['quant_method']}"
    yield "size", file_size(sum(file.stat().st_size for file in files.files))


def _has_template(folder: Path) -> bool:
    from quire import files

    if any((folder / name).is_file() for name in TEMPLATES):
        return True
    try:
        return bool(files.read_json(folder / "tokenizer_config.json").get("chat_template"))
    except (files.FileRefused, AttributeError):
        return False


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)
