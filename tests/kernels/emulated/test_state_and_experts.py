"""Ops that keep states, experts, and options of attention on emulated instruction sets: all give the reference."""

from __future__ import annotations

import pytest
import torch
from attention_options import TOLERANCE, check_options

from quire.records import OpImpl
from quire_kernels.cpu.ops import CpuOps
from quire_testing import check_op
from quire_testing.ops.state_cases import STATES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seeded")]

OPS = (*STATES, "gated_rms_norm", "linear_heads", "route", "moe")


def conforms(ops: CpuOps, op: str, dtype: str) -> None:
    check_op(OpImpl("mine", op, lambda _: None, lambda: getattr(ops, op)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_ops_with_tiles(amx: CpuOps, op: str, dtype: str) -> None:
    conforms(amx, op, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_ops_with_vectors(vectors: CpuOps, op: str, dtype: str) -> None:
    conforms(vectors, op, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_with_tiles(amx: CpuOps, dtype: torch.dtype) -> None:
    check_options(amx, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_with_vectors(vectors: CpuOps, dtype: torch.dtype) -> None:
    check_options(vectors, dtype)
