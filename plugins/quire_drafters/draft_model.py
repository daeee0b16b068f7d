"""Drafts with a smaller model that has the same vocabulary.

Leviathan, Kalman & Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023. The settings are
named as those of the model itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from quire.errors import ConfigError
from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl

TEXTS = ("model", "revision", "quantization", "dtype", "kv_cache_dtype", "load_format", "model_impl")
MAX_ADAPTERS, MAX_NAME = 64, 128
SIZES = ("max_model_len", "kv_cache_memory_bytes")


def _build(context: DrafterContext) -> DrafterImpl:
    settings = {name: value for name, value in context.settings.items() if value is not None}
    if not settings.get("model"):
        raise ConfigError("The method draft_model of --speculative-config needs `model`: a folder or a hub id.")
    for name in TEXTS:
        if not isinstance(settings.get(name, ""), str):
            raise ConfigError(f"`{name}` of --speculative-config must be a text; got {settings[name]!r}.")
    for name in SIZES:
        value = settings.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"`{name}` of --speculative-config must be a number above 0; got {value!r}.")
    if "lora" in settings:
        settings["lora"] = _adapters(settings["lora"])
    assert context.load_draft_model is not None, "the engine provides it"
    return context.load_draft_model(settings)


def _adapters(given: Any) -> str | Mapping[str, str]:
    """A folder for all requests, or folders by name: an object, or its text (--speculative-lora)."""
    found = given
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            found = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"`lora` of --speculative-config is not JSON: {error}.") from error
    named = found if isinstance(found, Mapping) else {"lora": found}
    texts = [text for each in named.items() for text in each]
    if not all(isinstance(text, str) and text for text in texts) or not 1 <= len(named) <= MAX_ADAPTERS:
        raise ConfigError(
            "`lora` of --speculative-config must be the folder of an adapter, or an object of at most "
            f"{MAX_ADAPTERS} of them by name; got {given!r:.100}."
        )
    for name in named:
        if len(name) > MAX_NAME:
            raise ConfigError(f"`lora` of --speculative-config: a name may have at most {MAX_NAME} characters.")
    return found if isinstance(found, str) else dict(named)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("draft_model", _build, (*TEXTS, *SIZES, "lora"))
