"""A plugin of pytest (-p arm_ops): tests of the C++ ops run those for AArch64, on an emulated CPU.

`arm_rig` starts pytest with what this needs: the shared heap, the name of an instruction set, more options of the
compiler, and a folder for what is compiled.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from guest_functions import GuestFunctions
from torch import Tensor

from quire_kernels.cpu import build, isa, library, memory
from quire_kernels.cpu.isa import InstructionSet
from quire_kernels.cpu.library import Library

EMULATOR = {
    "sve256_bf16": "max,sve256=on,sve512=off",
    "sve512": "max,sve512=on,sve1024=off",
    "neon_bf16": "max,sve=off",
    "neon_dot": "neoverse-n1",
    "neon": "cortex-a57",
}
"""Emulated CPUs by instruction set; each has as little more as there is."""


def _command(name: str, folder: Path) -> list[str]:
    return ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", EMULATOR[name], str(folder / "guest")]


def _instruction_set() -> InstructionSet:
    chosen = next(found for found in isa.ARM_SETS if found.name == os.environ["QUIRE_ARM_ISA"])
    return replace(chosen, options=(*chosen.options, *os.environ["QUIRE_ARM_OPTIONS"].split()))


@cache
def _load(_: InstructionSet | None = None) -> Library:
    folder, chosen = Path(os.environ["QUIRE_ARM_FOLDER"]), _instruction_set()
    ops = folder / build.prebuilt_name(chosen)
    if not ops.exists():
        build.prebuild(chosen, folder)
    return library.bound(chosen, GuestFunctions(_command(chosen.name, folder), ops))


def _zeros(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)  # on the shared heap, unlike memory that is mapped


del os.environ["LD_PRELOAD"]  # for this process alone
for module, name, value in (
    (isa, "available", cache(lambda: (_instruction_set(),))),
    (memory, "map_zeros", _zeros),
    (library, "load", _load),
):
    setattr(module, name, value)
