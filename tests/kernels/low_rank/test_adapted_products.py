"""Programs of products with adapters: what they give, and that it does not depend on the other tokens of a step."""

from __future__ import annotations

import pytest
import torch
from adapted_products import INNER, AdaptedBlock, check_alone, check_close, check_infinite
from cpu_isas import HERE, cpu_ops

from quire_kernels.cpu.structs import EARLY, Op

pytestmark = pytest.mark.skipif(not HERE, reason="the C++ ops cannot be compiled")


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("isa", HERE)
def test_adapted_products(isa: str, dtype: torch.dtype, inner: int) -> None:
    block = AdaptedBlock(cpu_ops(isa), dtype, inner)
    check_close(block)
    check_alone(block)
    joined = isa == "amx" and dtype == torch.bfloat16
    assert (Op.SHRINK in block.operations) == joined
    assert (Op.LOW_RANK in block.operations) != joined
    assert {code.selected for code in block.program._code if code.op == Op.LOW_RANK} <= {EARLY}


@pytest.mark.parametrize("isa", HERE)
def test_an_infinite_adapter_stays_alone(isa: str) -> None:
    check_infinite(cpu_ops(isa))
