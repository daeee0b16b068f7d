"""Quantized matrices of all forms, drawn at random."""

from __future__ import annotations

import torch

from quire_kernels.quantized import QuantizedMatrix, float8_table
from quire_testing.ops.cases import RandomInputs

TWICE_E2M1 = torch.tensor((0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0))
TABLES = {
    "float8": float8_table(),
    "float4": torch.cat((TWICE_E2M1, -TWICE_E2M1)),
    "integers": torch.arange(-7.0, 9.0),
    "numbers": torch.linspace(-1, 1, 16),
}
BITS = {"float8": 8, "float4": 4, "integers": 4, "numbers": 4}


def matrix_of(draw: RandomInputs, form: str, bits: int, shape: tuple[int, int, int]) -> QuantizedMatrix:
    (outputs, inputs, group), table = shape, TABLES.get(form)
    bits, groups = BITS.get(form, bits), -(-inputs // group)
    size = inputs**-0.5 / (1 << bits - 1 if table is None else table.abs().max().item())
    codes = draw.ids(1 << bits, outputs, inputs).to(torch.uint8)
    return QuantizedMatrix(
        codes if form != "float8" else codes.masked_fill(codes & 0x7F == 0x7F, 5),
        draw(outputs, groups, scale=size, dtype=torch.float16).float(),
        bits,
        group,
        zero=0 if table is not None else 1 << bits - 1,
        offsets=draw(outputs, groups, scale=inputs**-0.5, dtype=torch.float32) if form == "offsets" else None,
        table=table,
        order=torch.randperm(inputs, generator=draw.generator) if form == "ordered" else None,
    )
