"""The peak of a CPU in FLOPs: a loop of multiply-adds on registers, compiled for its instruction set."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire_kernels.cpu.isa import InstructionSet

SOURCE = Path(__file__).parent / "peak_flops.cpp"
ROUNDS = 1_000_000
REPEATS = 10


def cpu_peak(is_bf16: bool, threads: int, rounds: int = ROUNDS, isa: InstructionSet | None = None) -> float | None:
    """FLOPs per second of `threads` threads together with an instruction set, None = the best one of this machine; None
    without a compiler, or on a CPU that the C++ ops are not for.
    """
    from quire_kernels.cpu.build import SOURCES, compiler
    from quire_kernels.cpu.isa import available

    command, sets = compiler(), available()
    if command is None or not sets:
        return None
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "peak.so"
        options = ("-std=c++17", "-O3", "-fPIC", "-shared", "-I", str(SOURCES), *(isa or sets[0]).options)
        subprocess.run([*command, *options, str(SOURCE), "-o", str(built)], check=True, capture_output=True)
        function = ctypes.CDLL(str(built)).multiply_adds
    function.restype = ctypes.c_double
    function.argtypes = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p

    def compute(_: int) -> float:
        numbers, sums = (ctypes.c_float * 32)(*[1.0] * 32), (ctypes.c_float * 16)()
        flops: float = function(int(is_bf16), rounds, numbers, sums)
        return flops

    with ThreadPoolExecutor(threads) as pool:
        return max(_rate(lambda: sum(pool.map(compute, range(threads)))) for _ in range(REPEATS))


def _rate(run: Callable[[], float]) -> float:
    begin = time.perf_counter()
    return run() / (time.perf_counter() - begin)
