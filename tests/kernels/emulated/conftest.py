"""Ops compiled for AMX, whose instructions are emulated."""

import pytest
from emulated_isas import AMX

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps


@pytest.fixture(scope="session")
def amx() -> CpuOps:
    if not isa.available() or build.compiler() is None:
        pytest.skip("the C++ ops cannot be compiled")
    return CpuOps(load(AMX))
