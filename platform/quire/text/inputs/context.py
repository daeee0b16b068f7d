"""The `Context` that a plugin gets when it builds a text-side object for a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import CheckpointError
from quire.records import Context, Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo


def model_context(registry: Registry, plugin: str, info: ModelInfo, tokenizer: Tokenizer | None) -> Context:
    """The context of a plugin: its options, and the model's tokenizer, config.json and folder."""
    return Context(
        options=registry.options.get(plugin, {}),
        model=info.name,
        vocab_size=info.vocab_size,
        tokenizer=tokenizer,
        config=_config(Path(info.folder)),
        folder=info.folder,
    )


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config: Mapping[str, Any] = files.read_json(folder / "config.json")
    except files.FileRefused as error:
        if error.missing:
            return {}
        raise CheckpointError(f"{folder / 'config.json'} cannot be used: {error}.") from error
    return config
