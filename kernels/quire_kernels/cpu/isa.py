"""Instruction sets that the C++ ops are compiled for, best first, and which of them this machine supports."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the system call by which a process requests AMX tiles (Documentation/arch/x86/xstate.rst)."""
PR_SVE_GET_VL, PR_SVE_VL_LEN_MASK = 51, 0xFFFF
"""Linux on AArch64: prctl for the length of registers of SVE, and its bits (Documentation/arch/arm64/sve.rst)."""


@dataclass(frozen=True)
class InstructionSet:
    """A set of CPU features. needs: flags as Linux lists them in /proc/cpuinfo. options: compiler options. sve_bytes:
    the length that registers of SVE must have, 0 without SVE.
    """

    name: str
    needs: frozenset[str]
    options: tuple[str, ...]
    sve_bytes: int = 0

    @property
    def tiles(self) -> bool:
        """Whether products of several rows use AMX tiles."""
        return "amx_tile" in self.needs

    @property
    def vnni(self) -> bool:
        """Whether products of bytes are summed in 32 bits, rather than in pairs in 16 bits."""
        return not self.needs.isdisjoint({"avx512_vnni", "avx_vnni", "asimd"})


def _isa(name: str, *features: str) -> InstructionSet:
    options = tuple(f"-m{feature.replace('_', '') if feature.startswith('avx') else feature}" for feature in features)
    return InstructionSet(name, frozenset(feature.replace("amx-", "amx_") for feature in features), options)


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
_AVX512_BF16 = (*_AVX512, "avx512_bf16", "avx512_vnni", "avx512vbmi", "avx512_vbmi2")

INSTRUCTION_SETS = (
    _isa("amx", *_AVX512_BF16, "amx-tile", "amx-bf16", "amx-int8"),
    _isa("avx512_bf16", *_AVX512_BF16),
    _isa("avx512_vnni", *_AVX512, "avx512_vnni"),
    _isa("avx512", *_AVX512),
    _isa("avx_vnni", *_AVX2, "avx_vnni"),
    _isa("avx2", *_AVX2),
)
"""Those of x86-64."""

_DOT, _BF16 = frozenset({"asimd", "asimddp"}), frozenset({"asimd", "asimddp", "bf16"})

ARM_SETS = (
    InstructionSet(
        "sve256_bf16", _BF16 | {"sve", "svebf16"}, ("-march=armv8.2-a+dotprod+bf16+sve", "-msve-vector-bits=256"), 32
    ),
    InstructionSet("sve512", frozenset({"asimd", "sve"}), ("-march=armv8.2-a+sve", "-msve-vector-bits=512"), 64),
    InstructionSet("neon_bf16", _BF16, ("-march=armv8.2-a+dotprod+bf16",)),
    InstructionSet("neon_dot", _DOT, ("-march=armv8.2-a+dotprod",)),
    InstructionSet("neon", frozenset({"asimd"}), ("-march=armv8-a",)),
)
"""Those of AArch64. Registers of SVE that are as short as those of NEON do no more than them."""


@cache
def available() -> tuple[InstructionSet, ...]:
    """Instruction sets that this process can use, best first; empty where that is unknown (not Linux)."""
    return tuple(isa for isa in (*INSTRUCTION_SETS, *ARM_SETS) if isa.needs <= flags() and _allowed(isa))


@cache
def flags() -> frozenset[str]:
    """CPU flags listed in /proc/cpuinfo; empty without that file."""
    if not CPUINFO.exists():
        return frozenset()
    lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines()
    named = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))  # x86-64, AArch64
    return frozenset(next(named, "").split())


def _allowed(isa: InstructionSet) -> bool:
    """Whether the system lets this process use it: some kernels and sandboxes deny AMX although the CPU has it."""
    if isa.sve_bytes:
        return sve_bytes() == isa.sve_bytes
    if "amx_tile" not in isa.needs:
        return True
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0)


def sve_bytes() -> int:
    """The length of this process's registers of SVE; 0 without SVE."""
    return max(0, ctypes.CDLL(None).prctl(PR_SVE_GET_VL, 0, 0, 0, 0)) & PR_SVE_VL_LEN_MASK
