"""Quantization int8: every matrix of the blocks and the head in bytes, with a scale for each output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.hookspecs import hookimpl
from quire.records import OpQuery, Quantization

if TYPE_CHECKING:
    from quire_kernels.ops import LinearInt8
    from quire_kernels.select import Ops


def supports(query: OpQuery) -> str | None:
    """On CPUs: there is no fast product of bytes for anything else."""
    return None if query.device == "cpu" else f"its products are for CPUs, not {query.device}"


def linear(ops: Ops) -> LinearInt8:
    """The product of bytes that was chosen for this machine."""
    return ops.linear_int8


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Weights are made bytes when they are loaded, activations row by row; see `quire_kernels.ops.LinearInt8`."""
    yield Quantization(name="int8", linear=linear, supports=supports)
