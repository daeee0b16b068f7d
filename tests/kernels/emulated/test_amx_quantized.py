"""Products with matrices of few bits by AMX tiles: a row is the same to the last bit as by vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from quantized_rig import EVERY_BITS, FLOAT8, IQ4_NL, exact, near, random_matrix, random_x

from quire_kernels.cpu.ops import CpuOps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seeded")]

FEW = 8
"""The most rows that vectors multiply."""
ROWS = (9, 12, 15, 16, 17, 24, 25, 33, 128, 129, 150)
"""One tile of rows and several, whole and overlapping; more than one block of rows."""


def check(amx: CpuOps, shape: tuple[int, int, int], bits: int, **fields: Any) -> None:
    matrix = random_matrix(shape, bits, **fields)
    x = random_x(max(ROWS), shape[1])
    product = amx.linear_quantized(matrix, None, torch.float32)
    few = torch.cat([product(some) for some in x.split(FEW)])
    near(few, exact(matrix, x))
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), few[:rows]), rows
        assert torch.equal(product(x[-rows:]), few[-rows:]), rows


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", EVERY_BITS)
def test_codes_of_any_bits(amx: CpuOps, bits: int, offsets: bool) -> None:
    check(amx, (70, 96, 32), bits, offsets=offsets)
    check(amx, (33, 112, 16), bits, offsets=offsets, zero=3 if bits <= 4 else 1 << bits - 1)


@pytest.mark.parametrize("shape", [(40, 1120, 32), (64, 1024, 128), (34, 1500, 1500), (3, 2, 2), (66, 96, 48)], ids=str)
def test_inputs_of_several_chunks_and_groups_of_any_size(amx: CpuOps, shape: tuple[int, int, int]) -> None:
    check(amx, shape, 4, offsets=True)
    check(amx, shape, 8)
    check(amx, shape, 4, table=IQ4_NL)


def test_other_kinds_of_weights(amx: CpuOps) -> None:
    check(amx, (70, 96, 32), 4, ordered=True)
    check(amx, (70, 96, 32), 8, table=FLOAT8)  # floats stay with vectors


@pytest.mark.parametrize("bits", EVERY_BITS)
def test_sums_of_the_largest_codes_and_columns_are_exact(amx: CpuOps, bits: int) -> None:
    matrix = random_matrix((32, 64, 32), bits, zero=0)
    matrix.codes.fill_((1 << bits) - 1)
    matrix.scales.fill_(1.0)
    x = torch.full((16, 64), 127.0)
    x[1::2] *= -1
    assert torch.equal(amx.linear_quantized(matrix, None, torch.float32)(x), x @ matrix.codes.float().T)


def test_a_row_that_is_not_finite_gives_nan_alone(amx: CpuOps) -> None:
    product = amx.linear_quantized(random_matrix((40, 96, 32), 4, offsets=True), None, torch.float32)
    x = random_x(20, 96)
    want = product(x)
    x[3, 5] = torch.inf
    got = product(x)
    assert got[3].isnan().all()
    assert torch.equal(got[4:], want[4:])


def test_bfloat16_gated_matrices_and_x_that_lies_anywhere(amx: CpuOps) -> None:
    matrix, x = random_matrix((70, 96, 32), 4), random_x(40, 96, torch.bfloat16)
    product = amx.linear_quantized(matrix, torch.randn(70).bfloat16(), torch.bfloat16, True)
    want = torch.cat([product(some) for some in x.split(FEW)])
    wide = torch.full((40, 200), torch.nan, dtype=torch.bfloat16)
    wide[:, 7:103] = x
    assert torch.equal(product(wide[:, 7:103]), want)
