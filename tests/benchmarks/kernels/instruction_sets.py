"""Products with each instruction set of this machine, beside what its multiply-adds reach in registers.

    python tests/benchmarks/kernels/instruction_sets.py

The machine should do nothing else. The figures are those of the shortest of many calls, in GFLOP/s.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from quire_bench.profiling.cpu_peak import cpu_peak
from quire_kernels.cpu.isa import InstructionSet, available
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps

SHAPES = ((3072, 576), (9728, 896))
"""Outputs and inputs of the largest product of a model with 135 million, and with 500 million parameters."""
ROWS = (1, 32, 512)
SECONDS = 0.4
"""For one product."""


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the shortest call."""
    least, until = float("inf"), time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < until:
        run()
        least = min(least, time.perf_counter() - begin)
    return least


def rates(product: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, int]) -> list[float]:
    """GFLOP/s for each number of rows."""
    found = []
    for rows in ROWS:
        x = torch.randn(rows, shape[1], dtype=torch.bfloat16)
        found.append(2 * rows * shape[0] * shape[1] / shortest(lambda x=x: product(x)) / 1e9)  # type: ignore[misc]
    return found


def measure(isa: InstructionSet) -> None:
    """Print the lines of one instruction set."""
    ops, threads = CpuOps(load(isa)), torch.get_num_threads()
    peaks = {kind: (cpu_peak(kind == "bfloat16", threads, isa=isa) or 0) / 1e9 for kind in ("bfloat16", "float32")}
    print(f"{isa.name}: in registers bfloat16 {peaks['bfloat16']:.0f}, float32 {peaks['float32']:.0f}", flush=True)
    for shape in SHAPES:
        weight = torch.randn(shape).bfloat16()
        for kind, product in (("bfloat16", ops.linear(weight, None)), ("int8", ops.linear_int8(weight, None))):
            figures = "  ".join(f"{rate:6.0f}" for rate in rates(product, shape))
            print(f"  {shape[1]:>5} x {shape[0]:<5} {kind:8}  {figures}", flush=True)


def main() -> None:
    """Measure them all."""
    torch.manual_seed(0)
    print(f"rows: {ROWS}, threads: {torch.get_num_threads()}")
    for isa in available():
        measure(isa)


if __name__ == "__main__":
    main()
