"""Prints what the Triton kernels use on GPUs that need not be here, as tables in Markdown.

python -m quire_kernels.triton_gpu.report [sm_90 ...] [op ...]

Everything is computed: kernels are compiled at their default configurations, and the shortest times are those of
published rates, not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from quire_kernels.triton_gpu.report.case import Case
from quire_kernels.triton_gpu.report.cases import cases
from quire_kernels.triton_gpu.report.offline import ARCHITECTURES, GpuArchitecture, Launch, offline

BANDWIDTH, FLOPS, FLOPS_FP32 = 3.35e12, 989e12, 67e12
"""Of an H100 SXM by its data sheet: bytes a second, bfloat16 products without sparsity, float32 operations."""


def launches(case: Case, architecture: GpuArchitecture) -> list[Launch]:
    with offline(architecture) as driver:
        case.call()
    return driver.launches


def usage_lines(chosen: Sequence[Case], architectures: Sequence[GpuArchitecture]) -> Iterator[str]:
    """A row for each kernel of each op, for each architecture."""
    yield "| op | kernel | GPU | warps | registers | spilled bytes | shared KiB | programs on a multiprocessor |"
    yield "|---|---|---|--:|--:|--:|--:|--:|"
    for case in chosen:
        for architecture in architectures:
            for launch in {(each.kernel, each.usage): each for each in launches(case, architecture)}.values():
                used = launch.usage
                resident = used.blocks_per_multiprocessor(launch.warps, architecture)
                yield (
                    f"| {case.op} | {launch.kernel} | {architecture.name} | {launch.warps} | {used.registers} "
                    f"| {used.spilled} | {used.shared_memory / 1024:.1f} | {resident} |"
                )


def roof_lines(chosen: Sequence[Case]) -> Iterator[str]:
    """A row for each op: what it must move and multiply, and how long an H100 takes for that at the least."""
    yield "| op | MB | GFLOP | least time on an H100, computed | bound by |"
    yield "|---|--:|--:|--:|---|"
    for case in chosen:
        rate = FLOPS_FP32 if "fp32" in case.op else FLOPS
        moving, computing = case.bytes / BANDWIDTH, case.flops / rate
        bound = "memory" if moving >= computing else "products"
        yield (
            f"| {case.op} | {case.bytes / 1e6:.1f} | {case.flops / 1e9:.1f} "
            f"| {max(moving, computing) * 1e6:.1f} µs | {bound} |"
        )


def main(arguments: Sequence[str]) -> None:
    found = cases()
    names = {architecture.name: architecture for architecture in ARCHITECTURES}
    unknown = [word for word in arguments if word not in names and word not in found]
    if unknown:
        raise SystemExit(f"neither a GPU ({', '.join(names)}) nor an op ({', '.join(found)}): {', '.join(unknown)}")
    architectures = [names[word] for word in arguments if word in names] or list(ARCHITECTURES)
    chosen = [found[word] for word in arguments if word in found] or list(found.values())
    for line in (*usage_lines(chosen, architectures), "", *roof_lines(chosen)):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
