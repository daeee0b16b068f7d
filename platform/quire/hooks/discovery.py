"""Finds installed plugins by their entry points, and selects those to load, without importing any.

The entry-point group `quire` has every plugin by name. Three more groups name plugins of Quire's own distribution:
`quire.essential` those that always load, `quire.adapters` those that `enable_lora` adds, and `quire.commands` those
with subcommands of `platform`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint, EntryPoints
from typing import NamedTuple, cast

from quire.errors import PluginError
from quire.settings.near_names import near_name

GROUP = "quire"
DISTRIBUTION = "quire-serve"
"""Quire's own distribution, whose plugins are the bundled set."""


class Installed(NamedTuple):
    """An installed plugin, and the module that contains its code."""

    name: str
    distribution: str
    version: str
    module: str


def installed(group: str = GROUP) -> list[Installed]:
    """All installed plugins, bundled ones first, then by name. Imports none of them."""
    points = sorted(entry_points().select(group=group), key=lambda p: (not is_bundled(p), p.name))
    return [Installed(p.name, distribution_of(p), version_of(p), p.module) for p in points]


def distribution_of(point: EntryPoint) -> str:
    """Name of the distribution that declares an entry point."""
    return _name_and_version(point.dist)[0] if point.dist else "?"


def version_of(point: EntryPoint) -> str:
    """Version of the distribution that declares an entry point."""
    return _name_and_version(point.dist)[1] if point.dist else "?"


@cache
def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Read once for each distribution object: its metadata includes its description, which takes long to parse."""
    found = distribution.metadata
    return found["Name"], found["Version"]


def is_bundled(point: EntryPoint) -> bool:
    """Whether a plugin belongs to Quire's own distribution."""
    return distribution_of(point) == DISTRIBUTION


def choose(
    names: Sequence[str] | None,
    enable_lora: bool = False,
    group: str = GROUP,
    declared: EntryPoints | None = None,
) -> list[EntryPoint]:
    """The entry points to load, in order: essential plugins, then the selected ones, each once.

    names: an allow-list; None = the bundled set without adapter runtimes; with `+` before the first name, the bundled
    set and these. enable_lora: adapter runtimes too, even if the allow-list lacks them. declared: all entry points,
    None = as installed now. Raises PluginError for a name that is not installed or that two distributions have, and for
    a `+` before a later name only.
    """
    declared = entry_points() if declared is None else declared
    points = list(declared.select(group=group))
    adapters = _ours(f"{group}.adapters", declared)
    bundled = [p.name for p in points if is_bundled(p) and p.name not in adapters]
    if names is None:
        asked = bundled
        points = [p for p in points if is_bundled(p)]
    else:
        asked = [name.strip() for name in names if name.strip()]
        if adds_to_bundled(asked):
            asked = [*bundled, *(name.removeprefix("+").strip() for name in asked)]
    if enable_lora:
        asked += adapters
    return [_find(points, name) for name in dict.fromkeys([*_ours(f"{group}.essential", declared), *asked])]


def essential(group: str, declared: EntryPoints) -> list[str]:
    """Names of the plugins that always load, and that are never switched off."""
    return _ours(f"{group}.essential", declared)


def plugin_names(text: str) -> list[str]:
    """The names in `a,b` or `+a,b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def adds_to_bundled(names: Sequence[str] | None) -> bool:
    """Whether the names add to the bundled set: names is None, or the first name has a `+`.

    Raises PluginError if only a later one has it.
    """
    if not names:
        return names is None
    if not names[0].startswith("+") and any(name.startswith("+") for name in names):
        raise PluginError(
            f"--plugins {','.join(names)}: begin the list with + to load these beside the bundled plugins, "
            "or leave every + out to load these alone."
        )
    return names[0].startswith("+")


def adapter_plugins(group: str = GROUP) -> list[str]:
    """Names of the plugins that `enable_lora` adds."""
    return _ours(f"{group}.adapters", entry_points())


def command_plugins(group: str = GROUP) -> list[EntryPoint]:
    """The bundled plugins that have subcommands, which `platform --help` lists without loading the others."""
    points = entry_points().select(group=f"{group}.commands")
    return sorted((point for point in points if is_bundled(point)), key=lambda point: point.name)


def entry_points() -> EntryPoints:
    """The entry points of every installed distribution, whose metadata is read; Python 3.11 has another type for it."""
    return cast(EntryPoints, metadata.entry_points())


def _ours(group: str, declared: EntryPoints) -> list[str]:
    """Names of Quire's own plugins in another group, sorted."""
    return sorted(point.name for point in declared.select(group=group) if is_bundled(point))


def _find(points: Iterable[EntryPoint], name: str) -> EntryPoint:
    found = [p for p in points if p.name == name]
    if not found:
        raise PluginError(_unknown(name, sorted({p.name for p in points})))
    if len(found) > 1:
        owners = " and ".join(sorted(distribution_of(p) for p in found))
        raise PluginError(f"Plugin {name!r} is provided by two distributions, {owners}; uninstall one of them.")
    return found[0]


def _unknown(name: str, known: Sequence[str]) -> str:
    listed = f"Installed plugins: {', '.join(known)}." if known else "No plugins are installed."
    return f"There is no plugin {name!r}.{suggestion(name, known)} {listed}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name closest to a misspelt one, "" if none is close."""
    near = near_name(name, known)
    return f" Did you mean {near!r}?" if near else ""
