"""Prompt lookup: drafts the tokens that followed the last occurrence of the newest few tokens.

Saxena, "Prompt Lookup Decoding", 2023. The settings have the names of vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import ConfigError
from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl

DEFAULT_MIN, DEFAULT_MAX = 1, 4
MAX_NGRAM = 64


def _build(context: DrafterContext) -> DrafterImpl:
    high = context.settings.get("prompt_lookup_max", DEFAULT_MAX)
    low = context.settings.get("prompt_lookup_min", min(DEFAULT_MIN, high) if isinstance(high, int) else DEFAULT_MIN)
    for name, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NGRAM:
            raise ConfigError(f"`{name}` of --speculative-config must be from 1 to {MAX_NGRAM}; got {value!r}.")
    if low > high:
        raise ConfigError(f"`prompt_lookup_min` ({low}) must be at most `prompt_lookup_max` ({high}).")
    from quire_drafters.lookup import NgramDrafter  # numpy is imported when a drafter is built

    return NgramDrafter(low, high)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("ngram", _build, ("prompt_lookup_max", "prompt_lookup_min"))
