"""The instruction sets that the C++ ops are tested with: those of this machine, if it has a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire_kernels.cpu import build, isa

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

HERE = {found.name: found for found in isa.available()} if build.compiler() else {}

WITHOUT_TILES = {name: found for name, found in HERE.items() if not found.tiles}
"""Those that keep matrices compact."""

FOR_FLOATS = {name: found for name, found in HERE.items() if name not in ("avx512_vnni", "avx_vnni")}
"""Those of which each has other code for floats: the others add nothing but products of bytes to the next one."""


def cpu_ops(name: str) -> CpuOps:
    """The ops of an instruction set."""
    from quire_kernels.cpu.library import load
    from quire_kernels.cpu.ops import CpuOps

    return CpuOps(load(HERE[name]))
