"""The adapter runtimes that plugins bring, attached to one model.

Several may be attached. Each sees the model without the others' deltas. A module that more than one runtime changes
applies their deltas in turn, each with what its own runtime bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from quire.errors import BadRequest, QuireError
from quire.hooks.call_stats import call_plugin
from quire.records import AdapterRuntimeImpl, Context, Registry
from quire_models.modules.projection import ProjectionDelta, adaptable_modules

log = logging.getLogger(__name__)

HOOK = "quire_adapter_runtimes"


@dataclass(frozen=True, eq=False)
class AttachedRuntime:
    """One runtime, built and attached. runtime_index: its index among the runtimes of the model."""

    registry: Registry
    plugin: str
    peft_types: frozenset[str]
    built: AdapterRuntimeImpl
    runtime_index: int

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call one of its methods. Raises errors of the request as they are, and PluginFailed for all others."""
        return call_plugin(self.registry, self.plugin, function, *args)

    def notify(self, function: Callable[[Any], None], loaded: Any) -> None:
        """Call one of its methods that releases something. A failure is logged, since no request depends on it."""
        try:
            self.call(function, loaded)
        except QuireError:
            log.exception("The adapter runtime of plugin %s failed; going on", self.plugin)


class AttachedRuntimes:
    """All runtimes of one model."""

    def __init__(self, registry: Registry, context: Callable[[str], Context], model: nn.Module) -> None:
        self._all: list[AttachedRuntime] = []
        for name, record in registry.by_hook(HOOK).items():
            plugin = registry.plugin_of(HOOK, name)
            built: AdapterRuntimeImpl = call_plugin(registry, plugin, record.build, context(plugin))
            self._all.append(AttachedRuntime(registry, plugin, record.peft_types, built, len(self._all)))
        _attach(model, self._all)

    def __len__(self) -> int:
        return len(self._all)

    def at(self, runtime_index: int) -> AttachedRuntime:
        """A runtime by its index."""
        return self._all[runtime_index]

    def captured(self) -> tuple[int, Callable[[Any], Any]] | None:
        """The maximum rank of adapters in captured steps, and what makes `ForwardBatch.adapters` for these of
        `quire_kernels.low_rank.TokenSlots`; None if no runtime can run in captured steps.
        """
        for runtime in self._all:
            rank = getattr(runtime.built, "captured_rank", None)
            if rank is not None:
                return rank, lambda slots, index=runtime.runtime_index: self.merge({index: slots})
        return None

    def replace_built(self, wrap: Callable[[Any, int], Any]) -> None:
        """Put another implementation around each runtime; `wrap` gets it and its index."""
        self._all = [replace(each, built=wrap(each.built, each.runtime_index)) for each in self._all]

    def find(self, peft_type: str) -> AttachedRuntime:
        """The runtime for a `peft_type`. Raises BadRequest if there is none."""
        for runtime in self._all:
            if peft_type in runtime.peft_types:
                return runtime
        known = ", ".join(sorted({each for runtime in self._all for each in runtime.peft_types})) or "none"
        raise BadRequest(f"No loaded plugin runs adapters of type {peft_type!r:.60}; types that can be run: {known}.")

    def merge(self, bound: Mapping[int, Any]) -> Any:
        """`ForwardBatch.adapters`, from what each runtime bound, by runtime_index; None if no adapter is used.

        A model with one runtime gets what that runtime bound, without the mapping.
        """
        if not bound:
            return None
        return bound[0] if len(self._all) == 1 else bound


@dataclass(frozen=True, eq=False)
class _ChainedDeltas:
    """The deltas of several runtimes on one module, by runtime_index."""

    deltas: Sequence[tuple[int, ProjectionDelta]]

    def __call__(self, y: Tensor, x: Any, adapters: Mapping[int, Any]) -> Tensor:
        for runtime_index, delta in self.deltas:
            if runtime_index in adapters:
                y = delta(y, x, adapters[runtime_index])
        return y

    def is_empty(self, slot: int, runtime_index: int) -> bool:
        """Whether the adapter in a slot of a runtime is known to change nothing."""
        found = next((delta for index, delta in self.deltas if index == runtime_index), None)
        return found is None or (hasattr(found, "is_empty") and found.is_empty(slot))


def _attach(model: nn.Module, runtimes: Sequence[AttachedRuntime]) -> None:
    if len(runtimes) == 1:
        runtimes[0].call(runtimes[0].built.attach, model)
        return
    modules: list[Any] = list(adaptable_modules(model).values())
    deltas: list[list[tuple[int, ProjectionDelta]]] = [[] for _ in modules]
    for runtime in runtimes:
        runtime.call(runtime.built.attach, model)
        for module, found in zip(modules, deltas, strict=True):
            if module.delta is not None:
                found.append((runtime.runtime_index, module.delta))
                del module.delta  # a delta that is a module became a submodule; only deleting undoes that
                module.delta = None
    for module, found in zip(modules, deltas, strict=True):
        if found:
            module.delta = _ChainedDeltas(found)
