"""Weights as bytes, and keys and values as bytes: products, pages, engines, settings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import greedy, random_ids, related_prompts, rig_of
from torch import Tensor

from quire import cli, registry
from quire.config import ModelConfig
from quire.engine.load import load_model
from quire.errors import ConfigError
from quire.records import OpQuery, Quantization, Registry
from quire.testing.tiny import tiny_llama
from quire_kernels import int8, int8_pages, reference, select
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.recorded import Program, Recorded
from quire_kernels.ops import Rows
from quire_models.pool import KvPool

HERE = {found.name: found for found in isa.available()} if build.compiler() else {}
FLOATS = (torch.float32, torch.bfloat16)


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(load(HERE[request.param]))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


# --- bytes and their scales ----------------------------------------------------------------------------


def test_a_vector_is_bytes_times_a_scale_and_the_largest_becomes_127() -> None:
    whole, scale = int8.quantise(torch.tensor([[2.0, -4.0, 0.0, 1.0], [0.0] * 4, [1e-38] * 4]))
    assert whole.tolist() == [[64, -127, 0, 32], [0] * 4, [0] * 4]
    torch.testing.assert_close(scale[:, 0], torch.tensor([4 / 127, 0.0, 0.0]))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row_and_no_other(wrong: float) -> None:
    x = torch.ones(3, 70)
    x[1, 69] = wrong
    y = reference.linear_int8(torch.ones(5, 70), None)(x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[[0, 2]], torch.full((2, 5), 70.0))


# --- products ------------------------------------------------------------------------------------------

MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (2, 3), (70, 33), (48, 1537), (130, 576)]
"""(outputs, inputs): multiples of a panel's 32 and 64 and others; one whose rows take more than one block."""
COUNTS = (1, 2, 3, 4, 5, 11, 12, 13, 16, 17, 31, 32, 33, 65, 200)


@cache
def factors(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(outputs, inputs, generator=made), torch.randn(outputs, generator=made)
    return weight.to(dtype), bias.to(dtype), torch.randn(max(COUNTS), inputs, generator=made).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_the_reference_to_the_last_bit_among_any_number_of_rows(
    cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, bias, x = factors(*shape, dtype)
    want = reference.linear_int8(weight, None)(x, True)
    for gated in (False, True):
        product = cpp.linear_int8(weight, None, gated)
        for count in COUNTS:
            assert torch.equal(product(x[:count], True), want[:count]), (gated, count)
            assert torch.equal(product(x[-count:]), want[-count:].to(dtype)), (gated, count)
        added = cpp.linear_int8(weight, bias, gated)(x, True)
        torch.testing.assert_close(added, want + bias.float(), atol=1e-5, rtol=1e-5)


def test_a_product_is_near_that_of_the_original_weight(cpp: CpuOps) -> None:
    weight, bias, x = factors(130, 576, torch.float32)
    exact = reference.linear(weight, bias)(x)
    off = (cpp.linear_int8(weight, bias)(x) - exact).norm() / exact.norm()
    assert 0.001 < off < 0.015, "a step is 1/127 of the largest: about one hundredth of a usual element"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gated", [False, True])
def test_packed_bytes_give_the_weight_back_as_they_have_it(cpp: CpuOps, gated: bool, dtype: torch.dtype) -> None:
    weight = factors(100, 70, dtype)[0]
    want, ids = reference.linear_int8(weight, None), torch.tensor([99, 0, 50, 49, 31])
    product = cpp.linear_int8(weight, None, gated)
    assert torch.equal(product.unpacked(), want.unpacked())
    assert torch.equal(product.unpacked(ids), want.unpacked(ids))
    assert (want.unpacked() - weight).abs().max() < weight.abs().max() / 127


@pytest.mark.parametrize("dtype", FLOATS)
def test_bytes_of_x_may_come_from_anywhere_and_from_nowhere(cpp: CpuOps, dtype: torch.dtype) -> None:
    weight, bias, x = factors(33, 65, dtype)
    product = cpp.linear_int8(weight, bias)
    want = product(x)
    assert torch.equal(product(x.T.contiguous().T), want)
    wide = torch.full((len(x), 200), torch.nan, dtype=dtype)
    wide[:, 7:72] = x
    assert torch.equal(product(wide[:, 7:72]), want)
    assert product(x[:0]).shape == (0, 33)
    with pytest.raises(ValueError, match=r"takes \[..., 65\]"):
        product(x[:, :64])


def test_a_row_that_is_not_finite_gives_nan_alone(cpp: CpuOps) -> None:
    weight, _, x = factors(96, 64, torch.float32)
    for count in (3, 40):
        some = x[:count].clone()
        some[1, 5] = torch.inf
        y = cpp.linear_int8(weight, None)(some)
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], cpp.linear_int8(weight, None)(x[[0, 2]]))


