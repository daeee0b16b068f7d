"""Products of bytes with AVX-512 without VNNI, and with AVX-VNNI, emulated."""

from __future__ import annotations

import pytest
import torch
from cpu_rig import factors
from quantized_rig import EVERY_BITS, IQ4_NL, exact, near, random_matrix, random_x

from quire_kernels import reference
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.quantized import QuantizedMatrix

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seeded")]

ROWS = (1, 2, 3, 5, 13, 33)


def check(ops: CpuOps, matrix: QuantizedMatrix) -> None:
    x = random_x(max(ROWS), matrix.shape[1])
    product = ops.linear_quantized(matrix, None, torch.float32)
    got = product(x)
    near(got, exact(matrix, x))
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), got[:rows]), rows


@pytest.mark.parametrize("bits", EVERY_BITS)
def test_codes_of_any_bits(vectors: CpuOps, bits: int) -> None:
    check(vectors, random_matrix((70, 96, 32), bits, offsets=True))
    check(vectors, random_matrix((33, 112, 16), bits))
    top = (1 << bits) - 1
    matrix = QuantizedMatrix(torch.full((32, 64), top, dtype=torch.uint8), torch.ones(32, 2), bits, 32, 1 << bits - 1)
    x = torch.full((2, 64), 127.0)
    x[1] *= -1
    product = vectors.linear_quantized(matrix, None, torch.float32)
    assert torch.equal(product(x), x @ (matrix.codes.float() - matrix.zero).T)


def test_integers_in_a_table(vectors: CpuOps) -> None:
    check(vectors, random_matrix((70, 96, 32), 4, table=IQ4_NL))


def test_int8_products(vectors: CpuOps) -> None:
    given = factors(100, 70, torch.float32)
    product = vectors.linear_int8(given.weight, given.bias)
    want = reference.linear_int8(given.weight, given.bias)(given.x)
    for rows in ROWS:
        torch.testing.assert_close(product(given.x[:rows]), want[:rows], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(product.unpacked(), given.weight, atol=2e-3, rtol=2e-2)
