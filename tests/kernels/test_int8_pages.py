"""Keys and values as bytes: storing them, and attention to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_rig import FLOATS
from torch import Tensor

from quire_kernels import int8, int8_pages, reference
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata
from quire_models.step.kv_cache import KVCache

pytestmark = pytest.mark.usefixtures("threads")


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


def pools(pages: int, page_size: int, heads: int, dim: int, fill: int = 0) -> tuple[Tensor, ...]:
    return tuple(
        torch.full((pages, page_size, heads, dim + int8.SCALE_BYTES), fill, dtype=torch.int8) for _ in range(2)
    )


STEPS = [([1], [1]), ([1, 1, 1], [1, 15, 300]), ([13], [13]), ([5, 1, 70], [5, 129, 200])]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4, 16), (6, 2, 24), (9, 3, 64), (8, 1, 128)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (7, None), (None, 5.0)])
def test_attention_to_bytes_is_that_of_plain_torch(
    cpp: CpuOps, heads: tuple[int, int, int], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    count, kv_heads, dim = heads
    for lens, contexts in STEPS:
        rows, slot_mapping, pages = rows_of(lens, contexts, 32)
        q = torch.randn(sum(lens), count, dim).to(dtype)
        k, v = torch.randn(2, len(slot_mapping), kv_heads, dim).to(dtype)
        found = []
        for module, fill in ((cpp, -1), (int8_pages, 0)):  # four bytes of -1 are no number
            k_pool, v_pool = pools(pages, 32, kv_heads, dim, fill)
            module.write_kv(k, v, k_pool, v_pool, slot_mapping)
            found.append(module.paged_attention(q, k_pool, v_pool, rows, dim**-0.5, window, softcap))
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_to_bytes_is_near_attention_to_what_they_stand_for(dtype: torch.dtype) -> None:
    rows, slot_mapping, pages = rows_of([5, 1, 70], [5, 129, 200], 16)
    q, (k, v) = torch.randn(76, 6, 32).to(dtype), torch.randn(2, len(slot_mapping), 2, 32).to(dtype)
    plain, made = torch.zeros(2, pages, 16, 2, 32, dtype=dtype), pools(pages, 16, 2, 32)
    reference.write_kv(k, v, *plain, slot_mapping)
    int8_pages.write_kv(k, v, *made, slot_mapping)
    want = reference.paged_attention(q, *plain, rows, 32**-0.5)
    got = int8_pages.paged_attention(q, *made, rows, 32**-0.5)
    assert 0 < (got - want).norm() / want.norm() < 0.02


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_keys_are_stored_as_bytes(cpp: CpuOps, interleaved: bool, dtype: torch.dtype) -> None:
    rows, slot_mapping, pages = rows_of([40], [40], 16)
    q, angles = torch.randn(40, 4, 24).to(dtype), torch.randn(40, 12)
    k, v = torch.randn(2, 40, 2, 24).to(dtype)
    found = []
    for module in (cpp, int8_pages):
        made = pools(pages, 16, 2, 24)
        arguments = q.clone(), k.clone(), v, angles.cos(), angles.sin(), *made, slot_mapping, interleaved
        found.append(module.paged_attention(module.rotary_write_kv(*arguments), *made, rows, 0.2))
    torch.testing.assert_close(found[0], found[1], atol=2e-2, rtol=2e-2)


def test_a_row_is_the_same_alone_and_among_others_and_in_pages_that_were_copied(cpp: CpuOps) -> None:
    lens, contexts = [1, 33, 1], [70, 100, 17]
    rows, slot_mapping, pages = rows_of(lens, contexts, 16)
    q, (k, v) = torch.randn(35, 6, 64).bfloat16(), torch.randn(2, len(slot_mapping), 2, 64).bfloat16()
    made = pools(2 * pages, 16, 2, 64)
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
    dim: int, contexts: list[int]
) -> tuple[AttentionMetadata, Tensor, Tensor, Tensor, tuple[Tensor, ...], Tensor]:
    """A step of one token a row, three heads to a key-value head: rows, q, k, v, pools and the slots of k and v."""
    rows, slot_mapping, pages = rows_of([1] * len(contexts), contexts, 16)
    q = torch.randn(len(contexts), 6, dim).bfloat16()
    k, v = torch.randn(2, len(slot_mapping), 2, dim).bfloat16()
    return rows, q, k, v, pools(pages, 16, 2, dim, -1), slot_mapping


@pytest.mark.parametrize("dim", [4, 20, 64, 80])
def test_few_lines_lose_nothing_but_what_bytes_lose(cpp: CpuOps, dim: int) -> None:
    rows, q, k, v, made, slot_mapping = decoding(dim, [1, 64, 301])
    q[1] *= 1000.0  # one position outweighs all others
    cpp.write_kv(k, v, *made, slot_mapping)
    plain = torch.zeros(2, int(rows.pages.max()) + 1, 16, 2, dim)
    whole = [int8.dequantize(*int8.quantize(x), torch.float32) for x in (k, v)]
    reference.write_kv(*whole, *plain, slot_mapping)
    want = reference.paged_attention(q.float(), *plain, rows, dim**-0.5)
    multiplied = "avx512_vnni" in cpp.library.isa.needs
    atol, rtol = (1e-3, 2**-8) if multiplied else (1e-2, 2**-7)  # otherwise weights are bfloat16
    torch.testing.assert_close(cpp.paged_attention(q, *made, rows, dim**-0.5).float(), want, atol=atol, rtol=rtol)


def test_what_is_not_finite_stays_with_its_row(cpp: CpuOps) -> None:
    for which in range(3):
        rows, q, k, v, made, slot_mapping = decoding(64, [70, 70, 70])
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


def test_pools_of_bytes_take_little_more_than_half_of_bfloat16() -> None:
    from quire_models.parts.decoder import KvShape

    shapes = [KvShape(3, 64), KvShape(1, 32)]
    pool = KVCache.allocate(shapes, 5, 16, torch.int8, "cpu")
    assert [tuple(k.shape) for k in pool.k] == [(5, 16, 3, 68), (5, 16, 1, 36)]
    size = KVCache.page_bytes(shapes, 16, torch.int8)
    assert size * 5 == sum(t.numel() * t.element_size() for t in (*pool.k, *pool.v))
    assert size / KVCache.page_bytes(shapes, 16, torch.bfloat16) == pytest.approx(0.5 * (3 * 68 + 36) / (3 * 64 + 32))
