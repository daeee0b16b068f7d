"""Products with matrices of few bits in C++ against those in plain torch, alone and among other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cpu_rig import FLOATS
from quantized_rig import EVERY_BITS, FLOAT8, IQ4_NL, NF4, SHAPES, exact, near, random_matrix, random_x
from torch import Tensor

from quire_kernels.cpu.linear.quantized_packing import CodeKind
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.quantized import QuantizedBoundLinear, QuantizedMatrix

pytestmark = pytest.mark.usefixtures("seeded")

ROWS = (1, 2, 3, 5, 33, 65)


def check(cpp: CpuOps, matrix: QuantizedMatrix, activation_bits: int, kind: CodeKind | None = None) -> None:
    """Any number of rows, with and without the packing of gated matrices; a row is the same to the last bit."""
    for dtype in FLOATS:
        x = random_x(max(ROWS), matrix.shape[1], dtype)
        want = exact(matrix, x, activation_bits)
        for gated in (False, True):
            product = cpp.linear_quantized(matrix, None, dtype, gated, activation_bits)
            assert kind is None or product.weight.struct.kind == kind
            got = product(x, float32=True)
            near(got, want)
            assert torch.equal(product(x), got.to(dtype))
            for rows in ROWS:
                assert torch.equal(product(x[:rows], float32=True), got[:rows]), rows
                assert torch.equal(product(x[-rows:], float32=True), got[-rows:]), rows


@pytest.mark.parametrize("bits", EVERY_BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_of_any_bits_in_any_groups_are_multiplied_as_in_torch(
    cpp: CpuOps, shape: tuple[int, int, int], bits: int
) -> None:
    kinds = {8: CodeKind.CODES if bits < 8 else CodeKind.BYTES, 16: CodeKind.FLOATS}
    for activation_bits, kind in kinds.items():
        for offsets in (False, True):
            check(cpp, random_matrix(shape, bits, offsets=offsets), activation_bits, kind)
        check(cpp, random_matrix(shape, bits, zero=0), activation_bits, kind)
        check(cpp, random_matrix(shape, bits, ordered=True), activation_bits, kind)


@pytest.mark.parametrize("zero", [-3, 1, 7, 100, 255, 300])
@pytest.mark.parametrize("bits", EVERY_BITS)
def test_any_number_may_stand_for_zero(cpp: CpuOps, bits: int, zero: int) -> None:
    matrix = random_matrix((40, 96, 32), bits, zero=zero)
    x = random_x(5, 96)
    for activation_bits, tolerance in ((8, 2e-3), (16, 1e-5)):
        product = cpp.linear_quantized(matrix, None, torch.float32, False, activation_bits)
        near(product(x), exact(matrix, x, activation_bits), tolerance)


@pytest.mark.parametrize("bits", EVERY_BITS)
def test_sums_of_the_largest_codes_and_columns_are_exact(cpp: CpuOps, bits: int) -> None:
    top, x = (1 << bits) - 1, torch.full((2, 64), 127.0)
    x[1, ::2] *= -1
    for zero in (0, 1 << bits - 1, top):
        for code in (0, top):
            codes = torch.full((32, 64), code, dtype=torch.uint8)
            codes[1, 1::2] = top - code
            matrix = QuantizedMatrix(codes, torch.ones(32, 2), bits, 32, zero)
            product = cpp.linear_quantized(matrix, None, torch.float32)
            assert torch.equal(product(x), x @ (codes.float() - zero).T), (zero, code)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("bits", EVERY_BITS)
def test_integers_in_a_table_are_multiplied_by_bytes(cpp: CpuOps, bits: int, offsets: bool) -> None:
    table = IQ4_NL if bits == 4 else torch.randint(-127, 128, (1 << bits,)).float()
    kind = CodeKind.BYTE_TABLE if bits == 4 else CodeKind.BYTES
    for shape in SHAPES[:5]:
        check(cpp, random_matrix(shape, bits, table=table, offsets=offsets), 8, kind)
        exact_kind = CodeKind.FLOAT_TABLE if bits <= 4 else CodeKind.FLOAT_LOOKUP
        check(cpp, random_matrix(shape, bits, table=table, offsets=offsets), 16, exact_kind)


@pytest.mark.parametrize("activation_bits", [8, 16])
@pytest.mark.parametrize(
    ("bits", "table", "kind"),
    [(4, NF4, CodeKind.FLOAT_TABLE), (8, FLOAT8, CodeKind.FLOAT8), (6, torch.rand(64), CodeKind.FLOAT_LOOKUP)],
    ids=["NF4", "float8", "other"],
)
def test_a_table_of_floats_is_multiplied_by_floats(
    cpp: CpuOps, bits: int, table: Tensor, kind: CodeKind, activation_bits: int
) -> None:
    for shape in SHAPES:
        check(cpp, random_matrix(shape, bits, table=table, offsets=True), activation_bits, kind)
    check(cpp, random_matrix(SHAPES[1], bits, table=table, ordered=True), activation_bits, kind)


def test_every_code_of_float8_has_its_value_and_nan_stays_nan(cpp: CpuOps) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    x = torch.eye(32)
    for some, kind in ((torch.where(codes % 128 == 127, 0, codes), CodeKind.FLOAT8), (codes, CodeKind.FLOAT_LOOKUP)):
        matrix = QuantizedMatrix(some, torch.ones(8, 1), 8, 32, table=FLOAT8)
        product = cpp.linear_quantized(matrix, None, torch.float32)
        assert product.weight.struct.kind == kind
        got = product(x)
        torch.testing.assert_close(got.T.isnan().any(1), FLOAT8[some.int()].isnan().any(1))
        finite = ~got.T.isnan().any(1)
        assert torch.equal(got.T[finite], FLOAT8[some.int()][finite])


@pytest.mark.parametrize("activation_bits", [8, 16])
def test_scales_of_any_size_keep_their_precision(cpp: CpuOps, activation_bits: int) -> None:
    matrix, x = random_matrix((64, 128, 32), 4, offsets=True), random_x(3, 128)
    assert matrix.offsets is not None
    for size in (1e-30, 1e-8, 1e6, 1e30):
        sizes = torch.full((64, 1), size)
        sizes[::2] *= 1e3
        other = replace(matrix, scales=matrix.scales * sizes, offsets=matrix.offsets * sizes)
        for row in (0, 1):
            got = cpp.linear_quantized(other, None, torch.float32, False, activation_bits)(x)
            near(got[:, row::2], exact(other, x, activation_bits)[:, row::2], 1e-3 if activation_bits == 8 else 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bias_is_added_and_x_may_lie_anywhere(cpp: CpuOps, dtype: torch.dtype) -> None:
    matrix, bias = random_matrix((70, 96, 32), 4), torch.randn(70).to(dtype)
    x = random_x(33, 96, dtype)
    product = cpp.linear_quantized(matrix, bias, dtype)
    want = product(x)
    near(product(x, float32=True), exact(matrix, x, bias=bias))
    wide = torch.full((33, 200), torch.nan, dtype=dtype)
    wide[:, 7:103] = x
    assert torch.equal(product(wide[:, 7:103]), want)
    assert torch.equal(product(x.T.contiguous().T), want)
    assert torch.equal(product(x.view(3, 11, 96)), want.view(3, 11, 70))
    assert product(x[:0]).shape == (0, 70)
    for other in (x[:, :95], x.double()):
        with pytest.raises(ValueError, match=r"expected \[..., 96\]"):
            product(other)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("bits", "table"), [(4, None), (8, None), (4, IQ4_NL)])
def test_a_row_that_is_not_finite_gives_nan_alone(cpp: CpuOps, bits: int, table: Tensor | None, wrong: float) -> None:
    matrix = random_matrix((40, 96, 32), bits, table=table, offsets=True)
    product = cpp.linear_quantized(matrix, None, torch.float32)
    for rows in (3, 40):
        x = random_x(rows, 96)
        want = product(x)
        x[1, 5] = wrong
        got = product(x)
        assert got[1].isnan().all()
        assert product(x[1:2]).isnan().all()
        assert torch.equal(got[[0, 2]], want[[0, 2]])


@pytest.mark.parametrize("activation_bits", [8, 16])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", EVERY_BITS)
def test_packed_codes_give_the_weight_back(cpp: CpuOps, bits: int, dtype: torch.dtype, activation_bits: int) -> None:
    tables: list[tuple[Tensor | None, bool]] = [(None, False), (None, True), (torch.rand(1 << bits), False)]
    tables += [(IQ4_NL, False)] if bits == 4 else [(FLOAT8, True)] if bits == 8 else []
    for table, ordered in tables:
        for offsets in (False, True):
            matrix = random_matrix((36, 96, 48), bits, table=table, offsets=offsets, ordered=ordered)
            want = QuantizedBoundLinear(matrix, None, dtype).unpacked()
            ids = torch.tensor([35, 0, 18, 17, 31, 32])
            for gated in (False, True):
                product = cpp.linear_quantized(matrix, None, dtype, gated, activation_bits)
                got = product.unpacked()
                torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)
                assert torch.equal(product.unpacked(ids), got[ids])


def test_what_is_no_matrix_is_refused(cpp: CpuOps) -> None:
    good = random_matrix((8, 64, 32), 4)
    wrong: dict[str, dict[str, Any]] = {
        "7 bits are not supported": {"bits": 7},
        "more than 3 bits": {"bits": 3},
        "its scales have shape": {"scales": good.scales[:, :1]},
        "not all finite": {"scales": good.scales / 0.0},
        "not a permutation": {"order": torch.zeros(64, dtype=torch.int64)},
        "its table has 15 values": {"table": torch.zeros(15)},
        "does not divide": {"group_size": 24},
        "a group size of 0 is not positive": {"group_size": 0},
    }
    for message, fields in wrong.items():
        with pytest.raises(ValueError, match=message):
            cpp.linear_quantized(replace(good, **fields), None, torch.float32)
    with pytest.raises(ValueError, match="activations have 8 or 16 bits, not 4"):
        cpp.linear_quantized(good, None, torch.float32, False, 4)


def test_numbers_of_other_data_types_are_converted(cpp: CpuOps) -> None:
    matrix, x = random_matrix((33, 64, 32), 4, offsets=True), random_x(3, 64)
    assert matrix.offsets is not None
    other = replace(matrix, codes=matrix.codes.int(), scales=matrix.scales.half(), offsets=matrix.offsets.double())
    want = cpp.linear_quantized(matrix, None, torch.float32)(x)
    assert torch.equal(cpp.linear_quantized(other, None, torch.float32)(x), want)


def test_inputs_that_are_added_do_not_count_whatever_a_table_holds(cpp: CpuOps) -> None:
    table = torch.tensor([torch.nan, torch.inf, 1.0, -torch.inf])
    matrix = QuantizedMatrix(torch.full((5, 70), 2, dtype=torch.uint8), torch.ones(5, 1), 2, 70, table=table)
    for rows in (1, 5):
        near(cpp.linear_quantized(matrix, None, torch.float32)(torch.ones(rows, 70)), torch.full((rows, 5), 70.0))


def test_a_weight_takes_the_memory_of_its_bits_and_scales(cpp: CpuOps) -> None:
    for bits in EVERY_BITS:
        for group, offsets, activation_bits in ((32, False, 8), (64, True, 8), (128, False, 16)):
            matrix = random_matrix((64, 128, group), bits, offsets=offsets)
            product = cpp.linear_quantized(matrix, None, torch.bfloat16, False, activation_bits)
            scale = (2 if activation_bits == 8 else 4) * (1 + offsets)
            assert product.element_bytes == bits / 8 + scale / group
