"""Measures the bandwidth and peak FLOPs of a device, and computes the least time of steps and operations from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_bench.profiling.cpu_peak import cpu_peak
from quire_bench.profiling.roofline import OpCost

if TYPE_CHECKING:
    import torch

ROWS = (512, 1024, 2048)
"""Rows of the matrix product: enough to be compute-bound."""


@dataclass(frozen=True)
class DeviceRoofline:
    """Bandwidth and peak FLOPs of a device."""

    read_bytes_per_s: float
    flops_per_s: float

    @classmethod
    def measure(
        cls, device: torch.device, dtype: torch.dtype, num_floats: int = 2**28, width: int = 4096
    ) -> DeviceRoofline:
        """Measures them with the threads that torch uses, for `dtype`; FLOPs on a CPU in registers, else in a product.

        num_floats: float32 values to read, all touched before; many times the size of the caches. width: of the square
        matrix in the product.
        """
        import torch

        flops = cpu_peak(dtype == torch.bfloat16, torch.get_num_threads()) if device.type == "cpu" else None
        return cls(_read_bytes_per_s(device, num_floats), flops or _flops_per_s(device, dtype, width))

    def best(self, other: DeviceRoofline) -> DeviceRoofline:
        """The better of two measurements of the same device."""
        return DeviceRoofline(
            max(self.read_bytes_per_s, other.read_bytes_per_s), max(self.flops_per_s, other.flops_per_s)
        )

    def least_s(self, cost: OpCost) -> float:
        """Least time of a step in seconds; reading and computing may overlap."""
        return max(cost.bytes / self.read_bytes_per_s, cost.flops / self.flops_per_s)

    def reads_longer(self, cost: OpCost) -> bool:
        """Whether a step is memory-bound."""
        return cost.bytes / self.read_bytes_per_s > cost.flops / self.flops_per_s


def _read_bytes_per_s(device: torch.device, num_floats: int) -> float:
    import torch

    memory = torch.ones(num_floats, device=device)
    return memory.nbytes / min(_best_s(memory.sum, device, 7), _best_s(lambda: torch.dot(memory, memory), device, 7))


def _flops_per_s(device: torch.device, dtype: torch.dtype, width: int) -> float:
    import torch

    matrix = torch.randn(width, width, device=device).to(dtype)

    def rate(num_rows: int) -> float:
        x = torch.randn(num_rows, width, device=device).to(dtype)
        return 2 * num_rows * width * width / _best_s(lambda: torch.mm(x, matrix), device, 3)

    return max(map(rate, ROWS))


def _best_s(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    import torch

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    run()
    times = []
    for _ in range(repeats):
        start = now()
        run()
        times.append(now() - start)
    return min(times)
