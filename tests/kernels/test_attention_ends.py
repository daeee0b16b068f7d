"""Attention where tokens see positions behind their own: every implementation, whatever the step is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire_kernels import quantized_pages, reference
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import attention as torch_attention, ops as torch_ops

FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PAGE = 16

Spans = Sequence[tuple[int, int]]

STEPS: dict[str, list[tuple[int, int, Spans]]] = {
    "a picture in a prompt": [(40, 40, [(7, 23)])],
    "two pictures side by side": [(40, 40, [(7, 23), (23, 39)])],
    "one that is all there is": [(16, 16, [(0, 16)])],
    "the rest of one": [(9, 30, [(10, 26)])],
    "longer than a block and than a tile": [(150, 220, [(75, 210)])],
    "among others": [
        (1, 9, []),
        (1, 9, []),
        (20, 70, [(55, 70)]),
        (1, 70, []),
        (1, 71, []),
        (5, 5, [(1, 4)]),
        (3, 33, []),
    ],
}
"""Chunks: tokens, context, and the positions that media take."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rows_of(chunks: Sequence[tuple[int, int, Spans]]) -> tuple[AttentionMetadata, Tensor, int]:
    """Rows on scattered pages; the slots of their positions, and how many pages there are."""
    lens, contexts = (np.array([chunk[i] for chunk in chunks], np.int32) for i in (0, 1))
    counts = -(-contexts // PAGE)
    order = np.random.default_rng(0).permutation(int(counts.sum())).astype(np.int32)
    pages = np.zeros((len(chunks), int(counts.max())), np.int32)
    slot_mapping, ends = [], []
    for r, (length, context, spans) in enumerate(chunks):
        pages[r, : counts[r]] = order[counts[:r].sum() :][: counts[r]]
        at = np.arange(context)
        slot_mapping.append(pages[r, at // PAGE].astype(np.int64) * PAGE + at % PAGE)
        seen = at + 1
        for start, end in spans:
            seen[start:end] = end
        ends.append(seen[context - length :])
    starts, host = np.cumsum([0, *lens], dtype=np.int32), np.concatenate(ends).astype(np.int32)
    rows = AttentionMetadata(
        *(torch.from_numpy(array) for array in (starts, contexts, pages)),
        *(lens, contexts, int(lens.max()), int(contexts.max())),
        visible_ends=torch.from_numpy(host),
        visible_ends_host=host,
    )
    return rows, torch.from_numpy(np.concatenate(slot_mapping)), len(order)


def drawn(
    rows: AttentionMetadata, slot_mapping: Tensor, heads: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """q of the step, k and v of all positions."""
    count, kv_heads, dim = heads
    q = torch.randn(int(rows.lens_host.sum()), count, dim).to(dtype)
    k, v = torch.randn(2, len(slot_mapping), kv_heads, dim).to(dtype)
    return q, k, v


def by(module: Any, rows: AttentionMetadata, stored: tuple[Tensor, Tensor, Tensor], q: Tensor, **limits: Any) -> Tensor:
    """The output of an implementation. Positions never written hold NaN or, in plain pages, 0."""
    k, v, slot_mapping = stored
    pages = int(slot_mapping.max()) // PAGE + 1
    bare = 0.0 if module in (reference, torch_ops) else torch.nan
    k_pool, v_pool = torch.full((2, pages, PAGE, *k.shape[1:]), bare, dtype=k.dtype)
    module.write_kv(k, v, k_pool, v_pool, slot_mapping)
    found: Tensor = module.paged_attention(q, k_pool, v_pool, rows, k.shape[2] ** -0.5, **limits)
    return found


def close(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


LIMITS = [(None, None), (5, None), (70, 5.0)]
HEADS = [(4, 4, 16), (6, 2, 24), (8, 1, 64), (8, 2, 128)]


@pytest.mark.parametrize(("window", "softcap"), LIMITS)
def test_the_reference_sees_a_picture_whole_and_no_further_back_than_its_window(
    window: int | None, softcap: float | None
) -> None:
    rows, slot_mapping, _ = rows_of([(30, 30, [(8, 20)])])
    q, k, v = drawn(rows, slot_mapping, (2, 2, 8), torch.float32)
    got = by(reference, rows, (k, v, slot_mapping), q, window=window, softcap=softcap)
    for p in range(30):
        end, first = (20 if 8 <= p < 20 else p + 1), max(0, p - window + 1) if window else 0
        scores = torch.einsum("hd,ihd->hi", q[p], k[first:end]) * 8**-0.5
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        torch.testing.assert_close(got[p], torch.einsum("hi,ihd->hd", scores.softmax(-1), v[first:end]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tile", [256, 8])
@pytest.mark.parametrize("chunks", STEPS.values(), ids=STEPS)
def test_plain_torch_gives_what_the_reference_gives(
    chunks: list[tuple[int, int, Spans]], tile: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention, "TILE", tile)
    rows, slot_mapping, _ = rows_of(chunks)
    for window, softcap in LIMITS:
        q, k, v = drawn(rows, slot_mapping, (6, 2, 16), dtype)
        stored, limits = (k, v, slot_mapping), {"window": window, "softcap": softcap}
        close(by(torch_ops, rows, stored, q, **limits), by(reference, rows, stored, q, **limits))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("chunks", STEPS.values(), ids=STEPS)
def test_the_compiled_ops_give_what_the_reference_gives(
    cpp: CpuOps, chunks: list[tuple[int, int, Spans]], heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, slot_mapping, _ = rows_of(chunks)
    for window, softcap in LIMITS:
        q, k, v = drawn(rows, slot_mapping, heads, dtype)
        stored, limits = (k, v, slot_mapping), {"window": window, "softcap": softcap}
        close(by(cpp, rows, stored, q, **limits), by(reference, rows, stored, q, **limits))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("chunks", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("kind", "dim", "error"), [(torch.int8, 24, 0.02), (torch.uint8, 32, 0.12)])
def test_quantized_pages_are_seen_alike(
    cpp: CpuOps,
    kind: torch.dtype,
    dim: int,
    error: float,
    chunks: list[tuple[int, int, Spans]],
    dtype: torch.dtype,
) -> None:
    rows, slot_mapping, pages = rows_of(chunks)
    q, k, v = drawn(rows, slot_mapping, (6, 2, dim), dtype)
    plain = by(reference, rows, (k, v, slot_mapping), q)
    found = []
    for module in (cpp, quantized_pages):
        size = quantized_pages.stored_elements(dim, kind)
        k_pool, v_pool = torch.zeros(2, pages, PAGE, 2, size, dtype=torch.uint8).view(kind)
        module.write_kv(k, v, k_pool, v_pool, slot_mapping)
        found.append(module.paged_attention(q, k_pool, v_pool, rows, dim**-0.5))
    close(found[0], found[1])
    assert (found[0] - plain).norm() / plain.norm() < error


@pytest.mark.parametrize("module", [reference, torch_ops], ids=["reference", "torch"])
def test_ends_that_say_nothing_change_nothing(module: Any) -> None:
    check_ends_that_say_nothing(module)


def test_ends_that_say_nothing_change_nothing_in_the_compiled_ops(cpp: CpuOps) -> None:
    check_ends_that_say_nothing(cpp)


def check_ends_that_say_nothing(module: Any) -> None:
    rows, slot_mapping, _ = rows_of([(40, 40, []), (1, 30, []), (7, 33, [])])
    q, k, v = drawn(rows, slot_mapping, (6, 2, 16), torch.float32)
    got = by(module, rows, (k, v, slot_mapping), q)
    assert torch.equal(
        got,
        by(module, replace(rows, visible_ends=None, visible_ends_host=None, step_cache={}), (k, v, slot_mapping), q),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_picture_gets_the_same_alone_and_among_others(cpp: CpuOps, dtype: torch.dtype) -> None:
    chunks = STEPS["among others"]
    rows, slot_mapping, _ = rows_of(chunks)
    q, k, v = drawn(rows, slot_mapping, (8, 2, 32), dtype)
    together = by(cpp, rows, (k, v, slot_mapping), q)
    tokens, assumed = slice(2, 22), rows.visible_ends_host
    assert assumed is not None
    alone = AttentionMetadata(
        torch.tensor([0, 20], dtype=torch.int32),
        *(rows.contexts[2:3], rows.pages[2:3], rows.lens_host[2:3], rows.contexts_host[2:3], 20, 70),
        visible_ends=torch.from_numpy(assumed[tokens].copy()),
        visible_ends_host=assumed[tokens],
    )
    assert torch.equal(by(cpp, alone, (k, v, slot_mapping), q[tokens]), together[tokens])
