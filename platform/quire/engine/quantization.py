"""Which quantization a model is loaded with. What one does is its plugin's affair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.counting import call_plugin
from quire.errors import ConfigError, PluginError
from quire.records import OpQuery, Quantization, Registry

if TYPE_CHECKING:
    from quire_kernels.ops import Linear
    from quire_kernels.select import Ops


def choose_linear(name: str | None, registry: Registry, query: OpQuery, ops: Ops) -> Linear | None:
    """What binds the matrices that `--quantization name` quantises; None where none is asked for.

    Raises ConfigError for a name that no plugin brings, and for one that cannot run there.
    """
    if name is None:
        return None
    known = registry.of("quire_quantizations")
    if name not in known:
        listed = ", ".join(sorted(known)) or "none, because no loaded plugin brings one"
        raise ConfigError(f"--quantization {name}: there is no such quantization. Installed: {listed}.")
    quantization: Quantization = known[name]
    plugin = registry.plugin_of("quire_quantizations", name)
    reason = call_plugin(registry, plugin, quantization.supports, query)
    if reason is not None:
        raise ConfigError(f"--quantization {name} cannot run in {query.dtype} on {query.device}: {reason}.")
    linear: Linear = call_plugin(registry, plugin, quantization.linear, ops)
    if not callable(linear):
        raise PluginError(f"Plugin {plugin!r}: `linear` of the quantization {name!r} gave {linear!r:.80}, no function.")
    return linear
