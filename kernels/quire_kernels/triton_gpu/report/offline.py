"""Compiles the kernels that an op launches, for a GPU that is not here, and records the launches."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


@dataclass(frozen=True)
class GpuArchitecture:
    """Limits of one multiprocessor, and of one program's shared memory (CUDA C++ programming guide, table of compute
    capabilities).
    """

    capability: int
    registers: int = 65536
    threads: int = 2048
    blocks: int = 32
    shared_memory: int = 233472
    program_shared_memory: int = 232448

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"


ARCHITECTURES = (
    GpuArchitecture(80, shared_memory=167936, program_shared_memory=166912),
    GpuArchitecture(90),
    GpuArchitecture(100),
)


def _dumped(binary: bytes, what: str) -> str:
    """What cuobjdump prints about a cubin."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        return subprocess.check_output([triton.knobs.nvidia.cuobjdump.path, what, str(path)], text=True)


@dataclass(frozen=True)
class KernelUsage:
    """What a compiled kernel uses. registers: of a thread. spilled: bytes of a thread's stack, where registers do not
    suffice. shared_memory: bytes of a program.
    """

    registers: int
    spilled: int
    shared_memory: int

    @classmethod
    def from_binary(cls, binary: bytes, shared_memory: int) -> KernelUsage:
        """binary: a cubin. shared_memory: bytes that a launch adds to those of the cubin."""
        text = _dumped(binary, "--dump-resource-usage")
        used = {name: int(amount) for name, amount in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text)}
        return cls(used["REG"], used["STACK"] + used["LOCAL"], used["SHARED"] + shared_memory)

    def blocks_per_multiprocessor(self, warps: int, architecture: GpuArchitecture) -> int:
        """How many programs of so many warps are resident at once."""
        of_warp = -(-self.registers * 32 // 256) * 256  # registers are allocated to warps in units of 256
        return min(
            architecture.blocks,
            architecture.threads // (32 * warps),
            architecture.registers // (of_warp * warps),
            architecture.shared_memory // (self.shared_memory + 1024),  # 1 KiB of each program is the system's
        )


@dataclass(frozen=True)
class Launch:
    """One launch of a compiled kernel."""

    kernel: str
    grid: tuple[int, int, int]
    warps: int
    usage: KernelUsage
    binary: bytes

    def instructions(self) -> str:
        """The kernel's machine code, as text."""
        return _dumped(self.binary, "--dump-sass")


@dataclass(eq=False)
class OfflineDriver:
    """A driver for Triton that has no device: loading a kernel measures it, and a launch is recorded."""

    architecture: GpuArchitecture
    launches: list[Launch] = field(default_factory=list)

    @property
    def utils(self) -> OfflineDriver:
        return self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture.capability, 32)

    def get_current_device(self) -> int:
        """The architecture's number, since Triton keeps compiled kernels by device."""
        return self.architecture.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.architecture.program_shared_memory}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Module, function, registers, spilled bytes, most threads; the function is what a launch passes on."""
        usage = KernelUsage.from_binary(binary, shared)
        return None, (usage, binary), usage.registers, usage.spilled, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """Called once for each compiled kernel, which may serve a later driver as well."""

        def launch(x: int, y: int, z: int, stream: int, function: tuple[KernelUsage, bytes], *others: Any) -> None:
            driver.active.launches.append(Launch(metadata.name, (x, y, z), metadata.num_warps, *function))

        return launch


@contextmanager
def offline(architecture: GpuArchitecture) -> Iterator[OfflineDriver]:
    """Within it, ops that get tensors on the device "meta" compile their kernels and launch nothing."""
    found = OfflineDriver(architecture)
    driver.set_active(found)
    try:
        yield found
    finally:
        driver.set_active(None)
