"""Products with quantized matrices in Triton against the reference, for forms and shapes that hypothesis draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops

from quire_kernels import reference
from quire_kernels.quantized import QuantizedMatrix, float8_table
from quire_testing.ops.cases import RandomInputs

pytestmark = needs_triton
DRAWN = settings(
    max_examples=10,
    phases=(Phase.generate,),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TWICE_E2M1 = torch.tensor((0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0))
TABLES = {
    "float8": float8_table(),
    "float4": torch.cat((TWICE_E2M1, -TWICE_E2M1)),
    "integers": torch.arange(-7.0, 9.0),
    "numbers": torch.linspace(-1, 1, 16),
}
BITS = {"float8": 8, "float4": 4, "integers": 4, "numbers": 4}
FORMS = [*TABLES, "plain", "offsets", "ordered"]
SHAPES = [(33, 64, 32), (48, 96, 16), (20, 70, 70), (70, 576, 64), (40, 512, 128)]
"""Outputs, inputs and the size of a group; the words of the last two are divided among programs."""
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=["small groups", "large groups"])
def test_tiles_in_bfloat16_are_the_products_of_dequantized_weights(
    triton: TritonOps, form: str, shape: tuple[int, int, int]
) -> None:
    """Codes become bfloat16 by operations on their bits; all of them occur."""
    draw = RandomInputs(torch.bfloat16, torch.device("cpu"), torch.Generator().manual_seed(3))
    matrix, x = matrix_of(draw, form, 4, shape), draw(18, shape[1])
    matrix = replace(matrix, scales=matrix.scales.bfloat16().float())
    found = triton.linear_quantized(matrix, None, torch.bfloat16, False, 16)
    expected = x.float() @ reference.linear_quantized(matrix, None, torch.float32).unpacked().float().T
    worst = (found(x.to(DEVICE), True).cpu() - expected).abs().max().item()
    assert worst <= 8e-3 * max(1.0, expected.abs().max().item()), worst


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@DRAWN
@given(
    form=st.sampled_from(FORMS),
    bits=st.sampled_from((2, 3, 4, 5, 6, 8)),
    shape=st.sampled_from(SHAPES),
    rows=st.sampled_from((1, 3, 20)),
    activation_bits=st.sampled_from((8, 16)),
    has_bias=st.booleans(),
)
def test_products_are_those_of_the_reference(
    triton: TritonOps,
    dtype: torch.dtype,
    form: str,
    bits: int,
    shape: tuple[int, int, int],
    rows: int,
    activation_bits: int,
    has_bias: bool,
) -> None:
    draw = RandomInputs(dtype, torch.device("cpu"), torch.Generator().manual_seed(bits))
    matrix, bias, x = matrix_of(draw, form, bits, shape), draw(shape[0]) if has_bias else None, draw(rows, shape[1])
    wanted = reference.linear_quantized(matrix, bias, dtype, False, activation_bits)
    found = triton.linear_quantized(matrix, bias if bias is None else bias.to(DEVICE), dtype, False, activation_bits)
    for float32 in (False, True):
        expected, answer = wanted(x, float32), found(x.to(DEVICE), float32).cpu()
        assert answer.dtype == expected.dtype
        worst = (answer.float() - expected.float()).abs().max().item()
        assert worst <= TOLERANCE[dtype] * max(1.0, expected.abs().max().item()), worst
    ids = torch.tensor([3, 0])
    torch.testing.assert_close(found.unpacked(ids.to(DEVICE)).cpu(), wanted.unpacked(ids), rtol=1e-2, atol=1e-7)


def test_a_row_that_is_not_finite_gives_nan_and_others_do_not(triton: TritonOps) -> None:
    draw = RandomInputs(torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0))
    matrix, weight, x = matrix_of(draw, "plain", 4, SHAPES[0]), draw(33, 64), draw(3, 64)
    x[1, 5] = torch.inf
    for bound in (triton.linear_quantized(matrix, None, torch.float32), triton.linear_int8(weight.to(DEVICE), None)):
        with np.errstate(invalid="ignore"):
            found = bound(x.to(DEVICE))
            assert found.isnan().all(1).tolist() == [False, True, False]
            assert bound(x[1:2].to(DEVICE)).isnan().all()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 70])
def test_int8_is_exact(triton: TritonOps, rows: int, dtype: torch.dtype) -> None:
    draw = RandomInputs(dtype, torch.device(DEVICE), torch.Generator().manual_seed(1))
    weight, bias, x = draw(70, 300), draw(70), draw(rows, 300)
    wanted, found = reference.linear_int8(weight, bias), triton.linear_int8(weight, bias)
    torch.testing.assert_close(found(x), wanted(x), rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)
    assert torch.equal(
        found.unpacked(torch.tensor([2], device=DEVICE)), wanted.unpacked(torch.tensor([2], device=DEVICE))
    )
