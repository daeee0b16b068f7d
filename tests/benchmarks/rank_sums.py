"""How long a sum over the ranks takes between processes that share memory.

    python tests/benchmarks/rank_sums.py [--ranks 2] [--kib 64] [--rounds 300]

A program of 100 sums, as in a step, is run again and again by each process with one thread. Prints the median over the
runs of the time of a sum, and that of single sums outside of a program.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable
from ctypes import addressof

import torch

from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.structs import Instruction, Op, StepStruct, TensorView, pointers
from quire_kernels.groups.shared_memory import SharedMemoryGroup, shared_bytes

SUMS = 100
COLUMNS = 1024


def recorded(group: SharedMemoryGroup, x: torch.Tensor) -> Callable[[], None]:
    """Computes SUMS sums of x float32 [rows, COLUMNS] in place, in one call of the C++ library."""
    view = TensorView(0, 1, 0, COLUMNS, COLUMNS)
    member = addressof(group._member)
    inputs = (TensorView * 3)(view, TensorView(), TensorView())
    instruction = Instruction(op=Op.ALL_REDUCE, inputs=inputs, out=view, weight=member)
    program = (Instruction * SUMS)(*[instruction] * SUMS)
    buffers = pointers([x])
    step = StepStruct(is_bf16=0, threads=1, tokens=len(x))
    step.buffers = addressof(buffers)

    def run() -> None:
        assert buffers is not None, "must live as long as the program"
        compiled().run(step, program)
        group.check()

    return run


def seconds(run: Callable[[], object], x: torch.Tensor, size: int, sums: int, rounds: int) -> float:
    """Median over `rounds` of how long `run` takes, which computes so many sums of x over `size` ranks."""
    times = []
    for _ in range(rounds):
        x.fill_(1.0)
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
        assert bool((x == float(size) ** sums).all()), "a sum is wrong"
    return statistics.median(times)


def measure(memory: mmap.mmap, rank: int, size: int, kib: int, rounds: int) -> tuple[float, float]:
    """Seconds of a sum within a program, and of one outside of it."""
    group = SharedMemoryGroup(compiled(), memory, rank, size, 1)
    x = torch.empty(kib * 256 // COLUMNS, COLUMNS)
    group.begin()
    inside = seconds(recorded(group, x), x, size, SUMS, rounds) / SUMS
    return inside, seconds(lambda: group.all_reduce(x), x, size, 1, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=(2, 1), default=2, help="(default: 2)")
    parser.add_argument("--kib", type=int, default=64, help="a multiple of 4 (default: 64)")
    parser.add_argument("--rounds", type=int, default=300, help="(default: 300)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory = mmap.mmap(-1, shared_bytes(compiled(), args.ranks, 1))
    children = []
    for rank in range(1, args.ranks):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                measure(memory, rank, args.ranks, args.kib, args.rounds)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    inside, outside = measure(memory, 0, args.ranks, args.kib, args.rounds)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    print(
        f"a sum of {args.kib} KiB over {args.ranks} processes: {inside * 1e6:.1f} µs within a step, "
        f"{outside * 1e6:.1f} µs by itself (medians of {args.rounds} runs)"
    )


if __name__ == "__main__":
    main()
