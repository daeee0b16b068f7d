"""Checkpoints of the compressed-tensors library, versions 0.5 to 0.20, as llm-compressor writes them.

Format pack-quantized: `weight_packed` int32 [N, ceil(K · bits / 32)], a row's codes as one run of bits, with
`weight_scale` [N, G] and, if asymmetric, `weight_zero_point` int32 [ceil(N · bits / 32), G], packed along the outputs.
Formats int-quantized, float-quantized and naive-quantized: `weight` int8 or float8_e4m3fn with `weight_scale` and
`weight_zero_point`. `weight_g_idx` is the group of each input (the act-order that the library has since removed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.formats.compressed_scheme import Schemes
from quire_plugins.quantization.formats.scaled import by_group, read_float8, signed_codes
from quire_plugins.quantization.formats.stored_tensors import (
    MatrixTensors,
    Names,
    ReadTensor,
    Shape,
    group_order,
    sizes,
    zero_offsets,
)
from quire_plugins.quantization.formats.unpacking import unpack, words_for

OTHERS = {
    part: (f".{part}",)
    for part in ("weight_zero_point", "weight_g_idx", "weight_shape", "input_scale", "input_zero_point")
}
PACKED_NAMES = Names(("weight_packed", ".weight_packed"), {"weight_scale": (".weight_scale",)}, OTHERS)
PLAIN_NAMES = Names(("weight_scale", ".weight_scale"), {"weight": (".weight",)}, OTHERS)


@dataclass(frozen=True)
class CompressedTensors:
    """schemes: how the weight of each module is stored."""

    schemes: Schemes

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        return cls(Schemes.from_config(config))

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each module with a `weight_packed`, or with a `weight_scale` beside its weight."""
        found = {}
        for module, parts in PACKED_NAMES.grouped(shapes).items():
            outputs, words = sizes(parts["weight_packed"], shapes, 2)
            scheme = self.schemes.of_module(module, parts["weight_packed"], True)
            inputs = words * 32 // scheme.bits
            if "weight_shape" in parts:
                outputs, inputs = _stated_shape(parts, read(parts["weight_shape"]))
            found[f"{module}.weight"] = StoredMatrix((outputs, inputs), parts)
        rest = {name: shape for name, shape in shapes.items() if f"{name.rpartition('.')[0]}.weight" not in found}
        for module, parts in PLAIN_NAMES.grouped(rest).items():
            self.schemes.of_module(module, parts["weight"], False)
            found[f"{module}.weight"] = StoredMatrix(sizes(parts["weight"], shapes, 2), parts)
        return found

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> QuantizedMatrix:
        """Unpack the tensors of one matrix."""
        parts, module = MatrixTensors(stored, tensors), name.removesuffix(".weight")
        is_packed = parts.has("weight_packed")
        scheme = self.schemes.of_module(module, name, is_packed)
        block = (1, scheme.group_size) if scheme.group_size else scheme.block
        if scheme.is_float:
            return read_float8(parts, "weight_scale", stored.shape, block)
        bits = scheme.bits if is_packed else 8
        codes = _packed_codes(parts, bits, stored.shape) if is_packed else _plain_codes(parts, stored.shape)
        size, scales = by_group(parts, "weight_scale", parts.scales("weight_scale"), stored.shape, block)
        zero, offsets = 1 << (bits - 1), None
        if parts.has("weight_zero_point"):
            _, zeros = by_group(parts, "weight_zero_point", _zeros(parts, bits, stored.shape), stored.shape, block)
            zero, offsets = zero_offsets(zeros, scales, zero)
        elif not scheme.is_symmetric:
            raise CheckpointError(f"{name}: the checkpoint has no {module}.weight_zero_point.")
        order = None
        if parts.has("weight_g_idx") and scheme.group_size:
            order = group_order(parts, "weight_g_idx", stored.shape[1], scheme.group_size)
            codes = codes if order is None else codes.index_select(1, order)
        return QuantizedMatrix(codes.contiguous(), scales, bits, size, zero, offsets, order=order)


def _stated_shape(parts: Mapping[str, str], stated: Tensor) -> tuple[int, int]:
    """What `weight_shape` says, because packed rows may have room for more codes than there are."""
    checked = MatrixTensors(StoredMatrix((), parts), {"weight_shape": stated})
    outputs, inputs = checked.get("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
    if min(outputs, inputs) <= 0:
        raise checked.error("weight_shape", f"is {[outputs, inputs]}, expected two sizes")
    return outputs, inputs


def _packed_codes(parts: MatrixTensors, bits: int, shape: Shape) -> Tensor:
    outputs, inputs = shape
    return unpack(parts.get("weight_packed", (torch.int32,), (outputs, words_for(inputs, bits))), bits, inputs)


def _plain_codes(parts: MatrixTensors, shape: Shape) -> Tensor:
    return signed_codes(parts.get("weight", (torch.int8,), shape))


def _zeros(parts: MatrixTensors, bits: int, shape: Shape) -> Tensor:
    """The codes of zero, int16, in a shape as scales have: packed along the outputs, or as signed bytes."""
    stored = parts.get("weight_zero_point", (torch.int32, torch.int8))
    if stored.dtype == torch.int32:
        words = words_for(shape[0], bits)
        if stored.dim() != 2 or len(stored) != words:
            raise parts.error("weight_zero_point", f"has shape {list(stored.shape)}, expected {words} rows")
        return unpack(stored.T.contiguous(), bits, shape[0]).T.short()
    zeros = stored.short() + (1 << (bits - 1))
    if stored.numel() and not 0 <= int(zeros.min()) <= int(zeros.max()) < 1 << bits:
        raise parts.error("weight_zero_point", f"has values that are no integers of {bits} bits")
    return zeros
