"""Attention and pages of the C++ ops: right, and a row the same to the last bit however a step is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from attention_rig import SINGLE, STEPS, Attention, cut, expected
from cpu_rig import FLOATS, close
from torch import Tensor

from quire_kernels import reference
from quire_kernels.attention import HeadGroups
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata

pytestmark = pytest.mark.usefixtures("seeded")


# --- attention -------------------------------------------------------------------------------------------

LIMITS = [(None, None), (4, None), (70, None), (None, 5.0), (33, 5.0)]
HEADS = [(4, 4, 16), (6, 2, 24), (8, 1, 64), (9, 3, 64), (14, 2, 64), (4, 2, 128), (4, 2, 8), (2, 1, 256), (3, 1, 2)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_is_the_reference_and_stale_slots_are_never_read(
    cpp_floats: CpuOps, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    for i, (lens, contexts) in enumerate(STEPS):
        for window, softcap in {LIMITS[0], LIMITS[i % len(LIMITS)], LIMITS[heads[2] % len(LIMITS)]}:
            case = Attention(lens, contexts, *heads, dtype, window, softcap, page_size=(16, 32, 48)[i % 3])
            close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (6, 2, 24)], ids=str)
def test_lines_see_some_blocks_of_their_window_whole(
    cpp_floats: CpuOps, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    case = Attention((300,), (400,), *heads, dtype, window=150)
    close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dim", [1, 3, 33])
def test_head_dimensions_may_be_odd_in_float32(cpp_floats: CpuOps, dim: int) -> None:
    for lens, contexts in STEPS[:4]:
        case = Attention(lens, contexts, 4, 2, dim)
        close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_query_heads_than_a_tile_has_lines(cpp_floats: CpuOps, dtype: torch.dtype) -> None:
    case = Attention((3, 1), (20, 70), 300, 1, 16, dtype)
    close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_may_share_pages_and_may_have_no_tokens(cpp_floats: CpuOps, dtype: torch.dtype) -> None:
    for case in (
        Attention((1, 1, 20), (70, 65, 84), 4, 2, 32, dtype, shared=4),
        Attention((1, 0, 3, 0), (70, 65, 20, 0), 4, 2, 32, dtype),
    ):
        close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("heads", "groups"),
    [((5, 2, 64), (3, 0)), ((4, 2, 24), (3, 2)), ((6, 3, 32), (4, 3)), ((8, 2, 96), (7, 3)), ((25, 2, 32), (20, 15))],
    ids=str,
)
def test_a_rank_may_have_parts_of_the_first_and_last_group_of_heads(
    cpp_floats: CpuOps, heads: tuple[int, int, int], groups: tuple[int, int], dtype: torch.dtype
) -> None:
    """With few lines of a key-value head and with many, in tiles of one row and of several that share pages."""
    for lens, contexts in (*STEPS[:5], ((1,) * 3, (200, 165, 140))):
        shared = 4 if contexts[0] == 200 and len(lens) == 3 else 0
        case = Attention(lens, contexts, *heads, dtype, shared=shared, groups=HeadGroups(*groups))
        close(case.by(cpp_floats), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4, 32), (8, 2, 64), (6, 2, 24), (16, 1, 32)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, 3.0)])
def test_a_row_is_the_same_alone_and_among_others(
    cpp_floats: CpuOps, heads: tuple[int, int, int], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    for lens, contexts in STEPS:
        case = Attention(lens, contexts, *heads, dtype, window, softcap)
        q, _, _, _, rows, _ = case.tensors
        together = case.by(cpp_floats)
        for r in sorted({0, len(lens) // 2, len(lens) - 1}):
            part = slice(sum(lens[:r]), sum(lens[: r + 1]))
            alone = AttentionMetadata(
                torch.tensor([0, lens[r]], dtype=torch.int32),
                rows.contexts[r : r + 1],
                rows.pages[r : r + 1],
                rows.lens_host[r : r + 1],
                rows.contexts_host[r : r + 1],
                lens[r],
                contexts[r],
            )
            assert torch.equal(case.by(cpp_floats, alone, q[part]), together[part]), f"row {r} of {lens}"


CUTS = [(40, 40), (72, 8), (8, 72), (16, 16, 24, 24), (33, 47)]


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_chunk_is_the_same_however_it_is_cut(cpp_floats: CpuOps, dtype: torch.dtype, window: int | None) -> None:
    """With AMX in bfloat16 there are two ways to compute, one of them for tiles of less than 8 lines (tokens × query
    heads of a key-value head). Each is the same for any cut; between them are differences of rounding."""
    case = Attention((80,), (200,), 8, 2, 32, dtype, window)
    whole = case.by(cpp_floats)
    for lens in CUTS:
        assert torch.equal(case.by(cpp_floats, *cut(case, lens)), whole), lens
    one_by_one = case.by(cpp_floats, *cut(case, SINGLE))
    if cpp_floats.library.isa.name == "amx" and dtype == torch.bfloat16:
        close(one_by_one, whole)
    else:
        assert torch.equal(one_by_one, whole)


LONG = [
    ((1,), (4500,)),
    ((3, 1), (4100, 30)),
    ((1, 1, 1), (4300, 4250, 2070)),
    ((40, 1), (2100, 4097)),
]
"""Contexts of several splits (2048 positions): threads share the splits of a tile."""


@contextmanager
def computed_by(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", [None, 2500])
@pytest.mark.parametrize("sinks", [None, (2.0, -1.0, 0.0, 30.0, -30.0, 1.0)])
def test_long_contexts_are_the_reference_and_the_same_by_any_number_of_threads(
    cpp_floats: CpuOps, dtype: torch.dtype, window: int | None, sinks: tuple[float, ...] | None
) -> None:
    for lens, contexts in LONG:
        shared = 129 if len(lens) == 3 else 0
        case = Attention(lens, contexts, 6, 2, 16, dtype, window, shared=shared, sinks=sinks)
        with computed_by(1):
            alone = case.by(cpp_floats)
        close(alone, expected(case))
        for threads in (2, 3):
            with computed_by(threads):
                assert torch.equal(case.by(cpp_floats), alone), (lens, threads)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_long_prompt_is_the_same_in_chunks_of_any_size(cpp_floats: CpuOps, dtype: torch.dtype, seed: int) -> None:
    """Its last 300 tokens; a split begins among them. Chunks have at least the lines that AMX tiles need."""
    context, tokens = 4200, 300
    case, rng, done = Attention((tokens,), (context,), 6, 2, 16, dtype), np.random.default_rng(seed), 0
    q, whole, pages = case.tensors[0], case.by(cpp_floats), case.tensors[4].pages
    while done < tokens:
        size = min(int(rng.integers(8, 130)), tokens - done)
        size = size if tokens - done - size >= 8 else tokens - done
        end = context - tokens + done + size
        host = np.array([size], np.int32), np.array([end], np.int32)
        starts = torch.tensor([0, size], dtype=torch.int32)
        chunk = AttentionMetadata(starts, torch.from_numpy(host[1]), pages, *host, size, end)
        part = slice(done, done + size)
        assert torch.equal(case.by(cpp_floats, chunk, q[part]), whole[part]), part
        done += size


# --- storing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(16, 8), (24, 12), (64, 8), (80, 40), (8, 1)])
def test_turning_and_storing_is_turning_then_storing(
    cpp_floats: CpuOps, dim: int, pairs: int, interleaved: bool, dtype: torch.dtype
) -> None:
    tokens, heads, kv_heads = 21, 6, 2
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.randn(tokens, pairs) * 3
    slot_mapping = torch.randperm(64)[:tokens]
    pools = torch.zeros(2, 2, 2, 32, kv_heads, dim, dtype=dtype)

    def parts() -> list[Tensor]:
        split = qkv.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        return [t.unflatten(-1, (-1, dim)) for t in split]

    q, k, v = parts()
    want_q, want_k = reference.rotary(q, k, angles.cos(), angles.sin(), interleaved)
    got = cpp_floats.rotary_write_kv(*parts(), angles.cos(), angles.sin(), *pools[0], slot_mapping, interleaved)
    close(got, want_q)
    cpp_floats.write_kv(want_k, v, *pools[1], slot_mapping)
    close(pools[0, 0], pools[1, 0])
    assert torch.equal(pools[0, 1], pools[1, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_heads_that_lie_apart_are_stored_all_the_same(cpp_floats: CpuOps, dtype: torch.dtype) -> None:
    k, v = torch.randn(2, 5, 2, 16).to(dtype)
    slot_mapping, pools = torch.tensor([3, 16, 31, 0, 7]), torch.zeros(2, 2, 2, 16, 2, 16, dtype=dtype)
    cpp_floats.write_kv(k, v, *pools[0], slot_mapping)
    apart = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v)]
    assert apart[0].stride() != k.stride()
    cpp_floats.write_kv(*apart, *pools[1], slot_mapping)
    assert torch.equal(pools[0], pools[1])
    assert pools[0].count_nonzero() == k.count_nonzero() + v.count_nonzero()


@pytest.mark.parametrize("dtype", FLOATS)
def test_pages_can_be_copied_whole(cpp_floats: CpuOps, dtype: torch.dtype) -> None:
    case = Attention((1,), (40,), 4, 2, 32, dtype)
    q, k, v, slot_mapping, rows, pages = case.tensors
    k_pool, v_pool = case.pools(pages + 3)
    cpp_floats.write_kv(k, v, k_pool, v_pool, slot_mapping)
    want = cpp_floats.paged_attention(q, k_pool, v_pool, rows, 0.2)
    for pool in (k_pool, v_pool):
        pool[pages : pages + 3] = pool[rows.pages[0].long()]
        pool[:pages] = torch.nan
    rows.pages[0] = torch.arange(pages, pages + 3)
    assert torch.equal(cpp_floats.paged_attention(q, k_pool, v_pool, rows, 0.2), want)
