"""Loads what the API process needs of each model: tokenizer, chat templates, media processing and output parsers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from quire.errors import ConfigError, StartupError
from quire.hub import resolve, resolve_tokenizer
from quire.media.fetching.fetcher import TraceFetch
from quire.media.limits import MediaLimits
from quire.media.loader import MediaLoader
from quire.records import Registry, ToolParser
from quire.server.service.models import ServedModel
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.text.chat.chat_choice import choose_chat
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate, read_template
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.parsing.reasoning import choose_reasoning
from quire.text.parsing.tool_calls import choose_parser
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.files import DEFAULT_TEMPLATE
from quire.text.tokenizer.shared import SharedTokenizers
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo


class FrontendLoader:
    """Loads tokenizers, templates and parsers. All methods block."""

    def __init__(self, config: ServerConfig, registry: Registry, trace_fetch: TraceFetch | None = None) -> None:
        """trace_fetch: traces what is fetched for prompts."""
        self._config, self._registry, self._trace_fetch = config, registry, trace_fetch
        self._renderer = TemplatePool(timeout_s=config.template_timeout_s)
        self._tokenizers = SharedTokenizers()
        self._prepared: dict[Hashable, Tokenizer] = {}

    def prepare(self, models: Sequence[ModelConfig]) -> None:
        """Load tokenizers of local models while the engine process loads weights. Errors are left to `load`."""
        for model in models:
            with suppress(Exception):
                for name in filter(None, (model.model, model.tokenizer)):
                    Path(name).expanduser().resolve(strict=True)  # the engine process downloads those that are not here
                folder = resolve_tokenizer(model, resolve(model.model, model))
                tokenizer = self._tokenizer(model, folder)
                tokenizer.token_text(0)  # builds tables, for which the first response would have to wait
                self._prepared[_tokenizer_key(model, folder)] = tokenizer
                for template in tokenizer.chat_templates.values():
                    self._renderer.check(template)  # starts the template process

    def load(self, models: Sequence[ModelConfig], infos: Sequence[ModelInfo]) -> list[ServedModel]:
        """A `ServedModel` for each loaded model; raises CheckpointError, ConfigError or PluginError."""
        try:
            return [self._load_one(model, info, len(models)) for model, info in zip(models, infos, strict=True)]
        finally:
            self._prepared.clear()  # a model that is unloaded later must not leave its tokenizer here

    def _load_one(self, model: ModelConfig, info: ModelInfo, num_models: int) -> ServedModel:
        try:
            return self._served(model, info)
        except StartupError as error:
            raise error if num_models == 1 else error.of_model(info.name) from error

    def _served(self, model: ModelConfig, info: ModelInfo) -> ServedModel:
        folder = resolve_tokenizer(model, Path(info.folder))
        tokenizer = self._prepared.get(_tokenizer_key(model, folder)) or self._tokenizer(model, folder)
        templates: Mapping[str, str] = tokenizer.chat_templates
        if model.chat_template is not None:
            templates = {DEFAULT_TEMPLATE: read_template(model.chat_template)}
        limits = MediaLimits.from_config(model, self._registry)
        media = None
        if info.modalities:
            loader = MediaLoader(limits, trace_fetch=self._trace_fetch)
            media = MultimodalProcessor(self._registry, info, tokenizer, loader)
        template = None
        if tokenizer.chat_backend is not None:
            template = choose_chat(tokenizer, self._renderer, model.chat_template)
        elif templates:
            markers = media.markers if media else {}
            template = ChatTemplate(templates, tokenizer.special_tokens, self._renderer, info.modalities, markers)
            template.check()
        return ServedModel(
            info=info,
            tokenizer=tokenizer,
            template=template,
            media=media,
            speech=TranscriptionModel.from_model_info(self._registry, info, tokenizer, media),
            tool_parser=self._tool_parser(template.tool_template if template else None),
            reasoning_parser=choose_reasoning(
                self._registry, self._config.reasoning_parser, template.default_template if template else None
            ),
            response_role=model.response_role,
        )

    def _tokenizer(self, model: ModelConfig, folder: Path) -> Tokenizer:
        return self._tokenizers.load(folder, model.tokenizer_mode, model.trust_remote_code)

    def _tool_parser(self, template: str | None) -> ToolParser | None:
        """The configured parser, else the one that fits the template. Only auto tool choice requires a clear fit."""
        config = self._config
        try:
            return choose_parser(self._registry, config.tool_call_parser, template)
        except ConfigError:
            if config.enable_auto_tool_choice or config.tool_call_parser is not None:
                raise
            return None


def load_frontends(
    models: Sequence[ModelConfig], infos: Sequence[ModelInfo], config: ServerConfig, registry: Registry
) -> list[ServedModel]:
    """Load the front ends of loaded models without a `prepare` before."""
    return FrontendLoader(config, registry).load(models, infos)


def _tokenizer_key(model: ModelConfig, folder: Path) -> Hashable:
    """Models with equal keys share a tokenizer."""
    return folder, model.tokenizer_mode, model.trust_remote_code