# --- pages ---------------------------------------------------------------------------------------------


def rows_of(lens: list[int], contexts: list[int], page_size: int) -> tuple[Rows, Tensor, int]:
    """Rows with scattered pages, the slots of all their positions, and how many pages there are."""
    most = max(-(-context // page_size) for context in contexts)
    table = torch.from_numpy(np.random.default_rng(0).permutation(most * len(lens)).reshape(len(lens), most)).int()
    slots = [table[r, torch.arange(c) // page_size] * page_size + torch.arange(c) % page_size for r, c in enumerate(contexts)]
    starts = torch.from_numpy(np.cumsum([0, *lens], dtype=np.int32))
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    rows = Rows(starts, torch.from_numpy(host[1]), table, *host, max(lens), max(contexts))
    return rows, torch.cat(slots).long(), most * len(lens)


def pools(pages: int, page_size: int, heads: int, dim: int) -> tuple[Tensor, ...]:
    return tuple(torch.full((pages, page_size, heads, dim + int8.SCALE_BYTES), 127, dtype=torch.int8) for _ in range(2))


STEPS = [([1], [1]), ([1, 1, 1], [1, 15, 300]), ([13], [13]), ([5, 1, 70], [5, 129, 200])]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4, 16), (6, 2, 24), (9, 3, 64), (8, 1, 128)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (None, 5.0)])
def test_attention_to_bytes_is_that_of_plain_torch(
    cpp: CpuOps, heads: tuple[int, int, int], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    count, kv_heads, dim = heads
    for lens, contexts in STEPS:
        rows, slots, pages = rows_of(lens, contexts, 32)
        q = torch.randn(sum(lens), count, dim).to(dtype)
        k, v = torch.randn(2, len(slots), kv_heads, dim).to(dtype)
        found = []
        for module in (cpp, int8_pages):
            k_pool, v_pool = pools(pages, 32, kv_heads, dim)
            module.write_kv(k, v, k_pool, v_pool, slots)
            found.append(module.paged_attention(q, k_pool, v_pool, rows, dim**-0.5, window, softcap))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_to_bytes_is_near_attention_to_what_they_stand_for(dtype: torch.dtype) -> None:
    rows, slots, pages = rows_of([5, 1, 70], [5, 129, 200], 16)
    q, (k, v) = torch.randn(76, 6, 32).to(dtype), torch.randn(2, len(slots), 2, 32).to(dtype)
    k_pool, v_pool = pools(pages, 16, 2, 32)
    int8_pages.rotary_write_kv(q.clone(), k, v, torch.ones(len(slots), 16)[: len(q)], torch.zeros(76, 16), k_pool, v_pool, slots) if (
        len(q) == len(slots)
    ) else int8_pages.write_kv(k, v, k_pool, v_pool, slots)
    plain = torch.zeros(2, pages, 16, 2, 32, dtype=dtype)
    reference.write_kv(k, v, *plain, slots)
    want = reference.paged_attention(q, *plain, rows, 32**-0.5)
    got = int8_pages.paged_attention(q, k_pool, v_pool, rows, 32**-0.5)
    assert (got - want).norm() / want.norm() < 0.02


