"""Quantization `int8`: matrices of the blocks and the head as int8, with one scale per output channel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.errors import ConfigError
from quire.plugin import OpQuery, Quantization, QuantizationOptions, hookimpl

if TYPE_CHECKING:
    from quire_kernels.ops import LinearInt8
    from quire_kernels.select import Ops


def supports(query: OpQuery) -> str | None:
    """CPUs and NVIDIA GPUs have a fast int8 matrix product here."""
    return None if query.device in ("cpu", "cuda") else f"its products are for CPUs and GPUs, not {query.device}"


def linear(ops: Ops, options: QuantizationOptions) -> LinearInt8:
    """The implementation of `linear_int8` that was chosen for this machine.

    Raises ConfigError for a group size or for inputs that are not rounded, which this op does not have.
    """
    if options.group_size is not None:
        raise ConfigError("--quantization int8 has one scale for each output channel; leave the group size out.")
    if options.activation_bits != 8:
        raise ConfigError("--quantization int8 rounds inputs to 8 bits; use fp8 or int4 for --activation-bits 16.")
    return ops.linear_int8


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Weights are quantized at loading, activations per row during the product (`quire_kernels.ops.LinearInt8`)."""
    yield Quantization(name="int8", linear=linear, supports=supports)
