"""Which modules an adapter's config means, and with which rank and alpha, by the rules PEFT matches names with.

Patterns come from files of others, so all of one config are compiled and matched within one budget of time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import regex

from quire.errors import BadRequest
from quire_adapters.config import Config

Value = TypeVar("Value")

SECONDS = 2.0
"""Of processor time that compiling and matching the patterns of one config may take, on all names together."""

MAX_CHARS = 4096
"""Of one pattern."""

ALL_LINEAR = "all-linear"
TIED = ("embed_tokens", "lm_head", "wte")
"""Modules that `ensure_weight_tying` adds to each other, by PEFT's names."""


class Patterns:
    """Compiles and matches, and remembers what it compiled. Raises BadRequest when its time is used up."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._left = seconds
        self._compiled: dict[str, Any] = {}

    def full(self, pattern: str, name: str) -> bool:
        """Whether a pattern matches the whole of a name."""
        return self._timed("fullmatch", pattern, name) is not None

    def search(self, pattern: str, name: str) -> str | None:
        """The first group of a pattern where it is found first in a name."""
        found = self._timed("search", pattern, name)
        return None if found is None else str(found[1])

    def _timed(self, method: str, pattern: str, name: str) -> Any:
        if len(pattern) > MAX_CHARS:
            raise _bad(pattern, f"it has more than {MAX_CHARS} characters")
        begin = time.thread_time()
        try:
            if self._left <= 0:
                raise TimeoutError
            if pattern not in self._compiled:
                self._compiled[pattern] = regex.compile(pattern, cache_pattern=False)
            return getattr(self._compiled[pattern], method)(name, timeout=self._left)
        except TimeoutError:
            raise _bad(pattern, f"all together took longer than {SECONDS:g} s") from None
        except (regex.error, RecursionError, MemoryError, OverflowError) as error:
            raise _bad(pattern, str(error) or type(error).__name__) from error
        finally:
            self._left -= time.thread_time() - begin


class Targets:
    """What one config says of modules."""

    def __init__(self, config: Config, patterns: Patterns) -> None:
        self._config, self._patterns = config, patterns
        self._modules: dict[str, bool] = {}
        self._values: dict[str, tuple[int, float]] = {}

    def rank_and_alpha(self, module: str, parameter: str) -> tuple[int, float] | None:
        """Those of a matrix that has low-rank tensors; None if it is no target.

        module: its path in the model it was trained on. parameter: the name of the tensor there that is changed.
        """
        key = self._key_of(module, parameter)
        if key is None:
            return None
        if key not in self._values:
            config = self._config
            rank = self._looked_up(config.rank_pattern, key, config.r)
            self._values[key] = rank, self._looked_up(config.alpha_pattern, key, config.lora_alpha)
        return self._values[key]

    def _key_of(self, module: str, parameter: str) -> str | None:
        """The name by which the config's patterns know a matrix."""
        if module not in self._modules:
            self._modules[module] = self._is_module(module)
        if self._modules[module]:
            return module
        whole = f"{module}.{parameter}"
        return whole if _ends_with_one(whole, self._config.target_parameters or ()) else None

    def _is_module(self, module: str) -> bool:
        config, targets = self._config, self._config.target_modules
        if config.exclude_modules and self._matches(config.exclude_modules, module):
            return False
        if targets is None:
            return not config.target_parameters
        if isinstance(targets, str):
            return targets.lower() == ALL_LINEAR or self._patterns.full(targets, module)
        tied = config.ensure_weight_tying and _ends_with_one(module, TIED)
        if tied and any(_ends_with_one(target, TIED) for target in targets):
            return True
        return module in targets or (_ends_with_one(module, targets) and self._in_layers(module))

    def _matches(self, wanted: str | Iterable[str], module: str) -> bool:
        return self._patterns.full(wanted, module) if isinstance(wanted, str) else _ends_with_one(module, wanted)

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

    def _looked_up(self, patterns: Mapping[str, Value] | None, key: str, default: Value) -> Value:
        """The value of the first pattern that `key` ends with; `default` if there is none."""
        for pattern, value in (patterns or {}).items():
            if self._patterns.full(rf"(.*\.)?({pattern})", key):
                return value
        return default


def _ends_with_one(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _bad(pattern: str, reason: str) -> BadRequest:
    return BadRequest(
        f"adapter_config.json has a pattern that cannot be used, {pattern!r:.100}: {reason}.", "lora_path"
    )
