"""The settings of speculative decoding: the keys of --speculative-config that every drafter has.

vLLM's older flags set single keys of it; `with_flags` puts them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError
from quire.from_vllm.arguments import without_vllm_keys
from quire.settings.near_names import near_name

if TYPE_CHECKING:
    from quire.records import Registry

DRAFTERS = "quire_drafters"
MAX_DRAFTS = 64
FLAG = "--speculative-config"
ACCEPTANCE = ("exact", "rejection", "typical")
COMMON = ("method", "num_speculative_tokens", "acceptance", "adaptive", "posterior_threshold", "posterior_alpha")
SAME_METHOD: Mapping[str, str] = {"ngram_gpu": "ngram", "[ngram]": "ngram"}
"""Other names of methods in vLLM."""
SAME_ACCEPTANCE: Mapping[str, str] = {
    "rejection_sampler": "rejection",
    "typical_acceptance_sampler": "typical",
}
"""The names of vLLM's --spec-decoding-acceptance-method."""
KEYS: Mapping[str, str] = {
    "speculative_method": "method",
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "spec_acceptance": "acceptance",
    "speculative_lora": "lora",
}
"""Settings, and the keys of --speculative-config that they set."""
CHOOSES_METHOD = frozenset({"method", "model", "prompt_lookup_max", "prompt_lookup_min"})
"""Keys without which there is no drafter."""


def with_flags(given: Any, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """A --speculative-config with the keys of the settings in `KEYS` that are not None; empty = no drafter.

    Raises ConfigError if it is no object, or if two settings contradict each other.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{FLAG} must be a JSON object; got {given!r:.80}.")
    merged = _renamed({key: value for key, value in (given or {}).items() if value is not None})
    set_flags = {name: value for name, value in flags.items() if value is not None}
    for name, value in set_flags.items():
        ((key, meant),) = _renamed({KEYS[name]: value}).items()
        if merged.setdefault(key, meant) != meant:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {value!s:.80} contradicts the {key} {merged[key]!r:.80} of another setting.")
    if set_flags and not given and CHOOSES_METHOD.isdisjoint(merged):
        flag = f"--{next(iter(set_flags)).replace('_', '-')}"
        raise ConfigError(f"{flag} needs a drafter: {FLAG}, or --speculative-model.")
    return merged


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of older versions of vLLM with their names here."""
    found = dict(given)
    if found.get("model") in ("ngram", "[ngram]"):
        found.setdefault("method", found.pop("model"))
    if "acceptance_method" in found:
        found["acceptance"] = found.pop("acceptance_method")
    for key, names in (("method", SAME_METHOD), ("acceptance", SAME_ACCEPTANCE)):
        if isinstance(found.get(key), str):
            found[key] = names.get(found[key], found[key])
    return found


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
    def from_registry(cls, given: Mapping[str, Any], registry: Registry) -> SpeculativeConfig | None:
        """given: `ModelConfig.speculation`, without which it is None. Raises ConfigError."""
        if not given:
            return None
        return cls.from_mapping(given, {name: drafter.settings for name, drafter in registry.by_hook(DRAFTERS).items()})

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], methods: Mapping[str, Collection[str]]) -> SpeculativeConfig:
        """given: the JSON object of the flag. methods: the keys that each reads. Raises ConfigError."""
        method = given.get("method") or ("draft_model" if "model" in given else "ngram")
        if not isinstance(method, str) or method not in methods:
            known = ", ".join(sorted(methods)) or "none, because no loaded plugin provides one"
            raise ConfigError(f"`method` of {FLAG} must be one of {known}; got {method!r:.80}.")
        given = without_vllm_keys(given, methods[method])
        if "lora" in given and "lora" not in methods[method]:
            raise ConfigError(
                f"`lora` of {FLAG}: the method {method} takes no adapter. Only a draft model has layers that adapters "
                "are made for; heads read the hidden states of the served model, which its own adapter has changed."
            )
        for key in given:
            if key not in COMMON and key not in methods[method]:
                raise ConfigError(
                    f"{FLAG}: the method {method} has no setting {key!r:.80}.{_hint(key, methods[method])}"
                )
        count = given.get("num_speculative_tokens", cls.num_speculative_tokens)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DRAFTS:
            raise ConfigError(f"`num_speculative_tokens` of {FLAG} must be from 1 to {MAX_DRAFTS}; got {count!r:.80}.")
        acceptance = given.get("acceptance", cls.acceptance)
        if acceptance not in ACCEPTANCE:
            raise ConfigError(f"`acceptance` of {FLAG} must be one of {', '.join(ACCEPTANCE)}; got {acceptance!r:.80}.")
        adaptive = given.get("adaptive", cls.adaptive)
        if not isinstance(adaptive, bool):
            raise ConfigError(f"`adaptive` of {FLAG} must be true or false; got {adaptive!r:.80}.")
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
        raise ConfigError(f"`{name}` of {FLAG} must be above 0 and at most 1; got {value!r:.80}.")
    return float(value)


def _hint(key: str, known: Collection[str]) -> str:
    near = near_name(key, (*COMMON, *known))
    return f" Did you mean {near!r}?" if near else ""
