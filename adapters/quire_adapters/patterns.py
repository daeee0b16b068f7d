"""Which modules an adapter's config means, and with which rank and alpha, by the rules PEFT matches names with.

Patterns come from files of others, so each match has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import regex

from quire.errors import BadRequest
from quire_adapters.config import Config

Value = TypeVar("Value")

SECONDS = 0.2
"""Longest that one pattern may take on one name."""

ALL_LINEAR = "all-linear"
TIED = ("embed_tokens", "lm_head", "wte")
"""Modules that `ensure_weight_tying` adds to each other, by PEFT's names."""


def key_of(config: Config, module: str, parameter: str) -> str | None:
    """The name by which the config's patterns know a matrix that has low-rank tensors; None if it is no target.

    module: its path in the model it was trained on. parameter: the name of the tensor there that is changed.
    """
    if _is_module(config, module):
        return module
    whole = f"{module}.{parameter}"
    return whole if _ends_with_one(whole, config.target_parameters or ()) else None


def _is_module(config: Config, module: str) -> bool:
    if config.exclude_modules and _matches(config.exclude_modules, module):
        return False
    targets = config.target_modules
    if targets is None:
        return not config.target_parameters
    if isinstance(targets, str):
        return targets.lower() == ALL_LINEAR or _full(targets, module)
    if config.ensure_weight_tying and _ends_with_one(module, TIED) and any(_ends_with_one(t, TIED) for t in targets):
        return True
    return module in targets or (_ends_with_one(module, targets) and _in_layers(config, module))


def _matches(wanted: str | Iterable[str], module: str) -> bool:
    return _full(wanted, module) if isinstance(wanted, str) else _ends_with_one(module, wanted)


def _ends_with_one(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _in_layers(config: Config, module: str) -> bool:
    layers = config.layers
    if not layers:
        return True
    given = config.layers_pattern or r"[^.]*"
    for pattern in [given] if isinstance(given, str) else given:
        found = _search(rf"(?:^|\.)(?:{pattern})\.(\d+)\.", module)
        if found is not None:
            return int(found) in layers
    return False


def looked_up(patterns: Mapping[str, Value] | None, key: str, default: Value) -> Value:
    """The value of the first pattern that `key` ends with; `default` if there is none."""
    for pattern, value in (patterns or {}).items():
        if _full(rf"(.*\.)?({pattern})", key):
            return value
    return default


def _full(pattern: str, name: str) -> bool:
    try:
        return regex.fullmatch(pattern, name, timeout=SECONDS) is not None
    except (regex.error, TimeoutError) as error:
        raise _bad(pattern, error) from error


def _search(pattern: str, name: str) -> str | None:
    try:
        found = regex.search(pattern, name, timeout=SECONDS)
    except (regex.error, TimeoutError) as error:
        raise _bad(pattern, error) from error
    return None if found is None else str(found[1])


def _bad(pattern: str, error: Exception) -> BadRequest:
    said = "takes too long" if isinstance(error, TimeoutError) else str(error)
    return BadRequest(f"adapter_config.json has a pattern that cannot be used, {pattern!r:.100}: {said}.", "lora_path")
