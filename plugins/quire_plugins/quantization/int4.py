"""Quantizations `int4` and `int4-asym`: matrices in four bits with a scale for each group of inputs.

Errors in queries, keys and values of attention, and in the head, change the answers most for their size: they have six
bits. (llama.cpp's Q4_K_M gives values, half of the `down` matrices and the head six bits.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from quire.plugin import CheckpointError, Quantization, QuantizationOptions, hookimpl

if TYPE_CHECKING:
    import torch

    from quire_kernels.ops import BoundLinear, LinearOp
    from quire_kernels.select import Ops

GROUP_SIZE = 32
"""Inputs that share a scale by default."""

BITS = 4

SENSITIVE = ("qkv", "q", "kv", "head")
"""Last parts of the paths of matrices that have `SENSITIVE_BITS`."""

SENSITIVE_BITS = 6


def linear(ops: Ops, options: QuantizationOptions, asymmetric: bool = False) -> LinearOp:
    """A linear op that quantizes the weight when it binds it. asymmetric: four bits have an offset for each group.

    Groups are the largest multiple of 16 inputs that divides a row and is at most `options.group_size`; where there is
    none, a row is one group. The op raises CheckpointError, naming the matrix, if a weight is not finite.
    """
    from quire_kernels.quantized_rows import QuantizedRows, as_slice
    from quire_plugins.quantization.scale_search import CodeGrid, group_size_for, quantize

    def bind(weight: torch.Tensor, bias: torch.Tensor | None, gated: bool = False) -> BoundLinear:
        size = group_size_for(weight.shape[1], options.group_size or GROUP_SIZE)
        is_sensitive = options.module.rpartition(".")[2] in SENSITIVE
        grid = CodeGrid(SENSITIVE_BITS, size) if is_sensitive else CodeGrid(BITS, size, asymmetric)
        values = weight.detach()
        rows = QuantizedRows(weight.shape, lambda ids: quantize(values[as_slice(ids)], grid))
        try:
            bound: BoundLinear = rows.bind(ops, bias, weight.dtype, gated, options.activation_bits)
        except ValueError as error:
            raise CheckpointError(f"{options.module or 'A matrix'} cannot be quantized: {error}.") from error
        return bound

    return bind


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Codes around zero, and codes with an offset for each group."""
    yield Quantization(name="int4", linear=linear)
    yield Quantization(name="int4-asym", linear=partial(linear, asymmetric=True))
