"""What the installed quantizations can do, for error messages and checks."""

from __future__ import annotations

from quire.errors import ConfigError
from quire.hooks.call_stats import call_plugin
from quire.records import OpQuery, Quantization, Registry


def listed(registry: Registry, ability: str) -> str:
    """The names of quantizations that can do something: `linear` or `checkpoint`."""
    known = registry.by_hook("quire_quantizations").items()
    names = sorted(name for name, record in known if getattr(record, ability) is not None)
    return ", ".join(names) or "none, because no loaded plugin provides one"


def check_device(quantization: Quantization, registry: Registry, query: OpQuery, subject: str) -> None:
    """Raise ConfigError, beginning with `subject`, if the device cannot compute a quantization."""
    plugin = registry.plugin_of("quire_quantizations", quantization.name)
    reason = call_plugin(registry, plugin, quantization.supports, query)
    if reason is not None:
        raise ConfigError(f"{subject} cannot run in {query.dtype} on {query.device}: {reason}.")
