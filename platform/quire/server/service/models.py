"""The models that requests may name: their aliases, tokenizers, chat templates and output parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from quire.errors import BadRequest, ConfigError, NotFound
from quire.records import ReasoningParser, ToolParser
from quire.text.chat.templates import ChatTemplate
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, WeightedAdapter


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A loaded model with its frontend parts, and the adapters that one request uses with it.

    template: None for a model without a chat template. media: None for a text-only model. speech: None for a model that
    cannot transcribe. adapters: the adapters of the request. requested_name: set if the request named an adapter.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    media: MultimodalProcessor | None = None
    speech: TranscriptionModel | None = None
    tool_parser: ToolParser | None = None
    reasoning_parser: ReasoningParser | None = None
    response_role: str = "assistant"
    adapters: tuple[WeightedAdapter, ...] = ()
    requested_name: str | None = None

    def with_adapters(self, name: str, adapters: tuple[WeightedAdapter, ...]) -> ServedModel:
        """A copy for a request that uses these adapters; its answers carry `name`."""
        return replace(self, requested_name=name, adapters=adapters)

    @property
    def name(self) -> str:
        """The name in answers: that of the requested adapter, else the first alias."""
        if self.requested_name is not None:
            return self.requested_name
        return self.info.aliases[0] if self.info.aliases else self.info.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """All names that clients may use for the model."""
        return self.info.aliases or (self.info.name,)

    def chat_template(self) -> ChatTemplate:
        """The chat template; raises `BadRequest` for a model without one."""
        if self.template is None:
            raise BadRequest(
                f"The model `{self.name}` has no chat template: start the server with --chat-template, or use"
                " /v1/completions.",
                "messages",
            )
        return self.template


ModelFilter: TypeAlias = Callable[[ModelInfo], bool]
"""Whether a model may answer a request that names no model."""


def supports(*tasks: str) -> ModelFilter:
    """Accepts models that support one of these tasks."""
    return lambda info: any(task in info.tasks for task in tasks)


def is_cross_encoder(info: ModelInfo) -> bool:
    """Whether a model computes the score of a pair of texts itself."""
    return "classify" in info.tasks and len(info.labels) == 1


class ModelDirectory:
    """All served models, by alias."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Raises `ConfigError` if two models share a name."""
        self.all = tuple(models)
        self._by_alias: dict[str, ServedModel] = {}
        for model in models:
            for alias in model.aliases:
                if self._by_alias.setdefault(alias, model) is not model:
                    raise ConfigError(f"Two models are called {alias!r}; give them names with name=folder.")

    def get(self, name: str | None) -> ServedModel | None:
        """The model called `name`, the first model for None and ""; None if there is no such model."""
        if not name:
            return self.all[0] if self.all else None
        return self._by_alias.get(name)

    def default_for(self, *filters: ModelFilter) -> str:
        """The name of the default model of a request without `model`; "" if no model is served.

        filters: preferred models first. The first model that the first successful filter accepts is the default; if no
        filter accepts any model, it is the first of all.
        """
        for accepts in (*filters, lambda info: True):
            for served in self.all:
                if accepts(served.info):
                    return served.name
        return ""

    def not_found(self, name: str) -> NotFound:
        """The error for an unknown name; its message lists the known names."""
        return NotFound(f"The model `{name:.200}` does not exist. Valid aliases: {', '.join(self._by_alias)}.", "model")

    def find(self, name: str | None) -> ServedModel:
        """The model called `name`, the first model for None and ""; raises `NotFound`."""
        if not self.all:
            raise NotFound("No model is served: none was named and no loaded plugin has a demo model.", "model")
        found = self.get(name)
        if found is None:
            raise self.not_found(name or "")
        return found

    def known_names(self) -> dict[str, list[str]]:
        """For each model's name, all names by which files may refer to it: aliases, hub id, folder."""
        return {one.info.name: [*one.aliases, one.info.name, one.info.root, one.info.folder] for one in self.all}
