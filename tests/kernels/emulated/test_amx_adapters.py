"""Products with adapters in emulated AMX tiles, as `tests/kernels/low_rank/test_adapted_products.py` tests them."""

from __future__ import annotations

import pytest
import torch
from adapted_products import INNER, AdaptedBlock, check_alone, check_close, check_infinite

from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.structs import Op

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("inner", INNER)
def test_adapted_products(amx: CpuOps, inner: int) -> None:
    block = AdaptedBlock(amx, torch.bfloat16, inner)
    check_close(block)
    check_alone(block)
    assert block.operations.count(Op.SHRINK) == 3
    assert Op.LOW_RANK not in block.operations
    assert Op.GATED_ACT not in block.operations


def test_an_infinite_adapter_stays_alone(amx: CpuOps) -> None:
    check_infinite(amx)


def test_slices_that_are_no_multiple_of_a_vector_are_not_joined(amx: CpuOps) -> None:
    slots = amx.low_rank(32, [(0, 40), (40, 64)], 1, torch.bfloat16)
    assert not slots.joins(amx.linear(torch.zeros(64, 32).bfloat16(), None).packed)
