"""Build hook: compiles the CPU ops into the wheel, so that its users need no compiler.

    QUIRE_COMPILE_OPS=all pip wheel --no-deps -w dist .            # every instruction set; some minutes
    QUIRE_COMPILE_OPS=avx512_bf16,avx2 pip wheel --no-deps -w dist .

Without the variable the wheel is pure Python and sources, and the ops are compiled at first use.
"""

import os
import sys
from pathlib import Path
from platform import machine
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledOps(BuildHookInterface):  # type: ignore[type-arg]
    """Adds a library for each chosen instruction set, and makes the wheel one for this machine's architecture."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        chosen = os.environ.get("QUIRE_COMPILE_OPS", "")
        if not chosen or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "kernels"))
        from quire_kernels.cpu import build
        from quire_kernels.cpu.isa import ARM_SETS, INSTRUCTION_SETS

        known = {isa.name: isa for isa in (ARM_SETS if machine() == "aarch64" else INSTRUCTION_SETS)}
        names = list(known) if chosen == "all" else chosen.split(",")
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"QUIRE_COMPILE_OPS: there is no {unknown[0]!r}; there are {', '.join(known)}, or all.")
        for name in names:
            library = build.prebuild(known[name], Path(self.root) / "build" / "ops")
            build_data["force_include"][str(library)] = f"quire_kernels/cpu/{build.PREBUILT.name}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine()}"
