"""Products of every kind in recorded programs, and the activations that become part of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_rig import WIDTH, ops, same

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.structs import Op
from quire_kernels.ops import ACTS

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("bind", ["linear", "linear_batched", "linear_int8"])
def test_an_activation_is_part_of_the_product_before_it_and_changes_nothing(bind: str, act: str) -> None:
    made = torch.Generator().manual_seed(0)
    first = getattr(ops(), bind)(torch.randn(70, WIDTH, generator=made), torch.randn(70, generator=made))
    second = getattr(ops(), bind)(torch.randn(WIDTH, 70, generator=made), None)

    def block(x: Any, fwd: Any) -> Any:
        return second(ops().act(first(x), act))

    def twice(x: Any, fwd: Any) -> Any:
        return second(ops().act(ops().act(first(x), act), act))

    for made_up, kept in ((block, 0), (twice, 1)):
        assert same([made_up]) == ["program"]
        run = ops().fused_blocks([made_up], WIDTH)
        assert [Op(i.op) for i in run.stages[0]._code].count(Op.ACT) == kept
