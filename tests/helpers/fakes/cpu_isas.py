"""The instruction sets that the C++ ops are tested with: those of this machine, if it has a compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.isa import InstructionSet

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

BYTES_ONLY = ("avx512_vnni", "avx_vnni")
"""Those that add nothing but products of bytes to the next one."""


def _tested(found: InstructionSet) -> InstructionSet:
    """Compiled in half the time if its code for floats is also in the next one, and for bytes in the one before."""
    is_between = found.name == "avx512_vnni" and found != isa.available()[0]
    return replace(found, options=(*found.options, "-O1")) if is_between else found


HERE = {found.name: _tested(found) for found in isa.available()} if build.compiler() else {}

WITHOUT_TILES = {name: found for name, found in HERE.items() if not found.tiles}
"""Those that keep adapters compact."""

FOR_FLOATS = {name: found for name, found in HERE.items() if name not in BYTES_ONLY}
"""Those of which each has other code for floats."""


def cpu_ops(name: str) -> CpuOps:
    """The ops of an instruction set."""
    from quire_kernels.cpu.library import load
    from quire_kernels.cpu.ops import CpuOps

    return CpuOps(load(HERE[name]))
