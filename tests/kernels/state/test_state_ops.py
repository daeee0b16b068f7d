"""Ops that keep states: torch as the reference, and all the same however a prompt is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.records import OpImpl
from quire_kernels import reference
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import ops as torch_ops
from quire_testing import check_op
from quire_testing.ops.state_cases import STATES

STATE_OPS = (*STATES, "gated_rms_norm")
Run = Callable[[Any, Tensor, Tensor, AttentionMetadata, Tensor], Tensor]
"""(ops, tokens [T, 64], state, rows, slots) -> results."""


@pytest.fixture(scope="session")
def cpp() -> CpuOps:
    if not isa.available() or build.compiler() is None:
        pytest.skip("the C++ ops cannot be compiled")
    return CpuOps(compiled())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", STATE_OPS)
def test_torch_is_the_reference(op: str, dtype: str) -> None:
    check_op(OpImpl("torch", op, lambda _: None, lambda: getattr(torch_ops, op)), dtype)


def _convolve(ops: Any, x: Tensor, state: Tensor, rows: AttentionMetadata, slots: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, 256).view(4, 64)
    found: Tensor = ops.causal_conv(x, weight, None, state, slots, rows, "silu")
    return found


def _delta(by_channel: bool) -> Run:
    def run(ops: Any, x: Tensor, state: Tensor, rows: AttentionMetadata, slots: Tensor) -> Tensor:
        decay = x[:, :16] if by_channel else x[:, :2]
        rate, bias = torch.tensor([-0.5, -0.01]), torch.linspace(-1, 1, decay.shape[1])
        found: Tensor = ops.gated_delta(x, decay, x[:, 2:4], rate, bias, state, slots, rows, (8, 16))
        return found

    return run


def _ssd(ops: Any, x: Tensor, state: Tensor, rows: AttentionMetadata, slots: Tensor) -> Tensor:
    rate, bias, skip = torch.tensor([-0.5, -0.01]), torch.zeros(2), torch.ones(2)
    found: Tensor = ops.ssd_scan(x, x[:, :2], rate, bias, skip, state, slots, rows, (16, 16))
    return found


def _select(ops: Any, x: Tensor, state: Tensor, rows: AttentionMetadata, slots: Tensor) -> Tensor:
    rate, skip = -torch.linspace(0, 1, 8 * 64).view(8, 64), torch.ones(64)
    b, c = x[:, :8].clone(), x[:, 8:16].clone()
    found: Tensor = ops.selective_scan(x.clone(), x.clone(), b, c, rate, skip, state, slots, rows)
    return found


CUT = {
    "causal_conv": (_convolve, (3, 64), 64),
    "gated_delta": (_delta(False), (2, 8, 16), 64),
    "gated_delta by channel": (_delta(True), (2, 8, 16), 64),
    "ssd_scan": (_ssd, (2, 16, 16), 64),
    "selective_scan": (_select, (8, 64), 64),
}
CUTS = ([1] * 100, [99, 1], [7, 33, 1, 32, 27], [31, 32, 37])


def _in_steps(run: Run, ops: Any, x: Tensor, shape: tuple[int, ...], lens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Results and the last state of one seq, which comes in steps of these lengths, beside another seq."""
    state, slots = torch.zeros(3, *shape), torch.tensor([2, 0])
    found, other = [], torch.ones(2, x.shape[1])
    for tokens in x.split(list(lens)):
        rows = AttentionMetadata.unpaged([len(tokens), 2], "cpu")
        found.append(run(ops, torch.cat((tokens, other)), state, rows, slots)[: len(tokens)])
    return torch.cat(found), state[2]


@pytest.mark.parametrize("case", CUT)
@pytest.mark.parametrize("module", [reference, torch_ops], ids=["reference", "torch"])
def test_a_prompt_may_be_cut_anywhere(module: Any, case: str) -> None:
    run, shape, width = CUT[case]
    x = torch.randn(100, width, generator=torch.Generator().manual_seed(0))
    want = _in_steps(run, reference, x, shape, [100])
    for lens in CUTS:
        for mine, whole in zip(_in_steps(run, module, x, shape, lens), want, strict=True):
            torch.testing.assert_close(mine, whole, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CUT)
def test_in_cpp_a_cut_changes_not_one_bit(case: str, cpp: CpuOps) -> None:
    run, shape, width = CUT[case]
    x = torch.randn(100, width, generator=torch.Generator().manual_seed(0))
    want = _in_steps(run, cpp, x, shape, [100])
    for lens in CUTS:
        for mine, whole in zip(_in_steps(run, cpp, x, shape, lens), want, strict=True):
            assert torch.equal(mine, whole), lens


def test_extreme_gates_stay_finite(cpp: CpuOps) -> None:
    """A decay to zero, and a step so small that nothing is added."""
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    x[:, 0], x[:, 1] = 1e4, -1e4
    for module in (reference, torch_ops, cpp):
        for case, (run, shape, _) in CUT.items():
            for found in _in_steps(run, module, x, shape, [40]):
                assert found.isfinite().all(), case
