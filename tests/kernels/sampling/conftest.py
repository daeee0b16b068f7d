"""The implementations of the sampling ops."""

from __future__ import annotations

from typing import Any

import pytest
from sampling_problems import COMPILED, PLAIN

from quire_kernels.cpu import library
from quire_kernels.cpu.sampling import CpuSampling


@pytest.fixture(params=[*PLAIN, *COMPILED])
def ops(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return PLAIN[name] if name in PLAIN else CpuSampling(library.load(COMPILED[name]))


@pytest.fixture(params=COMPILED)
def compiled(request: pytest.FixtureRequest) -> CpuSampling:
    return CpuSampling(library.load(COMPILED[request.param]))
