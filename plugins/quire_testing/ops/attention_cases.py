"""Inputs of the attention operations for `check_op`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.attention import PositionBiases
from quire_kernels.ops import AttentionMetadata

if TYPE_CHECKING:
    from quire_testing.ops.cases import RandomInputs


def pools(draw: RandomInputs, pages: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values in plain pages."""
    return draw(pages, draw.page_size, kv_heads, dim), draw(pages, draw.page_size, kv_heads, dim)


def paged_attention(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """q, k_pool, v_pool, rows, scale, window, softcap: without the options that only some models use."""
    layouts: Sequence[tuple[Sequence[int], Sequence[int]]] = (
        ((1,), (1,)),
        ((1, 1, 1), (1, 9, 40)),
        ((13,), (13,)),
        ((5, 1, 8, 3), (5, 17, 31, 3)),
    )
    for lens, contexts in layouts:
        for heads, kv_heads, dim in ((4, 4, 16), (6, 2, 24), (8, 1, 64)):
            for window, softcap in ((None, None), (4, None), (None, 5.0)):
                rows, pages = rows_of(draw, lens, contexts)
                q = draw(sum(lens), heads, dim)
                yield q, *pools(draw, pages, kv_heads, dim), rows, dim**-0.5, window, softcap
                if max(lens) > 2:  # some tokens attend to the end of their row, some a little ahead
                    steps = draw.ids(3, sum(lens))
                    yield q, *pools(draw, pages, kv_heads, dim), with_lookahead(rows, steps), dim**-0.5, window, softcap


def read_kv(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """k_pool, v_pool, slots, dtype; slots of several pages in any order."""
    for kv_heads, dim in ((1, 16), (2, 24)):
        slots = torch.randperm(3 * draw.page_size, generator=draw.generator)[:11].to(draw.device)
        yield *pools(draw, 3, kv_heads, dim), slots, draw.dtype


def linear_heads(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """weight, x: bound to the first, then called with the second."""
    for tokens, heads, outputs, inputs in ((1, 3, 40, 16), (7, 2, 64, 32), (5, 4, 33, 24)):
        yield draw(heads, outputs, inputs, scale=inputs**-0.5), draw(tokens, heads, inputs)


def row_attention(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """q, k, v, rows, scale, window, biases; keys and values are slices, rows may lack tokens, blocks have edges."""
    for lens in ((1,), (13,), (5, 0, 1, 17, 16), (63, 64, 65, 3), (130,)):
        for heads, kv_heads, dim in ((4, 4, 16), (6, 2, 24), (2, 1, 64), (3, 3, 72)):
            for window in (None, 1, 4, 65):
                total = sum(lens)
                wide = draw(total, 2 * kv_heads, dim)
                rows = AttentionMetadata.unpaged(lens, draw.device)
                given = draw(total, heads, dim), wide[:, :kv_heads], wide[:, kv_heads:], rows, dim**-0.5, window
                yield given
                if window is None:
                    yield *given, PositionBiases(draw(heads, 2 * 20 + 1, dtype=torch.float32))


def with_lookahead(rows: AttentionMetadata, steps: Tensor) -> AttentionMetadata:
    """Rows in which token t also attends to the steps[t] positions after its own, or to the whole row if that is 2."""
    lens = torch.from_numpy(rows.lens_host).to(steps.device).long()
    contexts = rows.contexts.long().repeat_interleave(lens)  # of each token's row
    own = (
        torch.arange(len(steps), device=steps.device) + contexts - rows.query_starts[1:].long().repeat_interleave(lens)
    )
    ends = torch.where(steps == 2, contexts, torch.minimum(own + 1 + steps, contexts)).int()
    return replace(rows, step_cache={}, visible_ends=ends, visible_ends_host=ends.cpu().numpy())


def rows_of(draw: RandomInputs, lens: Sequence[int], contexts: Sequence[int]) -> tuple[AttentionMetadata, int]:
    """Rows whose pages are scattered over the pool, and how many pages that pool needs."""
    most = max(-(-context // draw.page_size) for context in contexts)
    total = most * len(lens)
    table = torch.randperm(total, generator=draw.generator).view(len(lens), most).int()
    starts = np.cumsum([0, *lens], dtype=np.int32)
    rows = AttentionMetadata(
        query_starts=torch.from_numpy(starts).to(draw.device),
        contexts=torch.tensor(contexts, dtype=torch.int32, device=draw.device),
        pages=table.to(draw.device),
        lens_host=np.array(lens, dtype=np.int32),
        contexts_host=np.array(contexts, dtype=np.int32),
        max_query=max(lens),
        max_context=max(contexts),
    )
    return rows, total
