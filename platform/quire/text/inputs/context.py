"""The `Context` that a plugin gets when it builds a text-side object for a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import CheckpointError
from quire.records import Context, Registry
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate
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
        render_chat=partial(_rendered, tokenizer) if tokenizer and tokenizer.chat_template else None,
    )


def _rendered(tokenizer: Tokenizer, messages: Any) -> str:
    renderer = TemplatePool()
    try:
        template = ChatTemplate.from_tokenizer(tokenizer, renderer)
        variables = {**template.special_tokens, "messages": messages, "add_generation_prompt": True}
        return renderer.render(template.default_template or "", variables)
    finally:
        renderer.close()


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config: Mapping[str, Any] = files.read_json(folder / "config.json")
    except files.FileRefused as error:
        if error.missing:
            return {}
        raise CheckpointError(f"{folder / 'config.json'} cannot be used: {error}.") from error
    return config
