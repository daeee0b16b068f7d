"""The implementations of the sampling ops."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_isas import FOR_FLOATS
from sampling_problems import PLAIN

from quire_kernels.cpu import library
from quire_kernels.cpu.sampling import CpuSampling


@pytest.fixture(params=[*PLAIN, *FOR_FLOATS])
def ops(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return PLAIN[name] if name in PLAIN else CpuSampling(library.load(FOR_FLOATS[name]))


@pytest.fixture(params=FOR_FLOATS)
def compiled(request: pytest.FixtureRequest) -> CpuSampling:
    return CpuSampling(library.load(FOR_FLOATS[request.param]))
