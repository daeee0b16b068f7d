"""Instruction sets that this machine may lack, compiled with `emulation/emulate.hpp`: their code runs in tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.isa import INSTRUCTION_SETS, InstructionSet
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps

FOLDER = Path(__file__).parent / "emulation"
OPTIONS = ("-mavx2", "-mfma", "-mf16c", "-O1", "-fno-tree-sra", "-Wno-psabi", "-I", str(FOLDER))
"""GCC 12 fails in the pass that -fno-tree-sra leaves out."""


def emulated(name: str) -> InstructionSet:
    """The instruction set of that name on a CPU with AVX2; its options hold a digest of the headers."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.hpp")))).hexdigest()
    needs = next(found.needs for found in INSTRUCTION_SETS if found.name == name)
    header = (f"-DEMULATED_{name.upper()}=0x{digest[:12]}", "-include", str(FOLDER / "emulate.hpp"))
    return InstructionSet(name, needs, (*OPTIONS, *header))


def emulated_ops(name: str) -> CpuOps:
    """The C++ ops for an emulated instruction set; skips the test where they cannot be compiled."""
    if not isa.available() or build.compiler() is None:
        pytest.skip("the C++ ops cannot be compiled")
    return CpuOps(load(emulated(name)))
