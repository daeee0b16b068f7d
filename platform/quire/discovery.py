"""Which plugins are installed, and which of them to load: entry points only.

Nothing here imports a plugin, so a broken or heavy one costs nothing until it is chosen.

Group `quire` holds every plugin by name. Two more groups name some of our own distribution's, and only those:
`quire.essential` what loads whatever the user asked for, `quire.adapters` what `enable_lora` adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from quire.errors import PluginError

GROUP = "quire"
DISTRIBUTION = "quire"
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


def bundled_with(hook: str, group: str = GROUP) -> list[str]:
    """Names of the bundled plugins that implement a hook, by name; their code is read, and not run."""
    points = filter(is_bundled, entry_points(group=group))
    return sorted({p.name for p in points if f"def {hook}(" in _source(p.module)})


def _source(module: str) -> str:
    """The code of one of our own modules; empty if there is none to read."""
    spec = find_spec(module)
    return Path(spec.origin).read_text() if spec is not None and spec.origin is not None else ""


def is_bundled(point: EntryPoint) -> bool:
    """Whether a plugin comes with Quire itself."""
    return distribution_of(point) == DISTRIBUTION


def choose(names: Sequence[str] | None, enable_lora: bool = False, group: str = GROUP) -> list[EntryPoint]:
    """The entry points to load, in order: essential ones, then those asked for, each once.

    names: an allow-list; None means the bundled set, without adapter runtimes. enable_lora: those too, whatever is
    allowed. Raises PluginError for a name that is not installed or that two distributions claim.
    """
    points = list(entry_points(group=group))
    adapters = _ours(f"{group}.adapters")
    if names is None:
        asked = [p.name for p in points if is_bundled(p) and p.name not in adapters]
        points = [p for p in points if is_bundled(p)]
    else:
        asked = [name.strip() for name in names if name.strip()]
    if enable_lora:
        asked += adapters
    return [_find(points, name) for name in dict.fromkeys([*essential(group), *asked])]


def essential(group: str = GROUP) -> list[str]:
    """Names of the plugins that load whatever the user asked for, and that are never switched off."""
    return _ours(f"{group}.essential")


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
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
