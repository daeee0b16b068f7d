"""The `quantization_config` of the compressed-tensors library: which scheme each module's weight is stored with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import regex

from quire.plugin import CheckpointError
from quire_plugins.quantization.formats import config_fields as fields

PACKED = "pack-quantized"
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
PACKED_BITS = (2, 3, 4, 5, 6, 8)
MATCH_SECONDS = 0.5
"""Seconds that the match of one pattern with one name may take; patterns come from the file."""


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored. group_size: inputs that share a scale, None = by channel, tensor or block."""

    targets: tuple[str, ...]
    is_packed: bool
    is_float: bool
    bits: int
    is_symmetric: bool
    group_size: int | None
    block: tuple[int, int] | None

    @classmethod
    def from_group(cls, group: Any, name: str, common_format: Any) -> Self | None:
        """The scheme of one of `config_groups`; None if it has no weights."""
        if not isinstance(group, dict):
            raise fields.wrong(f"config_groups.{name}", group, "an object")
        fields.refuse(group, ("output_activations",))
        targets, weights = group.get("targets"), group.get("weights")
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise fields.wrong(f"config_groups.{name}.targets", targets, "a list of names")
        if weights is None:
            return None
        if not isinstance(weights, dict):
            raise fields.wrong(f"config_groups.{name}.weights", weights, "an object")
        stored = {"format": group.get("format") or common_format}
        is_packed = fields.choice(stored, ("format",), (PACKED, *PLAIN)) == PACKED
        is_float, bits = (
            fields.choice(weights, ("type",), ("int", "float"), "int") == "float",
            _bits(weights, is_packed),
        )
        if is_float and (is_packed or bits != 8 or stored["format"] == "int-quantized"):
            raise CheckpointError(
                f"quantization_config: {stored['format']} with floats of {bits} bits is not supported."
            )
        if stored["format"] == "float-quantized" and not is_float:
            raise fields.wrong("format", stored["format"], f"{PACKED} or int-quantized for integers")
        size, block = _sharing(weights)
        symmetric = fields.flag(weights, "symmetric", True)
        return cls(tuple(targets), is_packed, is_float, bits, symmetric, size, block)


def _bits(weights: Mapping[str, Any], is_packed: bool) -> int:
    bits, allowed = fields.integer(weights, ("num_bits",), 8), PACKED_BITS if is_packed else range(2, 9)
    if bits not in allowed:
        raise fields.wrong("num_bits", bits, f"one of {', '.join(map(str, allowed))}")
    return bits


def _sharing(weights: Mapping[str, Any]) -> tuple[int | None, tuple[int, int] | None]:
    """(group size, block) of the strategy."""
    size = fields.group_size(weights, ("group_size",), -1)
    inferred = "group" if size > 0 else "channel" if weights.get("group_size") else "tensor"
    strategy = fields.choice(weights, ("strategy",), ("tensor", "channel", "group", "block"), inferred)
    if strategy == "group" and size < 0:
        raise fields.wrong("group_size", weights.get("group_size"), "a size for the strategy group")
    if strategy != "group" and size > 0:
        raise fields.wrong("strategy", strategy, f"group, because group_size is {size}")
    if strategy != "block":
        return (size if strategy == "group" else None), None
    block = fields.pair(weights.get("block_structure"), "block_structure")
    if block is None:
        raise fields.wrong("block_structure", None, "the two sizes of a block")
    return None, block


@dataclass(frozen=True)
class Schemes:
    """All schemes of a config."""

    schemes: tuple[Scheme, ...]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The schemes of a `quantization_config`. Raises CheckpointError for what else it asks for."""
        fields.refuse(config, ("kv_cache_scheme", "moe_sparsity_config"))
        sparsity = config.get("sparsity_config") or {}
        if sparsity and (not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense"):
            raise fields.wrong("sparsity_config", sparsity, "a sparsity_config with the format dense")
        transforms = config.get("transform_config") or {}
        if transforms and (not isinstance(transforms, dict) or transforms.get("config_groups")):
            raise CheckpointError("quantization_config: transform_config (rotations of activations) is not supported.")
        if config.get("quantization_status", "compressed") not in ("compressed", None):
            raise fields.wrong("quantization_status", config["quantization_status"], "compressed")
        groups = config.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise fields.wrong("config_groups", groups, "an object with a group")
        found = [Scheme.from_group(group, name, config.get("format")) for name, group in groups.items()]
        return cls(tuple(scheme for scheme in found if scheme is not None))

    def of_module(self, module: str, tensor: str, is_packed: bool) -> Scheme:
        """The scheme of a module that has this tensor: the one whose targets name it, by name or pattern; otherwise one
        whose targets are classes. Raises CheckpointError without one, and for one that stores its weights differently.
        """
        named = [scheme for scheme in self.schemes if _names(scheme.targets, module)]
        classes = [scheme for scheme in self.schemes if _class_of(module) in scheme.targets]
        for scheme in named or classes or self.schemes[: len(self.schemes) == 1]:
            if scheme.is_packed != is_packed:
                stated = PACKED if scheme.is_packed else "weights that are not packed"
                raise CheckpointError(f"{tensor}: its scheme in quantization_config has {stated}.")
            return scheme
        raise CheckpointError(f"{tensor}: no scheme in quantization_config names {module} or its class.")


def _class_of(module: str) -> str:
    """The class that a target may name. A checkpoint says only the module's name."""
    return "Embedding" if "embed" in module.rpartition(".")[2] else "Linear"


def _names(targets: Sequence[str], module: str) -> bool:
    return any(_matches(target, module) for target in targets)


def _matches(target: str, module: str) -> bool:
    if not target.startswith("re:"):
        return target == module
    try:
        return regex.match(target.removeprefix("re:"), module, timeout=MATCH_SECONDS) is not None
    except (regex.error, TimeoutError, RecursionError, OverflowError) as error:
        raise CheckpointError(
            f"quantization_config: the target {fields.shown(target)} cannot be matched with {module}: {error}"
        ) from error
