"""The implementations of the op `low_rank`."""

from __future__ import annotations

import pytest
from cpu_isas import HERE
from low_rank_problems import LowRank

from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.pytorch import low_rank as torch_low_rank


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> LowRank:
    return CpuOps(load(HERE[request.param])).low_rank


@pytest.fixture(params=["torch", *HERE])
def every(request: pytest.FixtureRequest) -> LowRank:
    return torch_low_rank.low_rank if request.param == "torch" else CpuOps(load(HERE[request.param])).low_rank
