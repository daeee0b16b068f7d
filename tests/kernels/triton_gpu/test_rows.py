"""The Triton ops that handle each row by itself, where the cases of `check_op` do not reach."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops
from torch import Tensor

from quire_kernels import reference
from quire_kernels.ops import ACTS

pytestmark = needs_triton


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


def normal(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * scale
    return drawn.to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_of_rows_that_are_read_in_pieces(triton: TritonOps, dtype: torch.dtype) -> None:
    x, residual = normal(2, 9000, dtype=dtype), normal(2, 9000, dtype=dtype) * 2 + 1
    weight, bias = normal(9000), normal(9000) + 2
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(triton.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), **close)
    wanted = reference.layer_norm(residual, weight, bias, 1e-5)
    torch.testing.assert_close(triton.layer_norm(residual, weight, bias, 1e-5), wanted, **close)
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    found, summed = triton.add_rms_norm(x, residual, weight, 1e-5)
    summed_close = {
        name: value * 3 for name, value in close.items()
    }  # the interpreter rounds to bfloat16 by cutting off
    torch.testing.assert_close(found, normed, **summed_close)
    torch.testing.assert_close(summed, total, **summed_close)


def test_norms_of_heads_in_a_wider_row(triton: TritonOps) -> None:
    heads, weight = normal(5, 400)[:, 40:160].unflatten(-1, (3, 40)), normal(40)
    for x in (heads, heads[:, 1], heads[None], heads[1, 2]):
        wanted = reference.rms_norm(x, weight, 1e-5)
        torch.testing.assert_close(triton.rms_norm(x, weight, 1e-5), wanted, rtol=1e-5, atol=1e-5)
        total = reference.add_rms_norm(x, x.clone(), weight, 1e-5)
        torch.testing.assert_close(triton.add_rms_norm(x, x.clone(), weight, 1e-5), total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("act", ACTS)
def test_activations_of_small_and_large_values(triton: TritonOps, act: str) -> None:
    x = torch.cat((torch.linspace(-12, 12, 2001), torch.logspace(-8, 4, 200), -torch.logspace(-8, 4, 200))).to(DEVICE)
    torch.testing.assert_close(triton.act(x.clone(), act), reference.act(x, act), rtol=3e-5, atol=1e-6)
    both = torch.stack((x, x.flip(0)), -1).transpose(0, 1).flatten()[None]
    torch.testing.assert_close(triton.gated_act(both, act), reference.gated_act(both, act), rtol=3e-5, atol=1e-5)


def test_argmax_over_blocks(triton: TritonOps) -> None:
    size = importlib.import_module(triton.argmax.__module__).BLOCK
    logits = normal(7, 3 * size + 5)
    logits[0, [size - 1, size, 3 * size]] = 9.0  # ties
    logits[1, -1] = 9.0
    logits[2, size + 1] = torch.nan
    logits[3, 1] = torch.inf
    logits[4] = -torch.inf
    logits[5] = -torch.inf
    logits[5, 2 * size] = -1e30
    assert torch.equal(triton.argmax(logits), reference.argmax(logits))


def test_masks_over_blocks(triton: TritonOps) -> None:
    size = importlib.import_module(triton.argmax.__module__).BLOCK
    logits = normal(4, size + 37)
    words = torch.randint(-(2**31), 2**31, (2, -(-logits.shape[1] // 32)), dtype=torch.int64).int().to(DEVICE)
    rows = torch.tensor([3, 1], device=DEVICE)
    wanted = reference.mask_logits(logits, words, rows)
    assert torch.equal(triton.mask_logits(logits, words, rows), wanted)


@pytest.mark.parametrize("shape", [(3, 1000), (7, 2048), (5, 24)], ids=str)
def test_products_of_one_row(triton: TritonOps, shape: tuple[int, int]) -> None:
    weight = normal(*shape, dtype=torch.bfloat16, scale=shape[1] ** -0.5)
    for bias in (None, normal(shape[0], dtype=torch.bfloat16)):
        x = normal(1, shape[1], dtype=torch.bfloat16)
        bound = triton.linear(weight, bias)
        wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        torch.testing.assert_close(bound(x, float32=True), wanted.float(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(bound(x), wanted.bfloat16(), rtol=1e-2, atol=1e-2)
        assert bound(x.expand(3, -1)).shape == (3, shape[0])
