"""Drafts with a smaller model that has the same vocabulary.

Leviathan, Kalman & Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023. The settings are
named as those of the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import ConfigError
from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl

TEXTS = ("model", "revision", "quantization", "dtype", "kv_cache_dtype", "load_format", "model_impl")
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
    assert context.load_draft_model is not None, "the engine provides it"
    return context.load_draft_model(settings)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("draft_model", _build, (*TEXTS, *SIZES))
