"""The Triton op `moe` against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops
from torch import Tensor

from quire_kernels.moe import ClampedSwiglu, ExpertMlp
from quire_kernels.pytorch import ops as torch_ops
from quire_testing.ops.cases import RandomInputs

pytestmark = needs_triton


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


def mixture(dtype: torch.dtype, mlp: ExpertMlp, experts: int = 3) -> list[Tensor]:
    """up, down and their biases: 130 inputs, 40 hidden."""
    draw = RandomInputs(dtype, torch.device(DEVICE), torch.Generator().manual_seed(0))
    up = draw(experts, 80 if mlp.gated else 40, 130, scale=130**-0.5)
    return [up, draw(experts, 130, 40, scale=40**-0.5), draw(experts, up.shape[1]), draw(experts, 130)]


def tokens(dtype: torch.dtype, count: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weights and two chosen experts of each token."""
    draw = RandomInputs(dtype, torch.device(DEVICE), torch.Generator().manual_seed(1))
    chosen = torch.rand(count, experts, generator=torch.Generator().manual_seed(2)).argsort(-1)[:, :2]
    return draw(count, 130), draw(count, 2, dtype=torch.float32).softmax(-1), chosen.to(DEVICE)


@pytest.mark.parametrize(
    ("mlp", "count"),
    [
        (ExpertMlp(), 70),
        (ExpertMlp("relu2", gated=False), 1),
        (ExpertMlp("silu", weighs_inputs=True), 9),
        (ExpertMlp(ClampedSwiglu(1.702, 1.0)), 20),
        (ExpertMlp(first=1), 9),
    ],
    ids=str,
)
def test_tokens_in_any_number_of_blocks(triton: TritonOps, mlp: ExpertMlp, count: int) -> None:
    up, down, up_bias, down_bias = mixture(torch.float32, mlp)
    given = tokens(torch.float32, count, 3 if mlp.first is None else 5)
    for biases in ((), (up_bias, down_bias)):
        wanted = torch_ops.moe(up, down, mlp, *biases)(*given)
        torch.testing.assert_close(triton.moe(up, down, mlp, *biases)(*given), wanted, rtol=1e-4, atol=1e-4)


def test_bfloat16_and_no_tokens(triton: TritonOps) -> None:
    up, down, *_ = mixture(torch.bfloat16, ExpertMlp())
    x, weights, chosen = tokens(torch.bfloat16, 9, 3)
    found = triton.moe(up, down, ExpertMlp())
    wanted = torch_ops.moe(up, down, ExpertMlp())(x, weights, chosen)
    torch.testing.assert_close(found(x, weights, chosen), wanted, rtol=3e-2, atol=3e-2)
    assert found(x[:0], weights[:0], chosen[:0]).shape == (0, 130)


def test_bound_matrices_are_used_one_after_another(triton: TritonOps) -> None:
    up, down, *_ = mixture(torch.float32, ExpertMlp())
    bound = ([partial(torch.nn.functional.linear, weight=matrix) for matrix in stack] for stack in (up, down))
    given = tokens(torch.float32, 4, 3)
    wanted, found = torch_ops.moe(up, down, ExpertMlp())(*given), triton.moe(*bound, ExpertMlp())
    torch.testing.assert_close(found(*given), wanted, rtol=1e-4, atol=1e-4)
    assert not found.capturable
    assert triton.moe(up, down, ExpertMlp()).capturable
