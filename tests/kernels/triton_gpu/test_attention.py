"""Paged attention in Triton against the reference, for rows, heads, widths and options that hypothesis draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_options import TOLERANCE, options
from hypothesis import HealthCheck, given, settings, strategies as st
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops
from torch import Tensor

from quire_kernels import reference
from quire_kernels.attention import HeadGroups
from quire_kernels.ops import AttentionMetadata
from quire_testing.ops.attention_cases import rows_of, with_lookahead
from quire_testing.ops.cases import RandomInputs

pytestmark = needs_triton
DRAWN = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SHAPES = [(4, 4, 16, 16), (6, 2, 24, 8), (4, 2, 32, 64), (8, 1, 128, 128), (3, 3, 72, 72), (20, 1, 40, None)]
"""Query heads, key-value heads, width of keys and of values; None: the first 32 elements of the keys."""
NUM_OPTIONS = 13
ROW = st.tuples(st.integers(1, 18), st.integers(0, 70))
"""Tokens of a row, and positions before them."""


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


class Step:
    """A step with random queries and pools, whose positions beyond the contexts hold NaN."""

    def __init__(
        self, rows: list[tuple[int, int]], shape: tuple[int, int, int, int | None], dtype: torch.dtype
    ) -> None:
        self.draw = RandomInputs(dtype, torch.device(DEVICE), torch.Generator().manual_seed(0))
        lens, contexts = [n for n, _ in rows], [n + past for n, past in rows]
        self.rows, pages = rows_of(self.draw, lens, contexts)
        heads, kv_heads, d, v = shape
        self.value_dim = 32 if v is None else None
        self.scale = d**-0.5
        self.q = self.draw(sum(lens), heads, d)
        self.pools = self.draw(pages, 16, kv_heads, d), self.draw(pages, 16, kv_heads, 0 if v is None else v)
        used = torch.zeros(pages * 16, dtype=torch.bool, device=DEVICE)
        for row, context in enumerate(contexts):
            at = torch.arange(context, device=DEVICE)
            used[self.rows.pages[row, at // 16].long() * 16 + at % 16] = True
        for pool in self.pools:
            pool.flatten(0, 1)[~used] = torch.nan

    def found(self, ops: Any, rows: AttentionMetadata, **given: Any) -> Tensor:
        return ops.paged_attention(self.q, *self.pools, rows, self.scale, value_dim=self.value_dim, **given)

    def check(self, ops: Any, rows: AttentionMetadata, **given: Any) -> None:
        found, wanted = self.found(ops, rows, **given), self.found(reference, rows, **given)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        worst = (found.float() - wanted.float()).abs().max().item()
        assert worst < TOLERANCE[self.q.dtype], (worst, list(given))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@DRAWN
@given(
    rows=st.lists(ROW, min_size=1, max_size=2),
    shape=st.sampled_from(SHAPES),
    option=st.integers(0, NUM_OPTIONS - 1),
    ahead=st.booleans(),
)
def test_it_is_the_reference(
    triton: TritonOps,
    dtype: torch.dtype,
    rows: list[tuple[int, int]],
    shape: tuple[int, int, int, int | None],
    option: int,
    ahead: bool,
) -> None:
    step = Step(rows, shape, dtype)
    given = list(options(step.draw, shape[0]))[option]
    lookahead = ahead and not given
    step.check(triton, with_lookahead(step.rows, step.draw.ids(3, len(step.q))) if lookahead else step.rows, **given)


@pytest.mark.parametrize("option", range(NUM_OPTIONS))
def test_every_option_where_contexts_are_split(triton: TritonOps, option: int) -> None:
    step = Step([(1, 150), (3, 90), (1, 0), (17, 30)], (4, 1, 32, 16), torch.float32)
    step.check(triton, step.rows, **list(options(step.draw, 4))[option])


@pytest.mark.parametrize("option", [0, 1, 3, 4, 8])
def test_a_rank_may_have_parts_of_the_first_and_last_group_of_heads(triton: TritonOps, option: int) -> None:
    step = Step([(1, 90), (3, 20)], (4, 2, 16, 16), torch.float32)
    given = list(options(step.draw, 4))[option]
    step.check(triton, step.rows, groups=HeadGroups(3, 2), **given)


def test_values_may_be_the_first_block_of_the_keys(triton: TritonOps) -> None:
    step = Step([(1, 100), (18, 5)], (20, 1, 40, None), torch.float32)  # keys of 32 + 8 elements, values of 32
    step.check(triton, step.rows)


def test_sums_that_leave_no_registers_for_anything_else(triton: TritonOps) -> None:
    step = Step([(17, 3), (1, 9)], (2, 1, 256, 256), torch.float32)
    step.check(triton, step.rows)


def test_a_padded_row_gives_zeros_and_the_others_what_they_give_alone(triton: TritonOps) -> None:
    step = Step([(1, 130), (1, 63), (1, 7)], (4, 1, 32, 32), torch.float32)
    alone = step.found(triton, step.rows)
    contexts = step.rows.contexts.clone()
    contexts[1] = 0
    unknown = np.zeros(0, np.int32)  # a step that may be captured is described on the device only
    longest = replace(step.rows, lens_host=unknown, contexts_host=unknown, contexts=contexts, max_context=1000)
    longest.pages[1] = 2**30
    padded = step.found(triton, longest)
    assert not padded[1].any()
    assert torch.equal(padded[0], alone[0])
    assert torch.equal(padded[2], alone[2])


def test_a_row_is_the_same_among_others(triton: TritonOps) -> None:
    step = Step([(1, 130), (20, 3), (2, 70), (1, 300)], (4, 1, 32, 32), torch.float32)
    together = step.found(triton, step.rows)
    for row, (first, last) in enumerate(((0, 1), (1, 21), (21, 23), (23, 24))):
        length, context = int(step.rows.lens_host[row]), int(step.rows.contexts_host[row])
        starts = torch.tensor([0, length], dtype=torch.int32, device=DEVICE)
        alone = AttentionMetadata(
            *(starts, step.rows.contexts[row : row + 1], step.rows.pages[row : row + 1]),
            *(step.rows.lens_host[row : row + 1], step.rows.contexts_host[row : row + 1], length, context),
        )
        found = triton.paged_attention(step.q[first:last], *step.pools, alone, step.scale)
        assert torch.equal(found, together[first:last]), row


def test_results_of_splits_are_divided_among_launches(triton: TritonOps, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step([(1, 130), (1, 63), (1, 7)], (4, 1, 32, 32), torch.float32)
    whole = step.found(triton, step.rows)
    monkeypatch.setattr(f"{triton.paged_attention.__module__}.PARTIAL_BYTES", 1)
    assert torch.equal(step.found(triton, step.rows), whole)
