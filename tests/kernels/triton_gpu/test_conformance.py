"""The Triton ops on the cases of `check_op`, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops

from quire.records import OpImpl, OpQuery
from quire_kernels import select
from quire_kernels.triton_gpu.ops import MODULES, TritonOp
from quire_testing import check_op
from quire_testing.ops.cases import CASES, RandomInputs, rotary_write_kv

pytestmark = needs_triton


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


TESTED_APART = ("linear_quantized", "low_rank", "moe", "paged_attention", "sample")
"""The interpreter is too slow for all their cases."""

SOME = {"causal_conv": (0, 1), "gated_delta": (7, 6), "selective_scan": (0, 1), "ssd_scan": (8, 5)}
"""By op: the first of the cases that are tried, and how many are left out after each."""


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter goes through long rows slowly; none of the kernels does otherwise after some tokens."""
    monkeypatch.setattr("quire_testing.ops.state_cases.LENS", ((1, 1), (4, 1, 0, 2)))
    for op, (first, step) in SOME.items():
        monkeypatch.setitem(CASES, op, lambda draw, cases=CASES[op], at=(first, None, step): islice(cases(draw), *at))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", [op for op in MODULES if op not in TESTED_APART])
def test_it_conforms(triton: TritonOps, op: str, dtype: str) -> None:
    check_op(OpImpl("mine", op, lambda _: None, lambda: getattr(triton, op)), dtype, DEVICE)


def test_padding_is_stored_nowhere(triton: TritonOps) -> None:
    draw = RandomInputs(torch.float32, torch.device(DEVICE), torch.Generator().manual_seed(0))
    *_, (q, k, v, cos, sin, k_pool, v_pool, slots, interleaved) = rotary_write_kv(draw)
    stored = [pool.clone() for pool in (k_pool, v_pool)]
    slots = torch.full_like(slots, -1)
    triton.rotary_write_kv(q, k, v, cos, sin, *stored, slots, interleaved)
    triton.write_kv(k, v, *stored, slots)
    assert torch.equal(stored[0], k_pool)
    assert torch.equal(stored[1], v_pool)


def test_they_are_chosen_for_gpus_that_have_what_they_need() -> None:
    query = OpQuery("cuda", "bfloat16", frozenset({"sm90"}), head_dims=(128,), attention_options=frozenset({"sinks"}))
    chosen = {choice.op: choice.name for choice in select.choose(query).report}
    assert {chosen[op] for op in ("paged_attention", "write_kv", "rotary_write_kv", "read_kv")} == {"triton"}
    old, wide = OpQuery("cuda", "bfloat16", frozenset({"sm75"})), OpQuery("cuda", "float16", head_dims=(64, 1024))
    assert "7.5" in str(TritonOp("rotary").supports(old))
    assert "1024" in str(TritonOp("paged_attention").supports(wide))
