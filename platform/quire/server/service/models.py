"""The models that requests may name: their aliases, tokenizers, chat templates and output parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from quire.errors import BadRequest, ConfigError, ModelAsleep, ModelUnloaded, NotFound
from quire.records import ReasoningParser, ToolParser
from quire.server.changes.aliases import AliasTable
from quire.server.changes.uses import ModelUses
from quire.text.chat.templates import ChatTemplate
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.speech.transcription import TranscriptionModel
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, WeightedAdapter


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A loaded model with its frontend parts, and the adapters that one request uses with it.

    template: None for a model without a chat template. media: None for a text-only model. speech: None for a model that
    cannot transcribe. adapters: the adapters of the request. requested_name: set if the request named an adapter, or an
    alias of `AliasTable`. by_alias: whether it named such an alias.
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
    by_alias: bool = False

    def with_adapters(self, name: str, adapters: tuple[WeightedAdapter, ...]) -> ServedModel:
        """A copy for a request that uses these adapters; its answers carry `name`."""
        return replace(self, requested_name=name, adapters=adapters)

    def with_alias(self, name: str) -> ServedModel:
        """A copy for a request that named an alias, which its answers carry."""
        return replace(self, requested_name=name, by_alias=True)

    @property
    def name(self) -> str:
        """The name in answers: that of the requested adapter or alias, else the model's first name."""
        return self.info.name if self.requested_name is None else self.requested_name

    @property
    def aliases(self) -> tuple[str, ...]:
        """All names that clients may use for the model."""
        return tuple(dict.fromkeys((self.info.name, *self.info.aliases)))

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
    """All served models, by alias. `all`: those that take requests, or sleep; `leaving`: those that are being unloaded.

    aliases: names that were given to models while the server runs. uses: requests that have found a model.
    """

    def __init__(self, models: Sequence[ServedModel], is_asleep: Callable[[str], bool] = lambda name: False) -> None:
        """is_asleep: whether a model sleeps. Raises `ConfigError` if two models share a name."""
        self._is_asleep = is_asleep
        self.aliases, self.uses = AliasTable(), ModelUses()
        self.all: tuple[ServedModel, ...] = ()
        self.leaving: tuple[ServedModel, ...] = ()
        self.unloaded: Callable[[], Sequence[str]] = tuple
        """Names that requests may use although their models are not loaded."""
        self._by_alias: dict[str, ServedModel] = {}
        for model in models:
            self.add(model)

    def add(self, model: ServedModel) -> None:
        """Serve one more model. Raises `ConfigError` if one of its names is taken."""
        for alias in model.aliases:
            if self.aliases.get(alias) is not None:
                raise ConfigError(f"{alias!r} is an alias; remove it, or give the model another name.")
            if alias in self._by_alias or self.find_leaving(alias) is not None:
                raise ConfigError(f"Two models are called {alias!r}; give them names with name=folder.")
        self._by_alias.update(dict.fromkeys(model.aliases, model))
        self.all += (model,)

    def start_leaving(self, model: ServedModel) -> None:
        """Take no more requests for a model."""
        self._remove(model)
        self.leaving += (model,)

    def remove(self, name: str) -> None:
        """Forget the model with this name, whether it takes requests or not."""
        for model in (*self.all, *self.leaving):
            if model.info.name == name:
                self._remove(model)
                self.leaving = tuple(one for one in self.leaving if one is not model)

    def _remove(self, model: ServedModel) -> None:
        self.all = tuple(one for one in self.all if one is not model)
        self._by_alias = {alias: one for alias, one in self._by_alias.items() if one is not model}

    def find_leaving(self, name: str) -> ServedModel | None:
        """The model called `name` that is being unloaded; None if there is none."""
        return next((model for model in self.leaving if name in model.aliases), None)

    def check_awake(self, model: ServedModel) -> None:
        """Raise `ModelAsleep` if a model sleeps."""
        if self._is_asleep(model.info.name):
            raise ModelAsleep(
                f"The model `{model.info.name}` sleeps and takes no requests until it is woken (POST /wake_up).",
                "model",
            )

    def check_stays(self, name: str | None) -> None:
        """Raise `ModelUnloaded` if the model called `name` takes no more requests."""
        if name and self.find_leaving(name) is not None:
            raise ModelUnloaded(f"The model `{name:.200}` is being unloaded and takes no more requests.", "model")

    def get(self, name: str | None) -> ServedModel | None:
        """The model called `name`, the first model for None and ""; None if there is no such model."""
        if not name:
            return self.all[0] if self.all else None
        return self._by_alias.get(name)

    def default_for(self, *filters: ModelFilter) -> str:
        """The name of the default model of a request without `model`; "" if no model is served.

        filters: preferred models first. The first model that the first successful filter accepts is the default; if no
        filter accepts any model, it is the first of all. Models that sleep come after the others.
        """
        by_sleep = sorted(self.all, key=lambda served: self._is_asleep(served.info.name))
        for accepts in (*filters, lambda info: True):
            for served in by_sleep:
                if accepts(served.info):
                    return served.name
        return ""

    def not_found(self, name: str) -> NotFound:
        """The error for an unknown name; its message lists the known names."""
        names = [*self._by_alias, *(alias.name for alias in self.aliases.all()), *self.unloaded()]
        known = f" Valid aliases: {', '.join(names)}." if names else ""
        return NotFound(f"The model `{name:.200}` does not exist.{known}", "model")

    def find(self, name: str | None) -> ServedModel:
        """The model called `name`, the first model for None and ""; raises `NotFound`."""
        if not self.all and not self.unloaded():
            raise NotFound("No model is served; POST /v1/load_model loads one.", "model")
        found = self.get(name)
        if found is None:
            raise self.not_found(name or "")
        return found

    def known_names(self) -> dict[str, list[str]]:
        """For each model's name, all names by which files may refer to it: aliases, hub id, folder."""
        return {one.info.name: [*one.aliases, one.info.name, one.info.root, one.info.folder] for one in self.all}
