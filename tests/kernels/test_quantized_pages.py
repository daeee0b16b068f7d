"""Keys and values of 8 and 4 bits: storing them, and attention to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cpu_rig import FLOATS
from torch import Tensor

from quire_kernels import quantized_pages, reference
from quire_kernels.attention import HeadGroups
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata
from quire_models.step.kv_cache import KVCache

pytestmark = pytest.mark.usefixtures("seeded")


def rows_of(lens: list[int], contexts: list[int], page_size: int) -> tuple[AttentionMetadata, Tensor, int]:
    """Rows with scattered pages, the slots of all their positions, and how many pages there are."""
    most = max(-(-context // page_size) for context in contexts)
    table = torch.from_numpy(np.random.default_rng(0).permutation(most * len(lens)).reshape(len(lens), most)).int()
    slot_mapping = [
        table[r, torch.arange(c) // page_size] * page_size + torch.arange(c) % page_size for r, c in enumerate(contexts)
    ]
    starts = torch.from_numpy(np.cumsum([0, *lens], dtype=np.int32))
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    rows = AttentionMetadata(starts, torch.from_numpy(host[1]), table, *host, max(lens), max(contexts))
    return rows, torch.cat(slot_mapping).long(), most * len(lens)


KINDS = quantized_pages.STORAGE.values()
KIND_IDS = tuple(quantized_pages.STORAGE)


def pools(
    pages: int, page_size: int, heads: int, dim: int, bare: bool = True, kind: torch.dtype = torch.int8
) -> tuple[Tensor, ...]:
    """Pools whose slots hold zeros, or bytes whose scales are no number if `bare`."""
    shape = pages, page_size, heads, quantized_pages.stored_elements(dim, kind)
    return tuple(torch.full(shape, 255 if bare else 0, dtype=torch.uint8).view(kind) for _ in range(2))


STEPS = [([1], [1]), ([1, 1, 1], [1, 15, 300]), ([13], [13]), ([5, 1, 70], [5, 129, 200])]


HEADS = [(4, 4, 16), (6, 2, 24), (9, 3, 64), (8, 1, 128)]
OF_CODES = [(4, 4, 32), (6, 2, 96), (9, 3, 64), (8, 1, 128)]
PARTS = [(5, 2, 64, HeadGroups(3)), (4, 3, 32, HeadGroups(2, 1)), (12, 2, 32, HeadGroups(9, 2))]
"""Of ranks that have parts of some groups of query heads."""
SHAPES = [(torch.int8, heads) for heads in (*HEADS, *PARTS)] + [(torch.uint8, heads) for heads in (*OF_CODES, *PARTS)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "heads"), SHAPES, ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (None, 5.0)])
def test_attention_to_quantized_pages_is_that_of_plain_torch(
    cpp: CpuOps,
    kind: torch.dtype,
    heads: tuple[Any, ...],
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
) -> None:
    count, kv_heads, dim, *parts = heads
    options = {"groups": parts[0]} if parts else {}
    for lens, contexts in STEPS:
        rows, slot_mapping, pages = rows_of(lens, contexts, 32)
        q = torch.randn(sum(lens), count, dim).to(dtype)
        k, v = torch.randn(2, len(slot_mapping), kv_heads, dim).to(dtype)
        found = []
        for module in (cpp, quantized_pages):
            k_pool, v_pool = pools(pages, 32, kv_heads, dim, module is cpp, kind)
            module.write_kv(k, v, k_pool, v_pool, slot_mapping)
            found.append(module.paged_attention(q, k_pool, v_pool, rows, dim**-0.5, window, softcap, **options))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "error"), [(torch.int8, 0.02), (torch.uint8, 0.12)])
def test_attention_to_quantized_pages_is_near_attention_to_what_they_stand_for(
    kind: torch.dtype, error: float, dtype: torch.dtype
) -> None:
    rows, slot_mapping, pages = rows_of([5, 1, 70], [5, 129, 200], 16)
    q, (k, v) = torch.randn(76, 6, 32).to(dtype), torch.randn(2, len(slot_mapping), 2, 32).to(dtype)
    plain, made = torch.zeros(2, pages, 16, 2, 32, dtype=dtype), pools(pages, 16, 2, 32, False, kind)
    reference.write_kv(k, v, *plain, slot_mapping)
    quantized_pages.write_kv(k, v, *made, slot_mapping)
    want = reference.paged_attention(q, *plain, rows, 32**-0.5)
    got = quantized_pages.paged_attention(q, *made, rows, 32**-0.5)
    assert 0 < (got - want).norm() / want.norm() < error


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("kind", "dim"), [(torch.int8, 24), (torch.uint8, 32)])
def test_turned_keys_are_stored_quantized(
    cpp: CpuOps, kind: torch.dtype, dim: int, interleaved: bool, dtype: torch.dtype
) -> None:
    rows, slot_mapping, pages = rows_of([40], [40], 16)
    q, angles = torch.randn(40, 4, dim).to(dtype), torch.randn(40, 12)
    k, v = torch.randn(2, 40, 2, dim).to(dtype)
    found = []
    for module in (cpp, quantized_pages):
        made = pools(pages, 16, 2, dim, False, kind)
        arguments = q.clone(), k.clone(), v, angles.cos(), angles.sin(), *made, slot_mapping, interleaved
        found.append(module.paged_attention(module.rotary_write_kv(*arguments), *made, rows, 0.2))
    torch.testing.assert_close(found[0], found[1], atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_a_row_is_the_same_alone_and_among_others_and_in_pages_that_were_copied(cpp: CpuOps, kind: torch.dtype) -> None:
    lens, contexts = [1, 33, 1], [70, 100, 17]
    rows, slot_mapping, pages = rows_of(lens, contexts, 16)
    q, (k, v) = torch.randn(35, 6, 64).bfloat16(), torch.randn(2, len(slot_mapping), 2, 64).bfloat16()
    made = pools(2 * pages, 16, 2, 64, False, kind)
    cpp.write_kv(k, v, *made, slot_mapping)
    together = cpp.paged_attention(q, *made, rows, 0.125)
    kv = KVCache((made[0],), (made[1],), 16)
    kv.copy([(page, page + pages) for page in range(pages)])
    made[0][:pages], made[1][:pages] = 0, 0
    start = 0
    for r, (length, context) in enumerate(zip(lens, contexts, strict=True)):
        host = np.array([length], np.int32), np.array([context], np.int32)
        ends = torch.tensor([0, length], dtype=torch.int32)
        one = AttentionMetadata(ends, torch.from_numpy(host[1]), rows.pages[r : r + 1] + pages, *host, length, context)
        alone = cpp.paged_attention(q[start : start + length], *made, one, 0.125)
        assert torch.equal(alone, together[start : start + length]), r
        start += length


def decoding(
    dim: int, contexts: list[int], kind: torch.dtype = torch.int8
) -> tuple[AttentionMetadata, Tensor, Tensor, Tensor, tuple[Tensor, ...], Tensor]:
    """A step of one token a row, three heads to a key-value head: rows, q, k, v, pools and the slots of k and v."""
    rows, slot_mapping, pages = rows_of([1] * len(contexts), contexts, 16)
    q = torch.randn(len(contexts), 6, dim).bfloat16()
    k, v = torch.randn(2, len(slot_mapping), 2, dim).bfloat16()
    return rows, q, k, v, pools(pages, 16, 2, dim, True, kind), slot_mapping


FEW_LINES = [*((torch.int8, dim) for dim in (4, 20, 64, 80)), *((torch.uint8, dim) for dim in (32, 96, 128))]


@pytest.mark.parametrize(("kind", "dim"), FEW_LINES)
def test_few_lines_lose_nothing_but_what_codes_lose(cpp: CpuOps, kind: torch.dtype, dim: int) -> None:
    rows, q, k, v, made, slot_mapping = decoding(dim, [1, 64, 301], kind)
    q[1] *= 1000.0  # one position outweighs all others
    cpp.write_kv(k, v, *made, slot_mapping)
    plain = torch.zeros(2, int(rows.pages.max()) + 1, 16, 2, dim)
    whole = [quantized_pages.decode(quantized_pages.encode(x, kind), torch.float32) for x in (k, v)]
    reference.write_kv(*whole, *plain, slot_mapping)
    want = reference.paged_attention(q.float(), *plain, rows, dim**-0.5)
    multiplied = "avx512_vnni" in cpp.library.isa.needs
    atol, rtol = (1e-3, 2**-8) if multiplied else (1e-2, 2**-7)  # otherwise weights are bfloat16
    torch.testing.assert_close(cpp.paged_attention(q, *made, rows, dim**-0.5).float(), want, atol=atol, rtol=rtol)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_what_is_not_finite_stays_with_its_row(cpp: CpuOps, kind: torch.dtype) -> None:
    for which in range(3):
        rows, q, k, v, made, slot_mapping = decoding(64, [70, 70, 70], kind)
        cpp.write_kv(k, v, *made, slot_mapping)
        whole = cpp.paged_attention(q, *made, rows, 0.125)
        (q, k, v)[which][1 if which == 0 else 75] = torch.inf
        cpp.write_kv(k, v, *made, slot_mapping)
        found = cpp.paged_attention(q, *made, rows, 0.125)
        assert found[1].isnan().all()
        assert torch.equal(found[[0, 2]], whole[[0, 2]])


def test_a_query_of_zeros_gives_the_mean_of_all_values(cpp: CpuOps) -> None:
    rows, q, k, v, made, slot_mapping = decoding(64, [50])
    cpp.write_kv(k, v, *made, slot_mapping)
    mean = v.float().mean(0).repeat_interleave(3, 0)
    torch.testing.assert_close(cpp.paged_attention(0 * q, *made, rows, 0.125)[0].float(), mean, atol=1e-2, rtol=1e-2)


def test_codes_are_within_half_a_step_of_what_they_stand_for() -> None:
    x = torch.randn(50, 3, 64) * torch.logspace(-6, 4, 50)[:, None, None]
    x[0], x[1], x[2, :, 5] = 0, 3.25, 100
    stored = quantized_pages.encode(x, torch.uint8)
    near = quantized_pages.decode(stored, torch.float32)
    turned, back = (quantized_pages.rotate(each.unflatten(-1, (-1, 32))) for each in (x, near))
    steps = (turned.amax(-1) - turned.amin(-1)) / 15
    rounding = 2.0**-10 * turned.abs().amax(-1) + 2.0**-23  # of scale and offset to float16
    assert ((turned - back).abs().amax(-1) <= 0.5 * steps + rounding).all()
    torch.testing.assert_close(quantized_pages.rotate(turned[20]).flatten(-2), x[20], atol=1e-5, rtol=1e-5)
    assert not near[0].any()


@pytest.mark.parametrize("excess", [torch.nan, torch.inf, 1e6])
def test_a_block_that_float16_cannot_scale_is_not_a_number_and_its_neighbor_is(cpp: CpuOps, excess: float) -> None:
    k = torch.randn(1, 1, 64)
    k[0, 0, 3] = excess
    for module in (cpp, quantized_pages):
        rows, slot_mapping, pages = rows_of([1], [1], 16)
        made = pools(pages, 16, 1, 64, False, torch.uint8)
        module.write_kv(torch.zeros(1, 1, 64), k, *made, slot_mapping)
        found = module.paged_attention(torch.zeros(1, 1, 64), *made, rows, 1.0)[0, 0]
        assert found[:32].isnan().all()
        torch.testing.assert_close(found[32:], k[0, 0, 32:], atol=0.5, rtol=0)


@pytest.mark.parametrize(("kind", "sizes", "share"), [(torch.int8, (68, 36), 0.54), (torch.uint8, (40, 20), 0.3125)])
def test_quantized_pools_take_what_they_promise(kind: torch.dtype, sizes: tuple[int, int], share: float) -> None:
    from quire_models.parts.decoder import KvShape

    shapes = [KvShape(3, 64), KvShape(1, 32)]
    pool = KVCache.allocate(shapes, 5, 16, kind, "cpu")
    assert [tuple(k.shape) for k in pool.k] == [(5, 16, 3, sizes[0]), (5, 16, 1, sizes[1])]
    size = KVCache.page_bytes(shapes, 16, kind)
    assert size * 5 == sum(t.numel() * t.element_size() for t in (*pool.k, *pool.v))
    assert size / KVCache.page_bytes(shapes, 16, torch.bfloat16) == pytest.approx(share, abs=0.005)
