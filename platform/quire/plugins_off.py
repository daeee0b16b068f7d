"""Plugins that are installed but were not loaded: which has what a message calls missing, and how to enable it.

Only plugins of our own distribution are imported for that; others are named as they are, without their code being run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from quire.discovery import DISTRIBUTION, Installed, installed
from quire.errors import UnknownArchitecture
from quire.records import DemoModel, Registry
from quire.registry import load


@cache
def _bundled() -> Registry:
    return load()


def plugins_off(registry: Registry) -> list[Installed]:
    """Installed plugins that are not loaded, without the adapter runtimes, which have a flag of their own."""
    loaded, usual = {info.name for info in registry.plugins}, {info.name for info in _bundled().plugins}
    candidates = [p for p in installed() if p.name in usual or p.distribution != DISTRIBUTION]
    return [plugin for plugin in candidates if plugin.name not in loaded]


def how_to_enable(registry: Registry, hook: str, fits: Callable[[Any], bool]) -> str:
    """A sentence: which plugin gives a record that fits under `hook`, or which might, and the flag to type."""
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
    """The same error, which also says what to do. Its `param` names the architectures, separated by commas."""
    wanted = (error.param or "").split(",")
    advice = how_to_enable(registry, "quire_architectures", lambda record: record.name in wanted)
    return UnknownArchitecture(f"{error.message} {advice}")


def demos_off(registry: Registry) -> Iterable[tuple[str, str]]:
    """(demo, plugin) for each demo of a bundled plugin that is not loaded."""
    off = {plugin.name for plugin in plugins_off(registry)}
    demos: Iterable[DemoModel] = _bundled().all("quire_demo_models")
    for demo in demos:
        plugin = _bundled().plugin_of("quire_demo_models", demo.name)
        if plugin in off:
            yield demo.name, plugin
