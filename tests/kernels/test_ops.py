"""Every built-in implementation of an op against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire_kernels import ops, reference
from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import attention as torch_attention, ops as torch_ops

FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def close(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# --- norms, activations, embeddings ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weight_dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 8), (7, 48), (5, 3, 16)])
def test_rms_norm_is_the_reference(shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(weight_dtype)
    before = x.clone()
    close(torch_ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert torch.equal(x, before), "the input of a norm is still needed"


@pytest.mark.parametrize("dtype", FLOATS)
def test_adding_and_normalising_is_the_reference(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 32).to(dtype), torch.randn(5, 32).to(dtype), torch.randn(32).to(dtype)
    want = reference.add_rms_norm(x, residual, weight, 1e-5)
    got = torch_ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    close(got[0], want[0])
    close(got[1], want[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_is_the_reference(dtype: torch.dtype, affine: bool) -> None:
    x = torch.randn(6, 32).to(dtype) + 3
    weight, bias = (torch.randn(32).to(dtype), torch.randn(32).to(dtype)) if affine else (None, None)
    close(torch_ops.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("act", ops.ACTS)
def test_gated_activations_are_the_reference(dtype: torch.dtype, act: str) -> None:
    gate_up = torch.randn(5, 24).to(dtype)
    before = gate_up.clone()
    close(torch_ops.gated_act(gate_up, act), reference.gated_act(gate_up, act))
    assert torch.equal(gate_up, before)


def test_activations_have_the_values_their_names_promise() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert reference.act(x, "relu2").tolist() == [0.0, 0.0, 4.0]
    torch.testing.assert_close(reference.act(x, "silu"), x * torch.sigmoid(x))
    torch.testing.assert_close(reference.act(x, "quick_gelu"), x * torch.sigmoid(1.702 * x))
    assert reference.act(x, "identity").tolist() == x.tolist()


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_embedding_gives_rows_that_may_be_overwritten(scale: float) -> None:
    table, ids = torch.randn(11, 6), torch.tensor([3, 3, 0])
    got = torch_ops.embedding(ids, table, scale)
    close(got, reference.embedding(ids, table, scale))
    got.zero_()
    assert table[3].abs().sum() > 0


def test_logits_are_scaled_before_they_are_capped() -> None:
    x = torch.tensor([[100.0, -2.0]])
    got = reference.scale_logits(x, 0.5, 30.0)
    torch.testing.assert_close(got, 30 * torch.tanh(x * 0.5 / 30))
    assert reference.scale_logits(x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("experts", [1, 4, 9])
def test_mixture_is_the_reference(dtype: torch.dtype, experts: int) -> None:
    x, hidden, top_k = torch.randn(7, 16).to(dtype), 12, min(2, experts)
    weights, chosen = torch.randn(7, experts).softmax(-1).topk(top_k, -1)
    gate_up = (torch.randn(experts, 2 * hidden, 16) / 4).to(dtype)
    down = (torch.randn(experts, 16, hidden) / 4).to(dtype)
    arguments = (gate_up, down, ExpertMlp("silu"))
    close(torch_ops.moe(*arguments)(x, weights, chosen), reference.moe(*arguments)(x, weights, chosen))


# --- rotary and page pool ----------------------------------------------------------------------------


def rotary_inputs(dtype: torch.dtype, half: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    qkv = torch.randn(5, (4 + 2 + 2) * 16).to(dtype)
    q, k, v = (t.unflatten(-1, (-1, 16)) for t in qkv.split([64, 32, 32], -1))
    angles = torch.randn(5, half)
    return q, k, v, angles.cos(), angles.sin()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("half", [8, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_is_the_reference(dtype: torch.dtype, half: int, interleaved: bool) -> None:
    q, k, _, cos, sin = rotary_inputs(dtype, half)
    want = reference.rotary(q, k, cos, sin, interleaved)
    got = torch_ops.rotary(q.clone(), k.clone(), cos, sin, interleaved)
    close(got[0], want[0])
    close(got[1], want[1])


def test_rotary_keeps_lengths_and_depends_only_on_distance() -> None:
    q, k = torch.randn(1, 1, 8).expand(6, 1, 8), torch.randn(1, 1, 8).expand(6, 1, 8)
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    q, k = reference.rotary(q, k, angles.cos(), angles.sin())
    scores = (q[:, 0] @ k[:, 0].T).diagonal(-2)
    torch.testing.assert_close(scores, scores[:1].expand_as(scores))
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(6, 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fused", [False, True])
def test_keys_and_values_land_in_their_slots(dtype: torch.dtype, fused: bool) -> None:
    q, k, v, cos, sin = rotary_inputs(dtype, 8)
    slot_mapping = torch.tensor([7, 0, 23, 8, 11])
    pools = [torch.zeros(2, 6, 4, 2, 16, dtype=dtype) for _ in range(2)]
    for (k_pool, v_pool), module in zip(pools, (reference, torch_ops), strict=True):
        if fused:
            module.rotary_write_kv(q.clone(), k.clone(), v, cos, sin, k_pool, v_pool, slot_mapping)
        else:
            module.write_kv(k, v, k_pool, v_pool, slot_mapping)
    close(pools[1], pools[0])
    assert torch.equal(pools[1][1].view(-1, 2, 16)[slot_mapping], v)
    assert pools[1].abs().sum((0, 3, 4)).count_nonzero() == len(slot_mapping), "other slots are untouched"


# --- attention ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Chunks (tokens, context) over scattered pages; unused pages hold garbage."""

    chunks: Sequence[tuple[int, int]]
    page_size: int = 4

    def rows(self) -> tuple[AttentionMetadata, int]:
        lens, contexts = (np.array(column, dtype=np.int32) for column in zip(*self.chunks, strict=True))
        counts = -(-contexts // self.page_size)
        order = np.random.default_rng(1).permutation(int(counts.sum()) + 3).astype(np.int32)
        pages = np.full((len(lens), int(counts.max())), order[-1], dtype=np.int32)
        for r, count in enumerate(counts):
            pages[r, :count] = order[counts[:r].sum() :][:count]
        starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
        on_device = torch.from_numpy(starts), torch.from_numpy(contexts), torch.from_numpy(pages)
        return AttentionMetadata(*on_device, lens, contexts, int(lens.max()), int(contexts.max())), len(order)


RAGGED = {
    "one token": [(1, 1)],
    "single tokens of one length": [(1, 9)] * 3,
    "single tokens of many lengths": [(1, n) for n in (1, 90, 3, 17, 4, 61, 5)],
    "a whole prompt": [(13, 13)],
    "whole prompts of one length": [(6, 6), (6, 6)],
    "a chunk in the middle": [(5, 12)],
    "everything at once": [(1, 9), (7, 7), (3, 20), (1, 33), (3, 21), (1, 1), (12, 30)],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("chunks", RAGGED.values(), ids=RAGGED)
def test_paged_attention_is_the_reference(
    chunks: list[tuple[int, int]],
    softcap: float | None,
    window: int | None,
    heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    rows, num_pages = Batch(chunks).rows()
    q = torch.randn(sum(n for n, _ in chunks), heads[0], 16).to(dtype)
    k_pool, v_pool = torch.randn(2, num_pages, 4, heads[1], 16).to(dtype)
    arguments = (q, k_pool, v_pool, rows, 0.3, window, softcap)
    close(torch_ops.paged_attention(*arguments), reference.paged_attention(*arguments))


def test_long_chunks_are_cut_into_tiles_that_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "TILE", 4)
    monkeypatch.setattr(torch_attention, "MAX_GATHERED", 32)
    chunks = [(11, 30), (1, 40), (1, 41), (9, 50), (1, 3)]
    rows, num_pages = Batch(chunks).rows()
    q, (k_pool, v_pool) = torch.randn(23, 4, 8), torch.randn(2, num_pages, 4, 2, 8)
    for window in (None, 7):
        arguments = (q, k_pool, v_pool, rows, 0.3, window, None)
        close(torch_ops.paged_attention(*arguments), reference.paged_attention(*arguments))


@pytest.mark.parametrize("module", [reference, torch_ops], ids=["reference", "torch"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_pages_of_other_seqs_are_never_read(module: Any, softcap: float | None) -> None:
    chunks = [(1, 5), (1, 30), (3, 11), (1, 28)]
    rows, num_pages = Batch(chunks).rows()
    k_pool, v_pool = torch.randn(2, num_pages, 4, 2, 8)
    owned = rows.pages[2, :3].long()
    others = torch.ones(num_pages, dtype=torch.bool)
    others[owned] = False
    k_pool[others], v_pool[others] = torch.nan, torch.nan
    out = module.paged_attention(torch.randn(6, 4, 8), k_pool, v_pool, rows, 0.3, None, softcap)
    assert out[2:5].isfinite().all()
    assert out[[0, 1, 5]].isnan().all()


def test_a_row_gets_the_same_answer_whatever_stands_beside_it() -> None:
    chunks = [(1, 30), (4, 9), (1, 5), (1, 31), (6, 6)]
    rows, num_pages = Batch(chunks).rows()
    q, (k_pool, v_pool) = torch.randn(13, 4, 8), torch.randn(2, num_pages, 4, 2, 8)
    together = torch_ops.paged_attention(q, k_pool, v_pool, rows, 0.3)
    start = 0
    for r, (length, context) in enumerate(chunks):
        lens, contexts = np.array([length], np.int32), np.array([context], np.int32)
        starts = torch.tensor([0, length], dtype=torch.int32)
        alone = AttentionMetadata(
            starts, torch.from_numpy(contexts), rows.pages[r : r + 1], lens, contexts, length, context
        )
        out = torch_ops.paged_attention(q[start : start + length], k_pool, v_pool, alone, 0.3)
        torch.testing.assert_close(out, together[start : start + length], atol=1e-6, rtol=1e-6)
        start += length


def test_like_rows_share_one_call_and_unlike_ones_do_not_pad_each_other() -> None:
    page_size = 4
    contexts = [200, 203, 199, 8, 5, 1000]
    rows, _ = Batch([(1, n) for n in contexts], page_size).rows()
    groups = torch_attention._groups_of(
        rows, page_size, torch_attention._Reach(None, None), False, torch.empty(0, dtype=torch.float32)
    )
    assert sorted(group.count for group in groups) == [1, 2, 3]
    gathered = sum(len(group.pages) * page_size for group in groups)
    assert gathered < 1.1 * sum(contexts)
    again = torch_attention._groups_of(
        rows, page_size, torch_attention._Reach(None, None), False, torch.empty(0, dtype=torch.float32)
    )
    assert again is groups, "worked out once per step"
