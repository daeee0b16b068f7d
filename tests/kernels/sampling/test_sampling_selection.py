"""Which implementation of each sampling op is selected."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_isas import HERE
from sampling_problems import OPS

from quire.records import OpImpl, OpQuery
from quire_kernels import select
from quire_kernels.pytorch import ops as torch_ops
from quire_testing import check_op


@pytest.mark.parametrize("op", OPS)
def test_every_implementation_is_the_reference(ops: Any, op: str) -> None:
    check_op(OpImpl("mine", op, lambda query: None, lambda: getattr(ops, op)))


# --- selection ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not HERE, reason="needs a C++ compiler and AVX2")
@pytest.mark.parametrize("query", [OpQuery("cpu", "float16"), OpQuery("cpu", "bfloat16", page_size=5, head_dims=(3,))])
def test_on_a_cpu_they_are_compiled_whatever_the_model_is_like(query: OpQuery) -> None:
    names = {choice.op: choice.name for choice in select.choose(query).report}
    assert {names[op] for op in OPS} == {f"cpp-{next(iter(HERE))}"}


def test_elsewhere_they_are_torch() -> None:
    chosen = select.choose(OpQuery("mps", "bfloat16"))
    names = {choice.op: choice.name for choice in chosen.report}
    assert [names[op] for op in OPS] == ["reference", "torch", "torch"]
    assert chosen.sample is torch_ops.sample
