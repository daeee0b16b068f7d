"""Instruction sets that this machine lacks, compiled with `emulation/emulate.hpp`, so that their code runs in tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from quire_kernels.cpu.isa import INSTRUCTION_SETS, InstructionSet

FOLDER = Path(__file__).parent / "emulation"


def _emulated(name: str, macro: str) -> InstructionSet:
    """An instruction set with the flags of the one of that name; its options hold a digest of the headers."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.hpp")))).hexdigest()
    needs = next(found.needs for found in INSTRUCTION_SETS if found.name == name)
    # -fno-tree-sra: GCC 12 fails in that pass
    options = ("-mavx2", "-mfma", "-mf16c", "-O1", "-fno-tree-sra", "-Wno-psabi")
    header = ("-I", str(FOLDER), "-include", str(FOLDER / "emulate.hpp"))
    return InstructionSet(name, needs, (*options, f"-D{macro}=0x{digest[:12]}", *header))


AMX = _emulated("amx", "EMULATED_AMX")
AVX512 = _emulated("avx512", "EMULATED_AVX512")
