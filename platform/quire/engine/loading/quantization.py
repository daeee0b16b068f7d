"""Chooses the quantization that a model is loaded with; quantizations are provided by plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import ConfigError, PluginError
from quire.hooks.call_stats import call_plugin
from quire.records import OpQuery, Quantization, Registry

if TYPE_CHECKING:
    from quire_kernels.ops import LinearOp
    from quire_kernels.select import Ops


def choose_linear(name: str | None, registry: Registry, query: OpQuery, ops: Ops) -> LinearOp | None:
    """The linear op that quantizes weights for `--quantization name`; None without a name.

    Raises ConfigError if no plugin provides it or it cannot run on this device, and PluginError.
    """
    if name is None:
        return None
    known = registry.by_hook("quire_quantizations")
    if name not in known:
        listed = ", ".join(sorted(known)) or "none, because no loaded plugin provides one"
        raise ConfigError(f"--quantization {name}: there is no such quantization. Installed: {listed}.")
    quantization: Quantization = known[name]
    plugin = registry.plugin_of("quire_quantizations", name)
    reason = call_plugin(registry, plugin, quantization.supports, query)
    if reason is not None:
        raise ConfigError(f"--quantization {name} cannot run in {query.dtype} on {query.device}: {reason}.")
    linear: LinearOp = call_plugin(registry, plugin, quantization.linear, ops)
    if not callable(linear):
        raise PluginError(
            f"Plugin {plugin!r}: `linear` of the quantization {name!r} returned {linear!r:.80}, not a function."
        )
    return linear
