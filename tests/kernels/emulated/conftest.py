"""Ops compiled for CPUs whose instructions are emulated."""

import pytest
from emulated_isas import emulated_ops

from quire_kernels.cpu.ops import CpuOps


@pytest.fixture(scope="session")
def amx() -> CpuOps:
    """With tiles."""
    return emulated_ops("amx")


@pytest.fixture(scope="session", params=["avx512", "avx_vnni"])
def vectors(request: pytest.FixtureRequest) -> CpuOps:
    """With vectors that neither the ops for AMX use nor those for AVX2."""
    return emulated_ops(request.param)
