"""Chooses the architecture of a model by the names in its config.json and `--model-impl`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from quire.errors import CheckpointError, ConfigError, PluginError, QuireError, UnknownArchitecture
from quire.records import Architecture, ArchitectureFallback, ArchitectureQuery, Registry

NATIVE, FALLBACKS = "quire_architectures", "quire_architecture_fallbacks"
"""Hooks that bring architectures, and fallbacks."""

ONLY_NATIVE = ("quire", "vllm")
"""Values of `--model-impl` for architectures of plugins; the second is what vLLM calls its own models."""


@dataclass(frozen=True)
class ChosenArchitecture:
    """An architecture, and the plugin that brings it. is_fallback: a fallback found it."""

    architecture: Architecture
    plugin: str
    is_fallback: bool = False

    @property
    def fallback(self) -> str:
        """The plugin whose fallback found it, "" if it is a plugin's own."""
        return self.plugin if self.is_fallback else ""


def find_architecture(names: Sequence[str], registry: Registry) -> Architecture:
    """The first of config.json's `architectures` that a plugin has. Raises UnknownArchitecture."""
    known = registry.by_hook(NATIVE)
    for name in names:
        if name in known:
            found: Architecture = known[name]
            return found
    raise _unknown(names, registry, ())


def choose_architecture(setting: str, query: ArchitectureQuery, registry: Registry) -> ChosenArchitecture:
    """The architecture of a plugin, or that of a fallback, as the setting `--model-impl` says.

    Raises ConfigError for an unknown setting, UnknownArchitecture if nothing builds the model, CheckpointError if the
    fallback that the setting names cannot, and PluginError if a fallback fails.
    """
    fallbacks = registry.by_hook(FALLBACKS)
    if setting not in ("auto", *ONLY_NATIVE, *fallbacks):
        known = ", ".join(("auto", ONLY_NATIVE[0], *fallbacks))
        raise ConfigError(f"--model-impl {setting}: there is no such fallback; it can be {known}.")
    if setting in fallbacks:
        return _ask(fallbacks[setting], query, registry)
    if any(name in registry.by_hook(NATIVE) for name in query.names):
        native = find_architecture(query.names, registry)
        return ChosenArchitecture(native, registry.plugin_of(NATIVE, native.name))
    refusals = []
    for fallback in () if setting in ONLY_NATIVE else fallbacks.values():
        try:
            return _ask(fallback, query, registry)
        except CheckpointError as error:
            refusals.append(error.message)
    raise _unknown(query.names, registry, refusals)


def _ask(fallback: ArchitectureFallback, query: ArchitectureQuery, registry: Registry) -> ChosenArchitecture:
    plugin = registry.plugin_of(FALLBACKS, fallback.name)
    try:
        found = fallback.find(query)
    except (QuireError, KeyboardInterrupt):
        raise
    except BaseException as error:  # plugin code may raise anything
        raise PluginError(
            f"Plugin {plugin!r} could not look for {', '.join(query.names)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Architecture):
        raise PluginError(f"Plugin {plugin!r}: the fallback {fallback.name!r} returned {found!r:.80}, no Architecture.")
    return ChosenArchitecture(found, plugin, is_fallback=True)


def _unknown(names: Sequence[str], registry: Registry, refusals: Sequence[str]) -> UnknownArchitecture:
    known = list(registry.by_hook(NATIVE))
    sentences = [f"No loaded plugin can build {', '.join(names)}.", *refusals, *_registered(names, known)]
    return UnknownArchitecture(" ".join(sentences), ",".join(names))


def _registered(names: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """A sentence on what is registered: the names that resemble the wanted ones, or else some."""
    if not known:
        return
    near = list(dict.fromkeys(match for name in names for match in get_close_matches(name, known, 3, 0.7)))
    shown = f"the nearest are {', '.join(near)}" if near else f"such as {', '.join(known[:3])}"
    yield f"{len(known)} architectures are registered, {shown}."
