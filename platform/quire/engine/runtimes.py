"""Runtimes: the kinds of adapter that plugins bring, each attached to one model.

Several may be attached: each sees the model without the others' deltas, and a module that more than one
changes applies them one after another, each with what its own runtime bound. It knows no kind and no adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from quire.counting import call_plugin
from quire.errors import BadRequest, QuireError
from quire.records import Context, Registry, RunsAdapters
from quire_models.projection import ProjectionDelta, changeable

log = logging.getLogger(__name__)

HOOK = "quire_adapter_runtimes"


@dataclass(frozen=True, eq=False)
class Runtime:
    """One runtime, built. lane: its number among those attached."""

    registry: Registry
    plugin: str
    kinds: frozenset[str]
    built: RunsAdapters
    lane: int

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call one of its methods; raises what is the user's fault as it is, and else PluginFailed."""
        return call_plugin(self.registry, self.plugin, function, *args)

    def tell(self, function: Callable[[Any], None], loaded: Any) -> None:
        """Tell it what it cannot refuse; nobody's request is at stake if it fails."""
        try:
            self.call(function, loaded)
        except QuireError:
            log.exception("The adapter runtime of plugin %s failed; going on", self.plugin)


class Runtimes:
    """Those of one model, attached to it."""

    def __init__(self, registry: Registry, context: Callable[[str], Context], model: nn.Module) -> None:
        self._all: list[Runtime] = []
        for name, record in registry.of(HOOK).items():
            plugin = registry.plugin_of(HOOK, name)
            built: RunsAdapters = call_plugin(registry, plugin, record.build, context(plugin))
            self._all.append(Runtime(registry, plugin, record.kinds, built, len(self._all)))
        _attach(model, self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of_kind(self, kind: str) -> Runtime:
        """The one that runs this `peft_type`. Raises BadRequest when there is none."""
        for runtime in self._all:
            if kind in runtime.kinds:
                return runtime
        known = ", ".join(sorted({kind for runtime in self._all for kind in runtime.kinds})) or "none"
        raise BadRequest(f"No loaded plugin runs adapters of type {kind!r:.60}; types that can be run: {known}.")

    def merged(self, bound: Mapping[int, Any]) -> Any:
        """What `Forward.adapters` carries, of what runtimes bound by lane; None where no adapter is at work."""
        if not bound:
            return None
        return bound[0] if len(self._all) == 1 else bound


@dataclass(frozen=True, eq=False)
class _Lanes:
    """The deltas of several runtimes on one module."""

    deltas: Sequence[tuple[int, ProjectionDelta]]

    def __call__(self, y: Tensor, x: Any, adapters: Mapping[int, Any]) -> Tensor:
        """See `ProjectionDelta`. adapters: what was bound, by lane."""
        for lane, delta in self.deltas:
            if lane in adapters:
                y = delta(y, x, adapters[lane])
        return y


def _attach(model: nn.Module, runtimes: Sequence[Runtime]) -> None:
    if len(runtimes) == 1:
        runtimes[0].call(runtimes[0].built.attach, model)
        return
    modules: list[Any] = list(changeable(model).values())
    deltas: list[list[tuple[int, ProjectionDelta]]] = [[] for _ in modules]
    for runtime in runtimes:
        runtime.call(runtime.built.attach, model)
        for module, found in zip(modules, deltas, strict=True):
            if module.delta is not None:
                found.append((runtime.lane, module.delta))
                del module.delta  # it may have become a submodule, which only deleting undoes
                module.delta = None
    for module, found in zip(modules, deltas, strict=True):
        if found:
            module.delta = _Lanes(found)
