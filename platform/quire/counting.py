"""Counts calls into plugin code, by plugin, and turns its exceptions into ours.

A function of a plugin that only fails is switched off after a number of faults in a row, and tried again after a
rest. It knows nothing of what is called. Safe to use from any thread.
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

from quire.errors import PluginError, PluginFailed, PluginOff, QuireError
from quire.records import PluginInfo, Registry

log = logging.getLogger(__name__)

MAX_FAULTS = 100
"""Faults in a row of one function of a plugin after which it is switched off."""

REST_S = 60.0
"""How long a function stays off before one more call is tried."""


@dataclass(slots=True)
class _Tally:
    """Of one plugin. in_a_row: faults since the last success, by function; off: when a function may be tried again."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    in_a_row: dict[str, int] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)


class CallCounter:
    """Calls, errors and seconds per plugin, since it was made (a `records.CountsCalls`).

    max_faults: faults in a row, with no success between them, after which a function of a plugin is not called for
    `REST_S`; its callers get `PluginOff`. 0: never. essential: plugins that are never switched off. clock: seconds.
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
        self._tallies: dict[str, _Tally] = {}

    def call(self, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` gives.

        A `QuireError` is the plugin's considered answer (a grammar is wrong, an adapter does not
        fit) and passes as it is, uncounted; anything else that is raised, SystemExit included, is a fault: counted,
        and raised on as `PluginFailed` naming the plugin, with the original as its cause. Raises PluginOff, without a
        call, while the function is switched off.
        """
        tally = self._tallies.get(plugin) or self._new(plugin)
        if tally.off:
            self._refuse(plugin, tally, _name(function))
        begin = self._clock()
        try:
            result = function(*args)
        except (QuireError, KeyboardInterrupt) as error:
            self._add(tally, begin)
            if tally.in_a_row and not isinstance(error, PluginFailed):
                self._recovered(plugin, tally, _name(function))
            raise
        except BaseException as error:
            self._add(tally, begin)
            raise self.fault(plugin, function, error) from error
        self._add(tally, begin)
        if tally.in_a_row:
            self._recovered(plugin, tally, _name(function))
        return result

    def fault(self, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str) -> PluginFailed:
        """Count a fault of a plugin, and give the error that says so.

        function: which failed, or a name for what did; None: what cannot be switched off. error: what was raised, or a
        sentence.
        """
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        tally = self._tallies.get(plugin) or self._new(plugin)
        with self._lock:
            tally.errors += 1
        if function is not None:
            self._spend(plugin, tally, function if isinstance(function, str) else _name(function), what)
        return PluginFailed(f"Plugin {plugin!r} failed: {what}")

    def _spend(self, plugin: str, tally: _Tally, name: str, what: str) -> None:
        """One more fault in a row of a function, which is switched off if that is too many."""
        with self._lock:
            count = tally.in_a_row[name] = tally.in_a_row.get(name, 0) + 1
            if not 0 < self.max_faults <= count or plugin in self._essential:
                return
            tally.off[name] = self._clock() + REST_S
        log.error(
            "Plugin %r: %s is switched off for %.0f s after %d faults in a row (--plugin-max-faults); the last: %s",
            *(plugin, name, REST_S, count, what),
        )

    def is_off(self, plugin: str, function: str) -> bool:
        """Whether a function is switched off."""
        tally = self._tallies.get(plugin)
        return tally is not None and function in tally.off

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors, seconds and the functions that are off, by plugin name."""
        with self._lock:
            return [
                {
                    "plugin": name,
                    "calls": t.calls,
                    "errors": t.errors,
                    "seconds": round(t.seconds, 6),
                    "off": sorted(t.off),
                }
                for name, t in sorted(self._tallies.items())
            ]

    def _new(self, plugin: str) -> _Tally:
        with self._lock:
            return self._tallies.setdefault(plugin, _Tally())

    def _add(self, tally: _Tally, begin: float) -> None:
        with self._lock:
            tally.calls += 1
            tally.seconds += self._clock() - begin

    def _refuse(self, plugin: str, tally: _Tally, name: str) -> None:
        """Raise PluginOff while a function rests. When its time is over one call is tried, and the others wait on."""
        with self._lock:
            until = tally.off.get(name)
            if until is None:
                return
            if self._clock() >= until:
                tally.off[name] = self._clock() + REST_S
                return
        raise PluginOff(
            f"Plugin {plugin!r} is switched off: {name} failed {tally.in_a_row.get(name, 0)} times in a row. It is "
            f"tried again within {REST_S:.0f} seconds."
        )

    def _recovered(self, plugin: str, tally: _Tally, name: str) -> None:
        with self._lock:
            tally.in_a_row.pop(name, None)
            was_off = tally.off.pop(name, None) is not None
        if was_off:
            log.warning("Plugin %r: %s works again", plugin, name)


def _name(function: Callable[..., Any]) -> str:
    """What a function is called in messages: `Processor.apply`."""
    if isinstance(function, partial):
        return _name(function.func)
    named = getattr(function, "__qualname__", None) or getattr(function, "name", None)  # a hook's caller has a name
    return str(named or type(function).__qualname__)


def call_plugin(registry: Registry, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
    """`registry.counter.call`, also for a registry made by hand that counts nothing."""
    counter = registry.counter if registry.counter is not None else CallCounter()
    return counter.call(plugin, function, *args)


def plugin_fault(
    registry: Registry, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str
) -> PluginFailed:
    """`registry.counter.fault`, also for a registry made by hand that counts nothing."""
    counter = registry.counter if registry.counter is not None else CallCounter()
    return counter.fault(plugin, function, error)


def plugin_behind(registry: Registry, error: BaseException) -> str | None:
    """Name of the plugin in whose code an exception was raised, None if no plugin's was on the way.

    For what runs where calls are not counted: operations and parts of a model, in a step.
    """
    modules: list[str] = []
    frame = error.__traceback__
    while frame is not None:
        modules.append(str(frame.tb_frame.f_globals.get("__name__", "")))
        frame = frame.tb_next
    return next((plugin for module in reversed(modules) if (plugin := _owner(registry.plugins, module))), None)


@contextmanager
def naming_plugin(registry: Registry, doing: str) -> Iterator[None]:
    """Raise PluginError that names the plugin for what its code raises inside, while the host does `doing`."""
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
    """What the requests of a step that raised are given: which model it was and, if a plugin's code did it, which."""
    what = f"The model `{model}` failed in a step: {type(error).__name__}: {error}"
    plugin = plugin_behind(registry, error)
    if plugin is None:
        return QuireError(what)
    plugin_fault(registry, plugin, None, error)
    return PluginFailed(f"{what}. Plugin {plugin!r} raised it.")


def _owner(plugins: Iterable[PluginInfo], module: str) -> str | None:
    """The plugin whose module this is, or lies in; else the one plugin whose package it shares."""
    inside = [p for p in plugins if module == p.module or module.startswith(p.module + ".")]
    if inside:
        return max(inside, key=lambda p: len(p.module)).name
    package = [p for p in plugins if p.module.split(".")[0] == module.split(".", maxsplit=1)[0]]
    return package[0].name if len(package) == 1 else None
