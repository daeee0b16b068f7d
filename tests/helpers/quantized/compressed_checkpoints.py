"""Random weights as the compressed-tensors library stores them, and as it reads them."""

from __future__ import annotations

from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from quantized_tensors import Stored
from torch import Tensor

SHAPE = (32, 96)


def scheme(targets: list[str] | None = None, format: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    return {"targets": targets or ["Linear"], "format": format, "weights": {"num_bits": 4, "type": "int", **weights}}


def config(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = {f"group_{i}": group for i, group in enumerate(groups)}
    common = {"quant_method": "compressed-tensors", "format": groups[0]["format"], "config_groups": named}
    return {**common, "quantization_status": "compressed", **fields}


def scale_shape(weights: dict[str, Any], shape: tuple[int, int]) -> tuple[int, ...]:
    outputs, inputs = shape
    match weights["strategy"]:
        case "tensor":
            return (1,)
        case "channel":
            return (outputs, 1)
        case "group":
            return (outputs, inputs // weights["group_size"])
    height, width = weights["block_structure"]
    return (-(-outputs // height), -(-inputs // width))


def compressed(group: dict[str, Any], shape: tuple[int, int] = SHAPE, name: str = "a.b") -> Stored:
    """A random weight as the library stores it, and as it reads it."""
    made, weights = QuantizationScheme(**group), group["weights"]
    each = scale_shape(weights, shape)
    state: dict[str, Tensor] = {"weight": torch.randn(shape) * 0.1, "weight_scale": torch.rand(each) * 0.02 + 0.005}
    if not weights.get("symmetric", True):
        half = 1 << (weights["num_bits"] - 1)
        state["weight_zero_point"] = torch.randint(-half, half, each, dtype=torch.int8)
    compressor = BaseCompressor.get_value_from_registry(group["format"])
    stored = compressor.compress(state, made)
    weight = compressor.decompress(stored, made)["weight"]
    tensors = {f"{name}.{part}": tensor for part, tensor in stored.items()}
    return Stored(config(group, ignore=["lm_head"]), tensors, {f"{name}.weight": weight.float()})
