"""Which plugins are installed, and which of them to load: entry points only.

Nothing here imports a plugin, so a broken or heavy one costs nothing until it is chosen.

Group `quire` holds every plugin by name. Two more groups name some of our own distribution's, and only those:
`quire.essential` what loads whatever the user asked for, `quire.adapters` what `enable_lora` adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from quire.errors import PluginError
from quire.near_names import near_name

GROUP = "quire"
DISTRIBUTION = "quire-serve"
"""Our own distribution: its plugins are the bundled set."""


class Installed(NamedTuple):
    """A plugin that could be loaded. `module` is where its code lies."""

    name: str
    distribution: str
    version: str
    module: str


def installed(group: str = GROUP) -> list[Installed]:
    """Every plugin there is, by name, bundled ones first. Imports none of them."""
    points = sorted(entry_points(group=group), key=lambda p: (not is_bundled(p), p.name))
    return [Installed(p.name, distribution_of(p), version_of(p), p.module) for p in points]


def distribution_of(point: EntryPoint) -> str:
    """Name of the distribution that declares an entry point."""
    return point.dist.name if point.dist else "?"


def version_of(point: EntryPoint) -> str:
    """Version of the distribution that declares an entry point."""
    return point.dist.version if point.dist else "?"


def is_bundled(point: EntryPoint) -> bool:
    """Whether a plugin comes with Quire itself."""
    return distribution_of(point) == DISTRIBUTION


def choose(names: Sequence[str] | None, enable_lora: bool = False, group: str = GROUP) -> list[EntryPoint]:
    """The entry points to load, in order: essential ones, then those asked for, each once.

    names: an allow-list; None means the bundled set, without adapter runtimes; with a `+` before the first name, the
    bundled set and these. enable_lora: adapter runtimes too, whatever is allowed. Raises PluginError for a name that is
    not installed or that two distributions claim, and for a `+` that stands only before a later name.
    """
    points = list(entry_points(group=group))
    adapters = adapter_plugins(group)
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
    return [_find(points, name) for name in dict.fromkeys([*essential(group), *asked])]


def essential(group: str = GROUP) -> list[str]:
    """Names of the plugins that load whatever the user asked for, and that are never switched off."""
    return _ours(f"{group}.essential")


def plugin_names(text: str) -> list[str]:
    """The names in `a,b` or `+a,b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def adds_to_bundled(names: Sequence[str] | None) -> bool:
    """Whether these names are loaded beside the bundled set: none are given, or the first has a `+`.

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
    """Names of the bundled plugins that `enable_lora` adds."""
    return _ours(f"{group}.adapters")


def _ours(group: str) -> list[str]:
    """The names of our own distribution in another group, sorted."""
    return sorted(point.name for point in entry_points(group=group) if is_bundled(point))


def _find(points: Iterable[EntryPoint], name: str) -> EntryPoint:
    found = [p for p in points if p.name == name]
    if not found:
        raise PluginError(_unknown(name, sorted({p.name for p in points})))
    if len(found) > 1:
        owners = " and ".join(sorted(distribution_of(p) for p in found))
        raise PluginError(f"Plugin {name!r} is claimed by two distributions, {owners}; uninstall one of them.")
    return found[0]


def _unknown(name: str, known: Sequence[str]) -> str:
    there_are = f"Installed plugins: {', '.join(known)}." if known else "No plugins are installed."
    return f"There is no plugin {name!r}.{suggestion(name, known)} {there_are}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known name closest to a misspelt one; empty if none is close."""
    near = near_name(name, known)
    return f" Did you mean {near!r}?" if near else ""
