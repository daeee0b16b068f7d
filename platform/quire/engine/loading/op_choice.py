"""Chooses the implementation of each operation for a model: built-in or from a plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from quire.errors import ConfigError
from quire.records import OpQuery, Registry
from quire_kernels.select import BUILT_IN, Ops, choose, refused
from quire_models.model_part import ModelPart
from quire_models.parts.state import parts_of


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def op_query(device: torch.device, dtype: torch.dtype, **pages: Any) -> OpQuery:
    """The query for operations on a device. pages: further fields of `OpQuery`."""
    return OpQuery(device.type, dtype_name(dtype), _features(device), **pages)


def needed_ops(of_architecture: Iterable[str], decoder: ModelPart) -> frozenset[str]:
    """Names of the implementations that an architecture and the parts of its blocks require (`needs_ops`)."""
    parts = {id(part): part for block in decoder.blocks for part in parts_of(block)}
    return frozenset(of_architecture).union(*(getattr(part, "needs_ops", ()) for part in parts.values()))


def choose_ops(query: OpQuery, registry: Registry) -> Ops:
    """An implementation of every operation, from the built-in ones and those of plugins.

    Raises ConfigError if an operation that the model requires or the user asks for is not available, and if a plugin's
    implementation is rejected only because of `--kv-cache-dtype`, since replacing it would change the output.
    """
    implementations = registry.by_hook("quire_ops")
    ops = choose(query, [(registry.plugin_of("quire_ops", name), impl) for name, impl in implementations.items()])
    if why := refused(ops, query):
        raise ConfigError(f"--attention-backend {query.attention_backend}: {why}")
    rejected = [each for choice in ops.report for each in choice.rejected]
    for each in rejected:
        if each.kv_dtype and each.plugin != BUILT_IN:
            raise ConfigError(
                f"--kv-cache-dtype {query.kv_dtype}: the operation {each.name!r} of plugin {each.plugin!r} cannot be "
                f"used with it: {each.reason}. Disable the plugin or use --kv-cache-dtype auto."
            )
    reasons = {each.name: each.reason for each in rejected}
    for name in sorted(query.needs - {choice.name for choice in ops.report}):
        why = reasons.get(name, "no loaded plugin provides it")
        raise ConfigError(f"The model needs the operation {name!r}, which cannot be used: {why}.")
    return ops


def _features(device: torch.device) -> frozenset[str]:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return frozenset({f"sm{major}{minor}"})
    return frozenset({torch.backends.cpu.get_cpu_capability().lower()})
