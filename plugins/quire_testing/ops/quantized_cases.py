"""Inputs of the operation `linear_quantized` for `check_op`: every number of bits, groups, offsets, tables, orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from quire_kernels.quantized import QuantizedMatrix

if TYPE_CHECKING:
    from quire_testing.ops.cases import RandomInputs


def linear_quantized(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """matrix, bias, dtype, gated, activation_bits, x: bound to the first five, then called with the last.

    Scales and offsets are float16 numbers, which implementations may store.
    """
    shapes = ((33, 64, 32), (48, 96, 16), (20, 70, 70), (64, 128, 128))
    for number, bits in enumerate((2, 3, 4, 5, 6, 8)):
        for outputs, inputs, group in (shapes[number % 4], shapes[(number + 1) % 4]):
            plain = _matrix(draw, bits, outputs, inputs, group)
            matrices = [plain, _matrix(draw, bits, outputs, inputs, group, offsets=True, ordered=True)]
            tables = [torch.randint(-127, 128, (1 << bits,), generator=draw.generator).float().to(draw.device)]
            tables.append(draw(1 << bits, dtype=torch.float32))
            matrices += [_matrix(draw, bits, outputs, inputs, group, table=table) for table in tables]
            for matrix in matrices:
                for activation_bits in (8, 16):
                    gated = outputs % 2 == 0 and activation_bits == 8
                    yield matrix, None, draw.dtype, gated, activation_bits, draw(3, inputs)
            yield plain, draw(outputs), draw.dtype, False, 8, draw(1, inputs)


def _matrix(
    draw: RandomInputs,
    bits: int,
    outputs: int,
    inputs: int,
    group: int,
    offsets: bool = False,
    table: Any = None,
    ordered: bool = False,
) -> QuantizedMatrix:
    """Random codes whose products with x have about the magnitude of x."""
    half, size = torch.float16, inputs**-0.5 / float(1 << bits - 1 if table is None else table.abs().max())
    groups = -(-inputs // group)
    return QuantizedMatrix(
        draw.ids(1 << bits, outputs, inputs).to(torch.uint8),
        draw(outputs, groups, scale=size, dtype=half).float(),
        bits,
        group,
        zero=0 if table is not None else 1 << bits - 1,
        offsets=draw(outputs, groups, scale=inputs**-0.5, dtype=half).float() if offsets else None,
        table=table,
        order=torch.randperm(inputs, generator=draw.generator).to(draw.device) if ordered else None,
    )
