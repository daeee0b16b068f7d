"""Quantizations `int4` and `int4-asym`: matrices in four bits with a scale for each group of inputs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from quire.plugin import Quantization, QuantizationOptions, hookimpl

if TYPE_CHECKING:
    import torch

    from quire_kernels.ops import BoundLinear, LinearOp
    from quire_kernels.select import Ops

GROUP_SIZE = 32
"""Inputs that share a scale by default."""


def linear(ops: Ops, options: QuantizationOptions, asymmetric: bool = False) -> LinearOp:
    """A linear op that quantizes the weight when it binds it. asymmetric: with an offset for each group.

    Groups are the largest multiple of 16 inputs that divides a row and is at most `options.group_size`; where there is
    none, a row is one group. The op raises ValueError if a weight is not finite.
    """
    from quire_plugins.quantization import scale_search

    def bind(weight: torch.Tensor, bias: torch.Tensor | None, gated: bool = False) -> BoundLinear:
        size = scale_search.group_size_for(weight.shape[1], options.group_size or GROUP_SIZE)
        matrix = scale_search.quantize(weight, scale_search.Grid(4, size, asymmetric))
        return ops.linear_quantized(matrix, bias, weight.dtype, gated, options.activation_bits)

    return bind


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Codes around zero, and codes with an offset for each group."""
    yield Quantization(name="int4", linear=linear)
    yield Quantization(name="int4-asym", linear=partial(linear, asymmetric=True))
