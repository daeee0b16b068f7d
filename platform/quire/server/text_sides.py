"""The text side of each model: its tokenizer, chat templates and parser. It knows no requests and no routes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from quire.config import ModelConfig
from quire.errors import ConfigError, StartupError
from quire.hub import resolve_tokenizer
from quire.media.intake import Intake
from quire.media.limits import MediaLimits
from quire.records import Registry, ToolParser
from quire.server.models import Served
from quire.server_config import ServerConfig
from quire.text.chat import ChatTemplate, read_template
from quire.text.chat_choice import choose_chat
from quire.text.media import MediaInputs
from quire.text.reasoning import choose_reasoning
from quire.text.renderer import Renderer
from quire.text.speech import Speech
from quire.text.tokenizer import Tokenizer
from quire.text.tokenizer_files import DEFAULT_TEMPLATE
from quire.text.tools import choose_parser
from quire.types import ModelInfo


class TextSides:
    """Reads tokenizers and templates. All of it blocks."""

    def __init__(self, config: ServerConfig, registry: Registry) -> None:
        self._config, self._registry = config, registry
        self._renderer = Renderer(timeout_s=config.template_timeout_s)
        self._early: dict[Hashable, Tokenizer] = {}

    def prepare(self, models: Sequence[ModelConfig]) -> None:
        """Read what is on this disk already, while the models load. What fails here is told by `of`."""
        for model in models:
            with suppress(Exception):
                folder = Path(model.tokenizer or model.model).expanduser().resolve(strict=True)
                tokenizer = _load(model, folder)
                tokenizer.token_text(0)  # makes the tables that the first answer would have to wait for
                self._early[_kind(model, folder)] = tokenizer
                for template in tokenizer.chat_templates.values():
                    self._renderer.check(template)  # starts its process

    def of(self, models: Sequence[ModelConfig], infos: Sequence[ModelInfo]) -> list[Served]:
        """Of each loaded model; raises CheckpointError, ConfigError or PluginError."""
        return [self._one(model, info, len(models)) for model, info in zip(models, infos, strict=True)]

    def _one(self, model: ModelConfig, info: ModelInfo, of: int) -> Served:
        try:
            return self._served(model, info)
        except StartupError as error:
            raise error if of == 1 else error.of_model(info.name) from error

    def _served(self, model: ModelConfig, info: ModelInfo) -> Served:
        folder = resolve_tokenizer(model, Path(info.folder))
        tokenizer = self._early.get(_kind(model, folder)) or _load(model, folder)
        templates: Mapping[str, str] = tokenizer.chat_templates
        if model.chat_template is not None:
            templates = {DEFAULT_TEMPLATE: read_template(model.chat_template)}
        limits = MediaLimits.of(model, self._registry)
        media = MediaInputs(self._registry, info, tokenizer, Intake(limits)) if info.modalities else None
        template = None
        if tokenizer.encodes_chats is not None:
            template = choose_chat(tokenizer, self._renderer, model.chat_template)
        elif templates:
            markers = media.markers if media else {}
            template = ChatTemplate(templates, tokenizer.special_tokens, self._renderer, info.modalities, markers)
            template.check()
        return Served(
            info=info,
            tokenizer=tokenizer,
            template=template,
            media=media,
            speech=Speech.of(self._registry, info, tokenizer, media),
            tool_parser=self._tool_parser(template.for_tools if template else None),
            reasoning_parser=choose_reasoning(
                self._registry, self._config.reasoning_parser, template.usual if template else None
            ),
            response_role=model.response_role,
        )

    def _tool_parser(self, template: str | None) -> ToolParser | None:
        """The one named; else the one that fits. That several fit matters only where the model may decide to call."""
        config = self._config
        try:
            return choose_parser(self._registry, config.tool_call_parser, template)
        except ConfigError:
            if config.enable_auto_tool_choice or config.tool_call_parser is not None:
                raise
            return None


def text_sides(
    models: Sequence[ModelConfig], infos: Sequence[ModelInfo], config: ServerConfig, registry: Registry
) -> list[Served]:
    """Those of loaded models, nothing prepared."""
    return TextSides(config, registry).of(models, infos)


def _load(model: ModelConfig, folder: Path) -> Tokenizer:
    """The tokenizer in a folder, read as the model's settings say."""
    return Tokenizer.load(folder, model.tokenizer_mode, model.trust_remote_code)


def _kind(model: ModelConfig, folder: Path) -> Hashable:
    """Models for which this is equal share a tokenizer."""
    return folder, model.tokenizer_mode, model.trust_remote_code
