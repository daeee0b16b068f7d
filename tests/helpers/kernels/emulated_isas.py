"""Instruction sets that this machine may lack, compiled with `emulation/emulate.hpp`: their code runs in tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.isa import INSTRUCTION_SETS, InstructionSet
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps

SOURCES = Path(__file__).parent / "emulation"
AVX2 = ("-mavx2", "-mfma", "-mf16c")
OPTIONS = ("-O1", "-fno-tree-sra", "-Wno-psabi")
"""-O1 compiles in a third of the time. GCC 12 fails in the pass that -fno-tree-sra leaves out."""
TILES = {"amx_tile", "amx_bf16", "amx_int8"}


@cache
def folder() -> Path:
    """A copy of the sources with their digest as its name, so that all checkouts of them share the compiled ops."""
    files = sorted(path for path in SOURCES.iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    found = Path(tempfile.gettempdir()) / f"quire-emulation-{os.getuid()}-{digest}"
    if not found.exists():
        with tempfile.TemporaryDirectory(dir=found.parent) as made:
            copy = shutil.copytree(SOURCES, Path(made) / "copy")
            with suppress(OSError):  # another process was first
                copy.rename(found)
    return found


def emulated(name: str) -> InstructionSet:
    """The instruction set of that name on a CPU with AVX2. Of AMX only tiles are emulated if the CPU has the rest."""
    wanted = next(found for found in INSTRUCTION_SETS if found.name == name)
    rest = (found.options for found in isa.available() if wanted.tiles and found.needs == wanted.needs - TILES)
    native = next(rest, None)
    kind = name.upper() if native is None else "TILES"
    header = ("-I", str(folder()), f"-DEMULATED_{kind}", "-include", str(folder() / "emulate.hpp"))
    return InstructionSet(name, wanted.needs, (*(native or AVX2), *OPTIONS, *header))


def emulated_ops(name: str) -> CpuOps:
    """The C++ ops for an emulated instruction set; skips the test where they cannot be compiled."""
    if not isa.available() or build.compiler() is None:
        pytest.skip("the C++ ops cannot be compiled")
    return CpuOps(load(emulated(name)))
