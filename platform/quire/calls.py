"""Questions and events as plain callables: each plugin's implementation is called alone, timed and attributed.

It knows neither pluggy nor any plugin; `quire.registry` hands over the callers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.counting import CallCounter
from quire.errors import PluginOff
from quire.records import AdapterSource

log = logging.getLogger(__name__)

Caller = tuple[str, Callable[..., Any]]
"""A plugin's name, and what calls its implementation of a hook with keyword arguments."""

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Event:
    """Tells every plugin. One that raises is logged and counted; the others hear of it all the same."""

    hook: str
    argument: str
    callers: tuple[Caller, ...]
    counter: CallCounter
    options: Options = field(default_factory=dict)

    def each(self) -> list[Event]:
        """The same event for one plugin alone, for each that implements it."""
        return [replace(self, callers=(caller,)) for caller in self.callers]

    def __call__(self, value: Any) -> None:
        """Tell them `value`."""
        for plugin, caller in self.callers:
            try:
                values = {self.argument: value, "options": self.options.get(plugin, {})}
                self.counter.call(plugin, partial(caller, **values))
            except PluginOff:
                pass  # which the log says once
            except Exception:
                log.exception("plugin %s failed in %s; going on", plugin, self.hook)


@dataclass(frozen=True)
class Question:
    """Asks plugins one by one until one answers; `PluginFailed` names one that raises or answers nonsense."""

    hook: str
    callers: tuple[Caller, ...]
    counter: CallCounter
    options: Options = field(default_factory=dict)

    def __call__(self, name: str, base_model: str, cache_dir: Path) -> AdapterSource | None:
        """The first answer that is not None."""
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
