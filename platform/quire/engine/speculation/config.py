"""The settings of speculative decoding: the keys of --speculative-config that every drafter has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.errors import ConfigError
from quire.settings.near_names import near_name

MAX_DRAFTS = 64
FLAG = "--speculative-config"
ACCEPTANCE = ("exact", "rejection", "typical")
COMMON = ("method", "num_speculative_tokens", "acceptance", "adaptive", "posterior_threshold", "posterior_alpha")


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Settings of speculative decoding, named as in vLLM.

    num_speculative_tokens: most drafts per sequence and step. acceptance: "exact" accepts a draft if it is the token
    that is sampled without drafts, "rejection" keeps the distribution of the output, "typical" does not
    (`quire.engine.speculation.acceptance`). posterior_threshold, posterior_alpha: of "typical". adaptive: draft fewer
    tokens where few are accepted or a step is long already. settings: of the method.
    """

    method: str
    num_speculative_tokens: int = 5
    acceptance: str = "exact"
    adaptive: bool = True
    posterior_threshold: float = 0.09
    posterior_alpha: float = 0.3
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], methods: Mapping[str, Collection[str]]) -> SpeculativeConfig:
        """given: the JSON object of the flag. methods: the keys that each reads. Raises ConfigError."""
        method = given.get("method") or ("draft_model" if "model" in given else "ngram")
        if method not in methods:
            known = ", ".join(sorted(methods)) or "none, because no loaded plugin provides one"
            raise ConfigError(f"`method` of {FLAG} must be one of {known}; got {method!r}.")
        for key in given:
            if key not in COMMON and key not in methods[method]:
                raise ConfigError(f"{FLAG}: the method {method} has no setting {key!r}.{_hint(key, methods[method])}")
        count = given.get("num_speculative_tokens", cls.num_speculative_tokens)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DRAFTS:
            raise ConfigError(f"`num_speculative_tokens` of {FLAG} must be from 1 to {MAX_DRAFTS}; got {count!r}.")
        acceptance = given.get("acceptance", cls.acceptance)
        if acceptance not in ACCEPTANCE:
            raise ConfigError(f"`acceptance` of {FLAG} must be one of {', '.join(ACCEPTANCE)}; got {acceptance!r}.")
        adaptive = given.get("adaptive", cls.adaptive)
        if not isinstance(adaptive, bool):
            raise ConfigError(f"`adaptive` of {FLAG} must be true or false; got {adaptive!r}.")
        typical = {name: _positive(given, name) for name in ("posterior_threshold", "posterior_alpha") if name in given}
        if typical and acceptance != "typical":
            raise ConfigError(f"`{next(iter(typical))}` of {FLAG} needs `acceptance` typical; it is {acceptance!r}.")
        settings = {key: value for key, value in given.items() if key not in COMMON}
        return cls(
            method=method,
            num_speculative_tokens=count,
            acceptance=acceptance,
            adaptive=adaptive,
            settings=settings,
            **typical,
        )


def _positive(given: Mapping[str, Any], name: str) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"`{name}` of {FLAG} must be above 0 and at most 1; got {value!r}.")
    return float(value)


def _hint(key: str, known: Collection[str]) -> str:
    near = near_name(key, (*COMMON, *known))
    return f" Did you mean {near!r}?" if near else ""
