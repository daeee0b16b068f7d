"""Advice for error messages: which installed plugin that is not loaded has the missing thing, and how to enable it.

Only Quire's own plugins are imported for this; those of other distributions are listed without running their code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from quire.errors import UnknownArchitecture
from quire.hooks.discovery import DISTRIBUTION, Installed, installed
from quire.hooks.registry import load
from quire.records import DemoModel, Registry


@cache
def _bundled() -> Registry:
    return load()


def plugins_off(registry: Registry) -> list[Installed]:
    """Installed plugins that are not loaded, except adapter runtimes, which have a flag of their own."""
    loaded, bundled = {info.name for info in registry.plugins}, {info.name for info in _bundled().plugins}
    candidates = [p for p in installed() if p.name in bundled or p.distribution != DISTRIBUTION]
    return [plugin for plugin in candidates if plugin.name not in loaded]


def how_to_enable(registry: Registry, hook: str, fits: Callable[[Any], bool]) -> str:
    """A sentence that names a plugin with a fitting record of `hook`, or plugins that may have one, and the flag."""
    off = plugins_off(registry)
    names = [plugin.name for plugin in off]
    for record in _bundled().all(hook):
        plugin = _bundled().plugin_of(hook, record.name)
        if fits(record) and plugin in names:
            loaded = ",".join(info.name for info in registry.plugins)
            return (
                f"The installed plugin {plugin!r} does, but is not enabled: add it, as in --plugins {loaded},{plugin}."
            )
    others = [plugin.name for plugin in off if plugin.distribution != DISTRIBUTION]
    if others:
        return (
            f"These plugins are installed, but not enabled: {', '.join(others)}. To enable one beside the bundled "
            f"plugins: --plugins +{others[0]}."
        )
    return "No installed plugin does; `platform plugins` lists them, and docs/hooks.md says how to write one."


def with_advice(error: UnknownArchitecture, registry: Registry) -> UnknownArchitecture:
    """The error with advice appended. Its `param` lists the architectures, separated by commas."""
    names = (error.param or "").split(",")
    advice = how_to_enable(registry, "quire_architectures", lambda record: record.name in names)
    return UnknownArchitecture(f"{error.message} {advice}")


def demos_off(registry: Registry) -> Iterable[tuple[str, str]]:
    """(demo, plugin) for each demo of a bundled plugin that is not loaded."""
    off = {plugin.name for plugin in plugins_off(registry)}
    demos: Iterable[DemoModel] = _bundled().all("quire_demo_models")
    for demo in demos:
        plugin = _bundled().plugin_of("quire_demo_models", demo.name)
        if plugin in off:
            yield demo.name, plugin
