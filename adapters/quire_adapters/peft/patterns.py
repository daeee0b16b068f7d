"""Matches module names to an adapter's config by PEFT's rules, to find the targets with their ranks and alphas.

Patterns are untrusted, so all patterns of one config are compiled and matched within one time budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import regex

from quire.errors import BadRequest
from quire_adapters.peft.config import PeftConfig

Value = TypeVar("Value")

MAX_SECONDS = 2.0
"""CPU time for compiling the patterns of one config and matching them to all names."""

MAX_CHARS = 4096
"""Largest length of a pattern."""

ALL_LINEAR = "all-linear"
TIED = ("embed_tokens", "lm_head", "wte")
"""Modules that share a weight, by PEFT's names. With `ensure_weight_tying`, a target among them adds the others."""


class Patterns:
    """Compiles and matches patterns, and caches them. Methods raise BadRequest when the time is used up."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._left = seconds
        self._compiled: dict[str, Any] = {}

    def fullmatch(self, pattern: str, name: str) -> bool:
        """Whether a pattern matches a whole name."""
        return self._timed("fullmatch", pattern, name) is not None

    def search(self, pattern: str, name: str) -> str | None:
        """The first group of a pattern's first match in a name; None if it has none."""
        found = self._timed("search", pattern, name)
        return None if found is None else str(found[1])

    def _timed(self, method: str, pattern: str, name: str) -> Any:
        if len(pattern) > MAX_CHARS:
            raise _unusable(pattern, f"it has more than {MAX_CHARS} characters")
        begin = time.thread_time()
        try:
            if self._left <= 0:
                raise TimeoutError
            if pattern not in self._compiled:
                self._compiled[pattern] = regex.compile(pattern, cache_pattern=False)
            return getattr(self._compiled[pattern], method)(name, timeout=self._left)
        except TimeoutError:
            raise _unusable(pattern, f"all patterns together took longer than {MAX_SECONDS:g} s") from None
        except (regex.error, RecursionError, MemoryError, OverflowError) as error:
            raise _unusable(pattern, str(error) or type(error).__name__) from error
        finally:
            self._left -= time.thread_time() - begin


class Targets:
    """The targets of one config."""

    def __init__(self, config: PeftConfig, patterns: Patterns) -> None:
        self._config, self._patterns = config, patterns
        self._modules: dict[str, bool] = {}
        self._values: dict[str, tuple[int, float]] = {}

    def rank_and_alpha(self, module: str, parameter: str) -> tuple[int, float] | None:
        """The rank and alpha of a matrix; None if it is not a target.

        module: its path in the model that was trained. parameter: the name of the changed parameter of the module.
        """
        key = self._key_of(module, parameter)
        if key is None:
            return None
        if key not in self._values:
            config = self._config
            rank = self._look_up(config.rank_pattern, key, config.r)
            self._values[key] = rank, self._look_up(config.alpha_pattern, key, config.lora_alpha)
        return self._values[key]

    def _key_of(self, module: str, parameter: str) -> str | None:
        """The name of a matrix that the config's patterns match; None if it is not a target."""
        if module not in self._modules:
            self._modules[module] = self._is_module(module)
        if self._modules[module]:
            return module
        full_name = f"{module}.{parameter}"
        return full_name if _ends_with_one(full_name, self._config.target_parameters or ()) else None

    def _is_module(self, module: str) -> bool:
        config, targets = self._config, self._config.target_modules
        if config.exclude_modules and self._matches(config.exclude_modules, module):
            return False
        if targets is None:
            return not config.target_parameters
        if isinstance(targets, str):
            return targets.lower() == ALL_LINEAR or self._patterns.fullmatch(targets, module)
        tied = config.ensure_weight_tying and _ends_with_one(module, TIED)
        if tied and any(_ends_with_one(target, TIED) for target in targets):
            return True
        return module in targets or (_ends_with_one(module, targets) and self._in_layers(module))

    def _matches(self, patterns: str | Iterable[str], module: str) -> bool:
        return (
            self._patterns.fullmatch(patterns, module)
            if isinstance(patterns, str)
            else _ends_with_one(module, patterns)
        )

    def _in_layers(self, module: str) -> bool:
        layers = self._config.layers
        if not layers:
            return True
        given = self._config.layers_pattern or r"[^.]*"
        for pattern in [given] if isinstance(given, str) else given:
            found = self._patterns.search(rf"(?:^|\.)(?:{pattern})\.(\d+)\.", module)
            if found is not None:
                return found.isdecimal() and int(found[:19]) in layers
        return False

    def _look_up(self, patterns: Mapping[str, Value] | None, key: str, default: Value) -> Value:
        """The value of the first pattern that matches the end of `key`; `default` if there is none."""
        for pattern, value in (patterns or {}).items():
            if self._patterns.fullmatch(rf"(.*\.)?({pattern})", key):
                return value
        return default


def _ends_with_one(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _unusable(pattern: str, reason: str) -> BadRequest:
    return BadRequest(
        f"adapter_config.json has a pattern that cannot be used, {pattern!r:.100}: {reason}.", "lora_path"
    )
