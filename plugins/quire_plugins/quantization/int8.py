"""Quantization `int8`: matrices of the blocks and the head as int8, with one scale per output channel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import OpQuery, Quantization, QuantizationOptions, hookimpl

if TYPE_CHECKING:
    from quire_kernels.ops import LinearInt8
    from quire_kernels.select import Ops


def supports(query: OpQuery) -> str | None:
    """Only CPUs have a fast int8 matrix product here."""
    return None if query.device == "cpu" else f"its products are for CPUs, not {query.device}"


def linear(ops: Ops, options: QuantizationOptions) -> LinearInt8:
    """The implementation of `linear_int8` that was chosen for this machine."""
    return ops.linear_int8


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Weights are quantized at loading, activations per row during the product (`quire_kernels.ops.LinearInt8`)."""
    yield Quantization(name="int8", linear=linear, supports=supports)
