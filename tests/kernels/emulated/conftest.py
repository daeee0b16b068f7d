"""Ops compiled for CPUs whose instructions are emulated."""

import pytest
from cpu_isas import HERE, cpu_ops
from emulated_isas import emulated_ops

from quire_kernels.cpu.ops import CpuOps


@pytest.fixture(scope="session")
def amx() -> CpuOps:
    """With tiles."""
    return emulated_ops("amx")


@pytest.fixture(scope="session", params=["avx512", "avx_vnni"])
def vectors(request: pytest.FixtureRequest) -> CpuOps:
    """With vectors that neither the ops for AMX use nor those for AVX2; emulated only where this machine lacks them."""
    return cpu_ops(request.param) if request.param in HERE else emulated_ops(request.param)
