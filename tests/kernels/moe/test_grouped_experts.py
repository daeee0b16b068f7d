"""Grouped products of experts: a token's result does not depend on others, and experts may be quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_rig import ops
from torch import Tensor

from quire_kernels import reference
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.moe.experts import GroupedExperts
from quire_kernels.moe import ExpertMlp, Routing
from quire_kernels.pytorch.moe import SortedExperts
from quire_kernels.reference_moe import Activations

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")

EXPERTS, WIDTH, HIDDEN, TOP_K = 6, 64, 48, 2
BINDINGS = ("linear", "linear_int8")


def bound_experts(binding: str, dtype: torch.dtype) -> tuple[GroupedExperts, list[Any], list[Any]]:
    torch.manual_seed(3)
    linear: Callable[..., Any] = getattr(ops(), binding)
    ups = [linear(_matrix(2 * HIDDEN, WIDTH, dtype), _bias(2 * HIDDEN, dtype), True) for _ in range(EXPERTS)]
    downs = [linear(_matrix(WIDTH, HIDDEN, dtype), None) for _ in range(EXPERTS)]
    bound = ops().moe(ups, downs, ExpertMlp())
    assert isinstance(bound, GroupedExperts)
    return bound, ups, downs


def _matrix(outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)


def _bias(outputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(outputs).to(dtype)


def routed(tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(tokens, WIDTH).to(dtype)
    return x, *ops().route(torch.randn(tokens, EXPERTS), Routing(TOP_K, renormalize=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("binding", BINDINGS)
def test_a_token_has_the_same_bits_alone_and_among_others(binding: str, dtype: torch.dtype) -> None:
    if isa.available()[0].tiles:
        pytest.skip("AMX tiles sum in another order than the vectors that compute a single row")
    bound, _, _ = bound_experts(binding, dtype)
    x, weights, chosen = routed(70, dtype)
    whole = bound(x, weights, chosen)
    for rows in (slice(0, 1), slice(5, 8), slice(30, 70)):
        assert torch.equal(bound(x[rows], weights[rows], chosen[rows]), whole[rows])


@pytest.mark.parametrize("binding", BINDINGS)
def test_bound_experts_give_what_their_matrices_give_one_by_one(binding: str) -> None:
    bound, ups, downs = bound_experts(binding, torch.float32)
    one_by_one = SortedExperts(ups, downs, ExpertMlp(), None, None, Activations(reference.gated_act, reference.act))
    x, weights, chosen = routed(37, torch.float32)
    torch.testing.assert_close(bound(x, weights, chosen), one_by_one(x, weights, chosen), atol=1e-5, rtol=1e-5)


def test_matrices_of_different_forms_run_one_by_one() -> None:
    ups = [ops().linear(_matrix(2 * HIDDEN, WIDTH, torch.float32), None, True) for _ in range(2)]
    downs = [linear(_matrix(WIDTH, HIDDEN, torch.float32), None) for linear in (ops().linear, ops().linear_int8)]
    bound = ops().moe(ups, downs, ExpertMlp())
    assert not isinstance(bound, GroupedExperts)
    x = torch.randn(3, WIDTH)
    weights, chosen = torch.ones(3, 1), torch.tensor([[0], [1], [0]])
    hidden = reference.gated_act(ups[1](x[1:2]), "silu")
    torch.testing.assert_close(bound(x, weights, chosen)[1:2], downs[1](hidden))
