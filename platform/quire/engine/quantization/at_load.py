"""`--quantization`: quantizes the matrices of a model when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from quire.engine.quantization.methods import check_device, listed
from quire.errors import ConfigError, PluginError
from quire.hooks.call_stats import call_plugin
from quire.records import OpQuery, Quantization, QuantizationOptions, Registry
from quire.settings.model_config import ModelConfig

if TYPE_CHECKING:
    from quire_kernels.ops import LinearOp
    from quire_kernels.select import Ops
    from quire_models.loading.weight_names import WeightsMapper
    from quire_models.modules.blocks import DecoderModel

LinearAt = Callable[[str], "LinearOp"]
"""The linear op for the path of a matrix."""


def choose_linear(config: ModelConfig, registry: Registry, query: OpQuery, ops: Ops) -> LinearAt | None:
    """The linear op of `--quantization` for each path of a matrix in the model; None without the setting.

    Raises ConfigError if no plugin provides it or it cannot run on this device, and PluginError.
    """
    name = config.quantization
    if name is None:
        return None
    quantization: Quantization | None = registry.by_hook("quire_quantizations").get(name)
    if quantization is None:
        raise ConfigError(
            f"--quantization {name}: there is no such quantization. Installed: {listed(registry, 'linear')}."
        )
    if quantization.linear is None:
        raise ConfigError(
            f"--quantization {name}: the model's checkpoint is not quantized with {name}, and {name} cannot be applied "
            f"when a model is loaded. These can: {listed(registry, 'linear')}."
        )
    check_device(quantization, registry, query, f"--quantization {name}")
    plugin = registry.plugin_of("quire_quantizations", name)
    make = quantization.linear

    def linear_at(path: str) -> LinearOp:
        options = QuantizationOptions(config.quantization_group_size, config.activation_bits, path)
        linear: LinearOp = call_plugin(registry, plugin, make, ops, options)
        if not callable(linear):
            raise PluginError(
                f"Plugin {plugin!r}: `linear` of the quantization {name!r} returned {linear!r:.80}, not a function."
            )
        return linear

    return linear_at


def quantize_modules(model: DecoderModel, linear_at: LinearAt | None) -> None:
    """Give each matrix that is to be quantized the op for its path."""
    if linear_at is None:
        return
    from quire_models.modules.projection import Projection

    for path, module in model.named_modules():
        if isinstance(module, Projection) and module.is_quantized:
            module.quantize_with(linear_at(path))


def spare_modules(model: DecoderModel, names: WeightsMapper, patterns: Sequence[str]) -> None:
    """Leave matrices unquantized whose names match a pattern of `--quantization-ignore`.

    A pattern is a glob over the whole name, or over its last part, of a module in the checkpoint or in Quire. A fused
    matrix is left out if one of its parts is. Raises ConfigError for a pattern that matches nothing.
    """
    from quire_models.modules.projection import projections

    shard = getattr(model, "shard", None)
    whole = model if shard is None else shard.whole
    for pattern in patterns:
        own = {pattern, names.rename(pattern)}
        matched = {
            path
            for path in projections(whole)
            if any(fnmatchcase(name, glob) for name in (path, path.rpartition(".")[2]) for glob in own)
        }
        if not matched:
            raise ConfigError(f"--quantization-ignore {pattern}: the model has no matrix of that name.")
        for path, (module, _) in projections(model).items():
            if path in matched:
                module.without_quantization()
