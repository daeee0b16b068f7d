"""Suffix decoding: drafts the most frequent continuation of the newest tokens, in the sequence and in recent outputs.

Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024. The settings have the
names of vLLM. Outputs are shared by requests of the same adapters and cache salt only.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import ConfigError
from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl

PREFIX = "suffix_decoding_"
LIMITS = {
    "max_tree_depth": (2, 64),
    "max_cached_requests": (0, 1_000_000),
    "max_spec_factor": (0.1, 16.0),
    "min_token_prob": (0.0, 1.0),
}


def _build(context: DrafterContext) -> DrafterImpl:
    given = {key.removeprefix(PREFIX): value for key, value in context.settings.items()}
    for name, value in given.items():
        low, high = LIMITS[name]
        kind, noun = (int, "an integer") if isinstance(low, int) else ((int, float), "a number")
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            raise ConfigError(
                f"`{PREFIX}{name}` of --speculative-config must be {noun} from {low} to {high}; got {value!r}."
            )
    from quire_drafters.suffix_decoding.recent_outputs import RecentOutputs  # numpy is imported by `build`
    from quire_drafters.suffix_decoding.suffix_drafter import SuffixDrafter, SuffixSettings

    settings = SuffixSettings(**given)
    return SuffixDrafter(settings, RecentOutputs(settings.max_cached_requests))


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("suffix", _build, tuple(PREFIX + name for name in LIMITS))
