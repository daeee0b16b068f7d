"""The implementations of the op `low_rank`."""

from __future__ import annotations

import pytest
from cpu_isas import FOR_FLOATS
from low_rank_problems import LowRank

from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.pytorch import low_rank as torch_low_rank


@pytest.fixture(params=FOR_FLOATS)
def cpp(request: pytest.FixtureRequest) -> LowRank:
    return CpuOps(load(FOR_FLOATS[request.param])).low_rank


@pytest.fixture(params=["torch", *FOR_FLOATS])
def every(request: pytest.FixtureRequest) -> LowRank:
    return torch_low_rank.low_rank if request.param == "torch" else CpuOps(load(FOR_FLOATS[request.param])).low_rank
