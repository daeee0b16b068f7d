"""Policy: the scheduling policy that was chosen, with its faults named and counted.

A policy only orders: what it fails at is done in order of arrival, and one that only fails is asked no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.counting import CallCounter, call_plugin
from quire.errors import ConfigError, PluginFailed, PluginOff
from quire.records import Context, CountsCalls, OrdersSeqs, Registry, SchedulerPolicy, SeqView

POLICIES = "quire_scheduler_policies"

ORDER = "the order of keys"
"""What stands for a function in the count of keys that cannot be compared."""


class Policy:
    """An `OrdersSeqs` that raises nothing but PluginFailed. off: it failed too often, and all keys are None from now
    on: order of arrival."""

    def __init__(self, registry: Registry, plugin: str, built: OrdersSeqs) -> None:
        self._counter: CountsCalls = registry.counter if registry.counter is not None else CallCounter()
        self._plugin, self._built = plugin, built
        self.off = False

    @classmethod
    def of(cls, policy: OrdersSeqs) -> Policy:
        """The same one, or one made of a policy that no plugin brought."""
        return policy if isinstance(policy, cls) else cls(Registry(), type(policy).__name__, policy)

    def admit_key(self, seq: SeqView) -> Any:
        """See `OrdersSeqs`. Raises PluginFailed."""
        return self._key(self._built.admit_key, seq)

    def victim_key(self, seq: SeqView) -> Any:
        """See `OrdersSeqs`; the arrival if it is off. Raises PluginFailed."""
        key = self._key(self._built.victim_key, seq)
        return seq.arrival if self.off else key

    def fault(self, error: Exception) -> PluginFailed:
        """Keys could not be compared, or a comparison raised."""
        fault = self._counter.fault(self._plugin, ORDER, error)
        self.off = self.off or self._counter.is_off(self._plugin, ORDER)
        return fault

    def _key(self, function: Any, seq: SeqView) -> Any:
        if self.off:
            return None
        try:
            return self._counter.call(self._plugin, function, seq)
        except PluginOff:
            self.off = True
            return None


def choose_policy(registry: Registry, name: str, context: Callable[[str], Context]) -> Policy:
    """The policy of that name, built. context: for a plugin. Raises ConfigError if no plugin brings it."""
    known = registry.of(POLICIES)
    if name not in known:
        choices = ", ".join(known) or "none, because no loaded plugin brings one"
        raise ConfigError(f"--scheduling-policy must be one of {choices}; got {name!r}.")
    record: SchedulerPolicy = known[name]
    plugin = registry.plugin_of(POLICIES, name)
    policy: OrdersSeqs = call_plugin(registry, plugin, record.build, context(plugin))
    return Policy(registry, plugin, policy)
