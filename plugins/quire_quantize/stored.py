"""Tensors and config of the compressed-tensors format (library version 0.9 and later).

pack-quantized: `weight_packed` int32 [outputs, inputs · bits / 32], the lowest bits first, `weight_scale` [outputs,
groups], `weight_shape` and, if asymmetric, `weight_zero_point` int32 [outputs / 8, groups], packed along the outputs.
int-quantized, if inputs have 8 bits too: `weight` int8 and `weight_scale` [outputs, 1].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix

WORD_BITS = 32


def pack_rows(codes: Tensor, bits: int) -> Tensor:
    """codes uint8 [rows, columns] of 4 or 8 bits -> int32 [rows, ceil(columns · bits / 32)]."""
    rows, columns = codes.shape
    per_word = WORD_BITS // bits
    padded = torch.zeros(rows, -(-columns // per_word) * per_word, dtype=torch.uint8)
    padded[:, :columns] = codes
    if bits == 8:
        return padded.view(torch.int32)
    halves = padded.view(rows, -1, 2)
    return (halves[..., 0] | halves[..., 1] << 4).contiguous().view(torch.int32)


def tensors_of(matrix: QuantizedMatrix, dtype: torch.dtype, packed: bool) -> dict[str, Tensor]:
    """The tensors of a module, by the last part of their names. dtype: of the scales. packed: else one byte a code."""
    scales = matrix.scales.to(dtype)
    if not packed:
        return {"weight": (matrix.codes.short() - matrix.zero).to(torch.int8), "weight_scale": scales}
    tensors = {
        "weight_packed": pack_rows(matrix.codes, matrix.bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(matrix.shape, dtype=torch.int64),
    }
    if matrix.offsets is not None:
        zeros = torch.where(matrix.scales == 0, 0.0, -matrix.offsets / matrix.scales).round().to(torch.uint8)
        tensors["weight_zero_point"] = pack_rows(zeros.T.contiguous(), matrix.bits).T.contiguous()
    return tensors


def config_of(
    groups: Mapping[int | None, Iterable[str]],
    ignored: Iterable[str],
    bits: int,
    asymmetric: bool,
    activation_bits: int,
) -> dict[str, Any]:
    """The `quantization_config`. groups: the modules of each group size, None for a scale for each output channel."""
    kind = "int-quantized" if activation_bits == 8 else "pack-quantized"
    only = len(groups) == 1
    inputs = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": {
                "targets": ["Linear"] if only else sorted(modules),
                "weights": {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": not asymmetric,
                    "strategy": "channel" if size is None else "group",
                    "group_size": size,
                    "dynamic": False,
                },
                "input_activations": inputs if activation_bits == 8 else None,
                "output_activations": None,
            }
            for index, (size, modules) in enumerate(groups.items())
        },
        "ignore": sorted(ignored),
        "kv_cache_scheme": None,
    }
