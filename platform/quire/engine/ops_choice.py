"""Which implementation of each operation a model runs on: where it is asked for, and who offers some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from quire.errors import ConfigError
from quire.records import OpQuery, Registry
from quire_kernels.select import BUILT_IN, Ops, choose
from quire_models.parts import Decoder


def dtype_name(dtype: torch.dtype) -> str:
    """The name users know a dtype by: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def op_query(device: torch.device, dtype: torch.dtype, **pages: Any) -> OpQuery:
    """Where operations would run; pages: what else `OpQuery` says."""
    return OpQuery(device.type, dtype_name(dtype), _features(device), **pages)


def needed_ops(of_architecture: Iterable[str], decoder: Decoder) -> frozenset[str]:
    """Names of the implementations that an architecture and the parts of its blocks cannot do without (`needs_ops`)."""
    parts = {id(part): part for block in decoder.blocks for part in (block, block.attn, getattr(block, "mlp", None))}
    return frozenset(of_architecture).union(*(getattr(part, "needs_ops", ()) for part in parts.values()))


def choose_ops(query: OpQuery, registry: Registry) -> Ops:
    """An implementation of every operation, of the built-in ones and those that plugins brought.

    Raises ConfigError where one that the model needs was not chosen, and where one of a plugin would be passed over
    only because of `--kv-cache-dtype`: its part in the answers no other implementation may take.
    """
    implementations = registry.of("quire_ops")
    ops = choose(query, [(registry.plugin_of("quire_ops", name), impl) for name, impl in implementations.items()])
    rejected = [one for choice in ops.report for one in choice.rejected]
    for one in rejected:
        if one.kv_dtype and one.plugin != BUILT_IN:
            raise ConfigError(
                f"--kv-cache-dtype {query.kv_dtype}: the operation {one.name!r} of plugin {one.plugin!r} cannot be "
                f"used with it, for {one.reason}. Leave the plugin out or keep the KV cache as auto."
            )
    reasons = {one.name: one.reason for one in rejected}
    for name in sorted(query.needs - {choice.name for choice in ops.report}):
        why = reasons.get(name, "no loaded plugin brings it")
        raise ConfigError(f"The model needs the operation {name!r}, which cannot be used: {why}.")
    return ops


def _features(device: torch.device) -> frozenset[str]:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return frozenset({f"sm{major}{minor}"})
    return frozenset({torch.backends.cpu.get_cpu_capability().lower()})
