"""Loads plugins into a `Registry`. A plugin that was named and cannot be loaded stops the start.

Each `load` has its own pluggy manager, so registries are independent. A registry does not depend on pluggy: it has
frozen dicts of records, and plain callables for question and event hooks.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from quire.errors import PluginError
from quire.hooks import hookspecs
from quire.hooks.call_stats import MAX_FAULTS, PluginCallStats
from quire.hooks.calls import Caller, FirstResultHook, NotifyHook
from quire.hooks.discovery import (
    GROUP,
    Installed,
    choose,
    distribution_of,
    entry_points,
    essential,
    installed,
    suggestion,
    version_of,
)
from quire.hooks.plugin_options import Values, fill
from quire.records import CONTRACT_VERSION, RECORDS, Option, PluginInfo, Registry

__all__ = ["PluginCallStats", "Installed", "installed", "listing", "load", "with_max_faults", "with_options"]

HOOKS = frozenset(name for name in vars(hookspecs) if name.startswith("quire_"))
"""The names of all hooks in `quire.hooks.hookspecs`."""


def load(
    plugins: Sequence[str] | None = None,
    options: Values | None = None,
    enable_lora: bool = False,
    group: str = GROUP,
    trace: bool = False,
    max_faults: int = MAX_FAULTS,
) -> Registry:
    """Import the named plugins and collect their records.

    plugins, enable_lora: as in `quire.hooks.discovery.choose`. options: {plugin: {name: value}}; a value is text or of
    the declared type. trace: print every hook call. max_faults: as in `PluginCallStats`.
    Raises PluginError for a plugin that is unknown, broken, of another contract version, or in conflict with another
    plugin; ConfigError for an invalid option.
    """
    manager = _new_manager(trace)
    declared = entry_points()
    infos = [_register(manager, point) for point in choose(plugins, enable_lora, group, declared)]
    records, origin = _collect(manager)
    counter = PluginCallStats(max_faults, essential(group, declared))
    registry = Registry(
        records=MappingProxyType({hook: MappingProxyType(found) for hook, found in records.items()}),
        origin=MappingProxyType(origin),
        plugins=_described(infos, origin),
        resolve_adapter=FirstResultHook("quire_resolve_adapter", _callers(manager, "quire_resolve_adapter"), counter),
        engine_started=_notify_hook(manager, counter, "quire_engine_started", "info"),
        engine_stopping=_notify_hook(manager, counter, "quire_engine_stopping", "info"),
        request_finished=_notify_hook(manager, counter, "quire_request_finished", "summary"),
        usage_recorded=_notify_hook(manager, counter, "quire_usage_recorded", "records"),
        counter=counter,
    )
    return with_options(registry, options or {})


def with_max_faults(registry: Registry, max_faults: int) -> Registry:
    """A copy with new call statistics, which switches functions off after `max_faults` faults in a row."""
    counter = PluginCallStats(max_faults, essential(GROUP, entry_points()))
    return _rebound(replace(registry, counter=counter), counter=counter)


def with_options(registry: Registry, options: Values) -> Registry:
    """A copy with other option values, given as to `load`; no plugin is loaded again."""
    declared: dict[str, dict[str, Option]] = {info.name: {} for info in registry.plugins}
    for key, option in registry.by_hook("quire_options").items():
        declared[registry.plugin_of("quire_options", key)][option.name] = option
    values = MappingProxyType(fill(declared, options))
    return _rebound(replace(registry, options=values), options=values)


def _rebound(registry: Registry, **changes: Any) -> Registry:
    """A copy whose question and event hooks have other options or another counter. Plain functions stay unchanged."""

    def rebound(call: Callable[..., Any]) -> Callable[..., Any]:
        return replace(call, **changes) if isinstance(call, FirstResultHook | NotifyHook) else call

    return replace(
        registry,
        resolve_adapter=rebound(registry.resolve_adapter),
        engine_started=rebound(registry.engine_started),
        engine_stopping=rebound(registry.engine_stopping),
        request_finished=rebound(registry.request_finished),
        usage_recorded=rebound(registry.usage_recorded),
    )


def listing(registry: Registry, group: str = GROUP) -> list[PluginInfo]:
    """The loaded plugins, then the installed ones that are not enabled, which are not imported."""
    loaded = {info.name for info in registry.plugins}
    rest = [
        PluginInfo(p.name, p.module, p.distribution, p.version, hooks=(), records={}, enabled=False)
        for p in installed(group)
        if p.name not in loaded
    ]
    return [*registry.plugins, *rest]


# --- one plugin ------------------------------------------------------------------------------------


class _Manager(pluggy.PluginManager):
    """Looks for hooks among the functions of a module only, as pluggy does after a slower look at each of its names."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """The options of a hook's implementation, None for any other name of the plugin."""
        if isinstance(plugin, ModuleType) and not inspect.isroutine(vars(plugin).get(name)):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _new_manager(trace: bool) -> pluggy.PluginManager:
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    if trace:
        manager.add_hookcall_monitoring(_print_call, _print_result)
    return manager


