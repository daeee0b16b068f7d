"""Counts calls into plugin code by plugin, and converts exceptions of plugins into Quire's.

A plugin's function that fails several times in a row is switched off, and tried again after a pause (a circuit
breaker). Thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from quire.errors import EngineDied, PluginError, PluginFailed, PluginOff, QuireError
from quire.records import PluginInfo, Registry

log = logging.getLogger(__name__)

MAX_FAULTS = 100
"""Faults in a row after which a function of a plugin is switched off."""

REST_S = 60.0
"""Seconds that a function stays off before one call is tried."""


@dataclass(slots=True)
class _CallStats:
    """Statistics of one plugin. in_a_row: faults since the last success; off: time of the next try; by function."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    in_a_row: dict[str, int] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)


class PluginCallStats:
    """Calls, errors and seconds per plugin since construction (a `records.PluginCallCounts`).

    max_faults: faults in a row after which a function is not called for `REST_S`, and raises `PluginOff` instead; 0 =
    never. essential: plugins that are never switched off. clock: returns seconds.
    """

    def __init__(
        self,
        max_faults: int = MAX_FAULTS,
        essential: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.max_faults = max_faults
        self._essential = frozenset(essential)
        self._clock = clock
        self._lock = Lock()
        self._stats: dict[str, _CallStats] = {}

    def call(self, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`.

        A `QuireError` is an intended answer of the plugin (an invalid grammar, an adapter that does not fit): it is
        raised unchanged and not counted. Any other exception, SystemExit included, is a fault: it is counted, and
        raised as `PluginFailed`, which names the plugin and has the original as its cause. Raises PluginOff, without a
        call, while the function is switched off.
        """
        stats = self._stats.get(plugin) or self._new(plugin)
        if stats.off:
            self._refuse(plugin, stats, _name(function))
        begin = self._clock()
        try:
            result = function(*args)
        except (QuireError, KeyboardInterrupt) as error:
            self._add(stats, begin)
            if stats.in_a_row and not isinstance(error, PluginFailed):
                self._recovered(plugin, stats, _name(function))
            raise
        except BaseException as error:
            self._add(stats, begin)
            raise self.fault(plugin, function, error) from error
        self._add(stats, begin)
        if stats.in_a_row:
            self._recovered(plugin, stats, _name(function))
        return result

    def fault(self, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str) -> PluginFailed:
        """Count a fault of a plugin, and return the error to raise.

        function: the function that failed, or its name; None if the failing code cannot be switched off. error: the
        exception, or a sentence.
        """
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        stats = self._stats.get(plugin) or self._new(plugin)
        with self._lock:
            stats.errors += 1
        if function is not None:
            self._spend(plugin, stats, function if isinstance(function, str) else _name(function), what)
        return PluginFailed(f"Plugin {plugin!r} failed: {what}")

    def _spend(self, plugin: str, stats: _CallStats, name: str, what: str) -> None:
        """Count one more fault in a row of a function, and switch it off at the limit."""
        with self._lock:
            count = stats.in_a_row[name] = stats.in_a_row.get(name, 0) + 1
            if not 0 < self.max_faults <= count or plugin in self._essential:
                return
            stats.off[name] = self._clock() + REST_S
        log.error(
            "Plugin %r: %s is switched off for %.0f s after %d faults in a row (--plugin-max-faults); the last: %s",
            *(plugin, name, REST_S, count, what),
        )

    def is_off(self, plugin: str, function: str) -> bool:
        stats = self._stats.get(plugin)
        return stats is not None and function in stats.off

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors, seconds and the functions that are off, ordered by plugin."""
        with self._lock:
            return [
                {
                    "plugin": name,
                    "calls": t.calls,
                    "errors": t.errors,
                    "seconds": round(t.seconds, 6),
                    "off": sorted(t.off),
                }
                for name, t in sorted(self._stats.items())
            ]

    def _new(self, plugin: str) -> _CallStats:
        with self._lock:
            return self._stats.setdefault(plugin, _CallStats())

    def _add(self, stats: _CallStats, begin: float) -> None:
        with self._lock:
            stats.calls += 1
            stats.seconds += self._clock() - begin

    def _refuse(self, plugin: str, stats: _CallStats, name: str) -> None:
        """Raise PluginOff while a function is off. After the pause one call passes, the others are refused."""
        with self._lock:
            until = stats.off.get(name)
            if until is None:
                return
            if self._clock() >= until:
                stats.off[name] = self._clock() + REST_S
                return
        raise PluginOff(
            f"Plugin {plugin!r} is switched off: {name} failed {stats.in_a_row.get(name, 0)} times in a row. It is "
            f"tried again within {REST_S:.0f} seconds."
        )

    def _recovered(self, plugin: str, stats: _CallStats, name: str) -> None:
        with self._lock:
            stats.in_a_row.pop(name, None)
            was_off = stats.off.pop(name, None) is not None
        if was_off:
            log.warning("Plugin %r: %s works again", plugin, name)


def _name(function: Callable[..., Any]) -> str:
    """The name of a function in messages: `HFImageProcessor.apply`."""
    if isinstance(function, partial):
        return _name(function.func)
    named = getattr(function, "__qualname__", None) or getattr(
        function, "name", None
    )  # the caller of a hook has a name only
    return str(named or type(function).__qualname__)


def call_plugin(registry: Registry, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
    """`registry.counter.call`; also works for a registry without a counter."""
    counter = registry.counter if registry.counter is not None else PluginCallStats()
    return counter.call(plugin, function, *args)


def plugin_fault(
    registry: Registry, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str
) -> PluginFailed:
    """`registry.counter.fault`; also works for a registry without a counter."""
    counter = registry.counter if registry.counter is not None else PluginCallStats()
    return counter.fault(plugin, function, error)


def plugin_behind(registry: Registry, error: BaseException) -> str | None:
    """Name of the plugin whose code raised an exception, None if no frame of the traceback belongs to a plugin.

    For code whose calls are not counted: operations and parts of a model, in a step.
    """
    modules: list[str] = []
    frame = error.__traceback__
    while frame is not None:
        modules.append(str(frame.tb_frame.f_globals.get("__name__", "")))
        frame = frame.tb_next
    return next((plugin for module in reversed(modules) if (plugin := _owner(registry.plugins, module))), None)


@contextmanager
def naming_plugin(registry: Registry, doing: str) -> Iterator[None]:
    """Convert exceptions of plugin code into a PluginError that names the plugin and what Quire was doing."""
    try:
        yield
    except (QuireError, KeyboardInterrupt):
        raise
    except BaseException as error:
        plugin = plugin_behind(registry, error)
        if plugin is None:
            raise
        raise PluginError(f"Plugin {plugin!r} failed while {doing}: {type(error).__name__}: {error}") from error


def step_fault(registry: Registry, model: str, error: Exception) -> QuireError:
    """The error for the requests of a failed step: it names the model and, if plugin code raised, the plugin."""
    if isinstance(error, EngineDied):  # the engine process will be started anew
        return error
    what = f"The model `{model}` failed in a step: {type(error).__name__}: {error}"
    plugin = plugin_behind(registry, error)
    if plugin is None:
        return QuireError(what)
    plugin_fault(registry, plugin, None, error)
    return PluginFailed(f"{what}. Plugin {plugin!r} raised it.")


def _owner(plugins: Iterable[PluginInfo], module: str) -> str | None:
    """The plugin that contains this module; otherwise the only plugin of the same package."""
    inside = [p for p in plugins if module == p.module or module.startswith(p.module + ".")]
    if inside:
        return max(inside, key=lambda p: len(p.module)).name
    package = [p for p in plugins if p.module.split(".")[0] == module.split(".", maxsplit=1)[0]]
    return package[0].name if len(package) == 1 else None
