"""Attention within rows: every implementation against the reference, and a row to the last bit the same anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.records import OpImpl
from quire_kernels import reference
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import ops as torch_ops
from quire_testing import check_op

pytestmark = pytest.mark.usefixtures("seeded")

CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
LENS = [(1,), (9, 0, 1, 17, 16, 2), (63, 64, 65), (33, 0, 300, 5), (31,) * 20, (520,)]
WINDOWS = (None, 1, 5, 64, 65, 130)
HEADS = [(4, 4, 32), (2, 2, 64), (3, 3, 72), (2, 2, 80), (6, 2, 16), (8, 1, 24), (1, 1, 128), (2, 1, 1), (2, 2, 33)]


def qkv_of(lens: Sequence[int], heads: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as one product has given them: side by side."""
    many, few, dim = heads
    made = torch.Generator().manual_seed(sum(lens))
    joined = torch.randn(sum(lens), many + 2 * few, dim, generator=made).to(dtype)
    q, k, v = joined.split([many, few, few], 1)
    return q, k, v


def close(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_implementation_in_torch_conforms(dtype: str) -> None:
    check_op(OpImpl("torch", "row_attention", lambda _: None, lambda: torch_ops.row_attention), dtype)


@pytest.mark.parametrize("window", WINDOWS)
def test_rows_of_like_length_share_calls_of_torch(window: int | None) -> None:
    for lens in LENS:
        qkv, rows = qkv_of(lens, HEADS[0], torch.float32), AttentionMetadata.unpaged(lens, CPU)
        want = reference.row_attention(*qkv, rows, 0.2, window)
        for _ in range(2):  # the second time by what was kept of the first
            close(torch_ops.row_attention(*qkv, rows, 0.2, window), want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_compiled_it_is_the_reference(cpp_floats: CpuOps, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    for i, lens in enumerate(LENS):
        qkv, rows = qkv_of(lens, heads, dtype), AttentionMetadata.unpaged(lens, CPU)
        for window in {WINDOWS[0], WINDOWS[i % len(WINDOWS)], WINDOWS[heads[2] % len(WINDOWS)]}:
            scale = heads[2] ** -0.5
            close(
                cpp_floats.row_attention(*qkv, rows, scale, window), reference.row_attention(*qkv, rows, scale, window)
            )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", [None, 20])
def test_a_row_is_the_same_alone_and_among_others_that_are_no_numbers(
    cpp_floats: CpuOps, window: int | None, dtype: torch.dtype
) -> None:
    for lens in LENS[1:5]:
        qkv = qkv_of(lens, (4, 4, 32), dtype)
        for r, length in enumerate(lens):
            part = slice(sum(lens[:r]), sum(lens[: r + 1]))
            alone = cpp_floats.row_attention(
                *(x[part].contiguous() for x in qkv), AttentionMetadata.unpaged([length], CPU), 0.2, window
            )
            spoilt = [torch.full_like(x, torch.nan) for x in qkv]
            for mine, x in zip(spoilt, qkv, strict=True):
                mine[part] = x[part]
            assert torch.equal(
                cpp_floats.row_attention(*spoilt, AttentionMetadata.unpaged(lens, CPU), 0.2, window)[part], alone
            )


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_number_of_threads_changes_nothing(cpp_floats: CpuOps, threads: Any, dtype: torch.dtype) -> None:
    for lens in LENS:
        qkv, rows = qkv_of(lens, (4, 2, 32), dtype), AttentionMetadata.unpaged(lens, CPU)
        threads(1)
        want = cpp_floats.row_attention(*qkv, rows, 0.2)
        for count in (2, 3):
            threads(count)
            assert torch.equal(cpp_floats.row_attention(*qkv, rows, 0.2), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_tokens_are_no_work(cpp_floats: CpuOps, dtype: torch.dtype) -> None:
    for lens in ([], [0, 0]):
        nothing = qkv_of(lens, (4, 2, 32), dtype)
        assert cpp_floats.row_attention(*nothing, AttentionMetadata.unpaged(lens, CPU), 0.2).shape == (0, 4, 32)
        assert torch_ops.row_attention(*nothing, AttentionMetadata.unpaged(lens, CPU), 0.2).shape == (0, 4, 32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_are_turned_where_they_lie(cpp_floats: CpuOps, interleaved: bool, dtype: torch.dtype) -> None:
    q, k, _ = qkv_of([21], (6, 2, 24), dtype)
    angles = torch.randn(21, 8, generator=torch.Generator().manual_seed(0)) * 3
    want = reference.rotary(q, k, angles.cos(), angles.sin(), interleaved)
    for got, expected in zip(cpp_floats.rotary(q, k, angles.cos(), angles.sin(), interleaved), want, strict=True):
        close(got, expected)
