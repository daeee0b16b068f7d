"""Question and event hooks as plain callables, which call each plugin's implementation separately, timed and counted.

`quire.hooks.registry` makes them from pluggy's callers; this module does not depend on pluggy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.errors import PluginOff
from quire.hooks.call_stats import PluginCallStats
from quire.records import AdapterSource

log = logging.getLogger(__name__)

Caller = tuple[str, Callable[..., Any]]
"""A plugin's name, and a function that calls its implementation of a hook with keyword arguments."""

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class NotifyHook:
    """An event hook: calls every plugin. An exception is logged and counted, and the other plugins are still called."""

    hook: str
    argument: str
    callers: tuple[Caller, ...]
    counter: PluginCallStats
    options: Options = field(default_factory=dict)

    def each(self) -> list[NotifyHook]:
        """One hook for each plugin that implements the event."""
        return [replace(self, callers=(caller,)) for caller in self.callers]

    def __call__(self, value: Any) -> None:
        for plugin, caller in self.callers:
            try:
                values = {self.argument: value, "options": self.options.get(plugin, {})}
                self.counter.call(plugin, partial(caller, **values))
            except PluginOff:
                pass  # it was logged when the function was switched off
            except Exception:
                log.exception("plugin %s failed in %s; going on", plugin, self.hook)


@dataclass(frozen=True)
class FirstResultHook:
    """A question hook: calls plugins until one answers. `PluginFailed` names one that raises or answers wrongly."""

    hook: str
    callers: tuple[Caller, ...]
    counter: PluginCallStats
    options: Options = field(default_factory=dict)

    def __call__(self, name: str, base_model: str, cache_dir: Path) -> AdapterSource | None:
        for plugin, caller in self.callers:
            known = {"name": name, "base_model": base_model, "cache_dir": cache_dir}
            answer: AdapterSource | None = self.counter.call(
                plugin, self._ask, caller, {**known, "options": self.options.get(plugin, {})}
            )
            if answer is not None:
                return answer
        return None

    def _ask(self, caller: Callable[..., Any], arguments: Mapping[str, Any]) -> AdapterSource | None:
        answer = caller(**arguments)
        if not isinstance(answer, AdapterSource | None):
            raise TypeError(f"{self.hook} must give an AdapterSource or None; got {answer!r:.80}")
        return answer