def _print_call(hook: str, impls: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    arguments = ", ".join(f"{name}={value!r:.60}" for name, value in kwargs.items())
    called = ", ".join(impl.plugin_name for impl in reversed(impls))
    print(f"hook {hook}({arguments}) -> {called or 'no plugin'}", file=sys.stderr)


def _print_result(outcome: Any, hook: str, impls: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if outcome.exception is not None:
        print(f"hook {hook} raised {outcome.exception!r}", file=sys.stderr)


def _register(manager: pluggy.PluginManager, point: EntryPoint) -> PluginInfo:
    name = point.name
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:  # importing third-party code may raise anything
        raise PluginError(f"Plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    _check_contract(name, plugin)
    try:
        manager.register(plugin, name=name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"Plugin {name!r} has a hook of the wrong form: {error}") from error
    except ValueError as error:
        raise PluginError(f"Plugin {name!r} is the same object as another plugin: {error}") from error
    hooks = _check_hooks(manager, name, plugin)
    return PluginInfo(name, point.module, distribution_of(point), version_of(point), hooks, records={})


def _check_contract(name: str, plugin: Any) -> None:
    needs = getattr(plugin, "quire_contract", CONTRACT_VERSION)
    if not (isinstance(needs, tuple) and len(needs) == 2 and all(isinstance(n, int) for n in needs)):
        raise PluginError(f"Plugin {name!r}: quire_contract must be a pair like {CONTRACT_VERSION}; got {needs!r}.")
    major, minor = CONTRACT_VERSION
    if needs[0] != major or needs[1] > minor:
        raise PluginError(
            f"Plugin {name!r} needs version {needs[0]}.{needs[1]} of the plugin contract; "
            f"this Quire offers {major}.{minor}. Install a fitting version of one of them."
        )


def _check_hooks(manager: pluggy.PluginManager, name: str, plugin: Any) -> tuple[str, ...]:
    """Names of the hooks that a plugin implements, sorted. Raises PluginError for one that would never run."""
    callers = manager.get_hookcallers(plugin) or []
    for caller in callers:
        impl = next(impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
        if not caller.has_spec() and not impl.optionalhook:
            hint = suggestion(caller.name, HOOKS)
            raise PluginError(f"Plugin {name!r} implements {caller.name!r}, which is no hook.{hint}")
        if impl.wrapper or impl.hookwrapper or inspect.iscoroutinefunction(impl.function):
            raise PluginError(f"Plugin {name!r}: {caller.name} must be a plain function, not a wrapper or async.")
    found = {caller.name for caller in callers if caller.has_spec()}
    for hook in HOOKS - found:
        if callable(getattr(plugin, hook, None)):
            raise PluginError(f"Plugin {name!r} defines {hook} without @hookimpl, so it would never be called.")
    return tuple(sorted(found))


# --- nouns -----------------------------------------------------------------------------------------

_UNIQUE_BY: Mapping[str, Callable[[Any], str]] = {
    "quire_input_mappers": lambda record: f"{record.modality} of {record.architecture}",
    "quire_transcribers": lambda record: str(record.architecture),
}
"""Hooks with at most one record per thing; by hook, a function from a record to its thing."""

Records = dict[str, dict[str, Any]]
Origin = dict[tuple[str, str], str]


def _collect(manager: pluggy.PluginManager) -> tuple[Records, Origin]:
    records: Records = {hook: {} for hook in RECORDS}
    origin: Origin = {}
    for name, plugin in manager.list_name_plugin():
        implemented = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
        for hook in (hook for hook in RECORDS if hook in implemented):
            for record in _records_of(manager, name, plugin, hook):
                key = f"{name}.{record.name}" if hook == "quire_options" else record.name
                if key in records[hook]:
                    other = origin[hook, key]
                    replaces = (getattr(record, "replaces", None), getattr(records[hook][key], "replaces", None))
                    if (replaces[0] == other) == (replaces[1] == name):  # neither replaces the other, or both do
                        raise PluginError(_clash(hook, f"{key!r}", other, name))
                    if replaces[1] == name:
                        continue
                records[hook][key] = record
                origin[hook, key] = name
    for hook, what in _UNIQUE_BY.items():
        _check_unique(records[hook], origin, hook, what)
    return records, origin


def _records_of(manager: pluggy.PluginManager, name: str, plugin: Any, hook: str) -> list[Any]:
    others = [other for other in manager.get_plugins() if other is not plugin]
    caller = manager.subset_hook_caller(hook, remove_plugins=others)
    try:
        given = [record for result in caller() for record in result]
    except (Exception, SystemExit) as error:  # third-party code may raise anything, and its records are needed
        raise PluginError(f"Plugin {name!r} failed in {hook}: {type(error).__name__}: {error}") from error
    kind: Any = RECORDS[hook]
    for record in given:
        if not isinstance(record, kind):
            raise PluginError(f"Plugin {name!r}: {hook} must yield {kind.__name__} records; got {record!r:.80}.")
        if not isinstance(record.name, str) or not record.name:
            raise PluginError(f"Plugin {name!r}: {hook} yielded a record without a name: {record!r:.80}.")
    return given


def _clash(hook: str, what: str, first: str, second: str) -> str:
    kind = RECORDS[hook].__name__
    if first == second:
        return f"Plugin {first!r} provides {kind} {what} twice."
    text = f"Plugins {first!r} and {second!r} both provide {kind} {what}; enable only one of them with --plugins."
    return text if kind != "Architecture" else f"{text[:-1]}, or name the plugin that one `replaces` in its record."


def _check_unique(records: Mapping[str, Any], origin: Origin, hook: str, what: Callable[[Any], str]) -> None:
    """Refuse two records for the same thing, since the choice would depend on load order. what: gives the thing."""
    taken: dict[str, str] = {}
    for record in records.values():
        plugin = origin[hook, record.name]
        if what(record) in taken:
            raise PluginError(_clash(hook, f"for {what(record)}", taken[what(record)], plugin))
        taken[what(record)] = plugin


def _described(infos: Sequence[PluginInfo], origin: Origin) -> tuple[PluginInfo, ...]:
    """With the names of each plugin's records."""
    records: dict[str, dict[str, tuple[str, ...]]] = {info.name: {} for info in infos}
    for (hook, key), plugin in origin.items():
        records[plugin][hook] = (*records[plugin].get(hook, ()), key.removeprefix(f"{plugin}."))
    return tuple(replace(info, records=records[info.name]) for info in infos)


# --- questions and events --------------------------------------------------------------------------


def _notify_hook(manager: pluggy.PluginManager, counter: PluginCallStats, hook: str, argument: str) -> NotifyHook:
    return NotifyHook(hook, argument, _callers(manager, hook), counter)


def _callers(manager: pluggy.PluginManager, hook: str) -> tuple[Caller, ...]:
    """(plugin, caller of its implementation only), in the order in which pluggy would call them."""
    plugins = manager.get_plugins()

    def alone(plugin: Any) -> Callable[..., Any]:
        return manager.subset_hook_caller(hook, remove_plugins=[other for other in plugins if other is not plugin])

    impls = reversed(manager.subset_hook_caller(hook, remove_plugins=()).get_hookimpls())
    return tuple((impl.plugin_name, alone(impl.plugin)) for impl in impls)
