"""The routing policy that was chosen, with its faults named and counted. Where it fails, load alone decides."""

from __future__ import annotations

import logging

from quire.errors import ConfigError, QuireError
from quire.records import Context, Registry, RoutingCandidates, RoutingPolicy, RoutingPolicyImpl

log = logging.getLogger(__name__)

POLICIES = "quire_routing_policies"


class ChosenPolicy:
    """A `RoutingPolicyImpl` that always chooses one of the candidates."""

    def __init__(self, registry: Registry, name: str) -> None:
        """Build the policy of that name. Raises ConfigError if no plugin provides it, and PluginFailed."""
        record = check_policy(registry, name)
        self._plugin = registry.plugin_of(POLICIES, name)
        assert registry.counter is not None, "a registry of loaded plugins counts calls"
        self._counter = registry.counter
        context = Context(options=registry.options.get(self._plugin, {}))
        self._built: RoutingPolicyImpl = self._counter.call(self._plugin, record.build, context)

    def choose(self, candidates: RoutingCandidates) -> int:
        """The replica that the policy chooses, or the least loaded one if it fails."""
        try:
            replica: object = self._counter.call(self._plugin, self._built.choose, candidates)
            if isinstance(replica, int) and candidates.has(replica):
                return replica
            what = f"it chose {replica!r:.80}, which is no candidate"
            raise self._counter.fault(self._plugin, self._built.choose, what)
        except QuireError as error:
            log.error("The routing policy failed: %s", error)
            return candidates.least_loaded(1)[0]


def check_policy(registry: Registry, name: str) -> RoutingPolicy:
    """The policy of a name. Raises ConfigError if no plugin provides it."""
    known = registry.by_hook(POLICIES)
    if name not in known:
        choices = ", ".join(known) or "none, because no loaded plugin provides one"
        raise ConfigError(f"--data-parallel-routing must be one of {choices}; got {name!r}.")
    found: RoutingPolicy = known[name]
    return found
