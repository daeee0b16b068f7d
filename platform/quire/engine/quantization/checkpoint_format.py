"""Checkpoints that are quantized already: finds the plugin that reads their format."""

from __future__ import annotations

from pathlib import Path

from quire.engine.quantization.methods import check_device, listed
from quire.errors import CheckpointError, ConfigError
from quire.hooks.call_stats import call_plugin
from quire.records import CheckpointFormat, OpQuery, Quantization, Registry
from quire.settings.model_config import ModelConfig
from quire_models.loading import checkpoint


def stored_format(folder: Path, config: ModelConfig, registry: Registry, query: OpQuery) -> CheckpointFormat | None:
    """How the checkpoint stores its quantized weights; None if it has none.

    Raises CheckpointError if no plugin reads them, ConfigError if `--quantization` asks for another method or the
    device cannot compute it, and PluginError.
    """
    found = checkpoint.quantization_config(folder)
    if found is None:
        return None
    method = found["quant_method"]
    quantization: Quantization | None = registry.by_hook("quire_quantizations").get(method)
    if quantization is None or quantization.checkpoint is None:
        raise CheckpointError(
            f"{folder} holds weights quantized with {method}, which no loaded plugin reads. "
            f"Readable: {listed(registry, 'checkpoint')}."
        )
    if config.quantization not in (None, method):
        raise ConfigError(
            f"--quantization {config.quantization}: {folder} is quantized with {method} already; leave the setting out."
        )
    check_device(quantization, registry, query, f"{folder} is quantized with {method}, which")
    plugin = registry.plugin_of("quire_quantizations", method)
    made: CheckpointFormat = call_plugin(registry, plugin, quantization.checkpoint, found)
    return made
