"""The scheduling policy that was chosen, with its faults named and counted.

A policy only orders. Where it fails, the order is that of arrival; a policy that keeps failing is not called any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.errors import ConfigError, PluginFailed, PluginOff
from quire.hooks.call_stats import PluginCallStats, call_plugin
from quire.records import Context, PluginCallCounts, Registry, SchedulerPolicy, SchedulingPolicyImpl, SeqView

POLICIES = "quire_scheduler_policies"

ORDER = "the order of keys"
"""Stands for a function in the count of keys that cannot be compared."""


class Policy:
    """A `SchedulingPolicyImpl` that raises only PluginFailed. off: it failed too often; all keys are None from then on,
    which means order of arrival."""

    def __init__(self, registry: Registry, plugin: str, built: SchedulingPolicyImpl) -> None:
        self._counter: PluginCallCounts = registry.counter if registry.counter is not None else PluginCallStats()
        self._plugin, self._built = plugin, built
        self.off = False

    @classmethod
    def from_impl(cls, policy: SchedulingPolicyImpl) -> Policy:
        """`policy` itself if it is a Policy, else one around an implementation that does not come from a plugin."""
        return policy if isinstance(policy, cls) else cls(Registry(), type(policy).__name__, policy)

    def admit_key(self, seq: SeqView) -> Any:
        """Sort key of a waiting seq, smallest first. Raises PluginFailed."""
        return self._key(self._built.admit_key, seq)

    def victim_key(self, seq: SeqView) -> Any:
        """Sort key of a running seq; the largest is preempted. Arrival if the policy is off. Raises PluginFailed."""
        key = self._key(self._built.victim_key, seq)
        return seq.arrival if self.off else key

    def fault(self, error: Exception) -> PluginFailed:
        """Count a comparison of keys that failed."""
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
    """Build the policy of that name. context: for a plugin. Raises ConfigError if no plugin provides it."""
    known = registry.by_hook(POLICIES)
    if name not in known:
        choices = ", ".join(known) or "none, because no loaded plugin provides one"
        raise ConfigError(f"--scheduling-policy must be one of {choices}; got {name!r}.")
    record: SchedulerPolicy = known[name]
    plugin = registry.plugin_of(POLICIES, name)
    policy: SchedulingPolicyImpl = call_plugin(registry, plugin, record.build, context(plugin))
    return Policy(registry, plugin, policy)
