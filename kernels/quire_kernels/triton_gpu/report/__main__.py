"""Prints what the Triton kernels use on GPUs that need not be here, as tables in Markdown.

python -m quire_kernels.triton_gpu.report [sm_90 ...] [op ...]
python -m quire_kernels.triton_gpu.report --roof [op ...]

Everything is computed: kernels are compiled at their default configurations, and the shortest times are those of
published rates, not measured. Where a kernel needs more registers than there are, the command fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire_kernels.triton_gpu.report.case import Case
from quire_kernels.triton_gpu.report.cases import cases
from quire_kernels.triton_gpu.report.offline import ARCHITECTURES, GpuArchitecture, KernelUsage, Launch, offline
from quire_kernels.triton_gpu.report.roof import COLUMNS, COMPILED_COLUMNS, H100, compiled_cells, roof_cells, table


def launches(case: Case, architecture: GpuArchitecture) -> list[Launch]:
    with offline(architecture) as driver:
        case.call()
    return driver.launches


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of an op, for an architecture."""

    op: str
    architecture: GpuArchitecture
    kernel: str
    warps: int
    usage: KernelUsage

    def line(self) -> str:
        used, resident = self.usage, self.usage.blocks_per_multiprocessor(self.warps, self.architecture)
        return (
            f"| {self.op} | {self.kernel} | {self.architecture.name} | {self.warps} | {used.registers} "
            f"| {used.spilled} | {used.shared_memory / 1024:.1f} | {resident} |"
        )


def compiled(chosen: Sequence[Case], architectures: Sequence[GpuArchitecture]) -> Iterator[CompiledKernel]:
    """Each kernel of each op, for each architecture."""
    for case in chosen:
        for architecture in architectures:
            found = {(each.kernel, each.warps, each.usage): None for each in launches(case, architecture)}
            yield from (CompiledKernel(case.op, architecture, *each) for each in found)


def roof_table(chosen: Sequence[Case]) -> Iterator[str]:
    """The table of docs/scale/gpu.md; its last columns are of kernels compiled for an H100."""
    rows = ([*roof_cells(case), *compiled_cells(case, launches(case, H100))] for case in chosen)
    return table([*COLUMNS, *COMPILED_COLUMNS], rows)


def main(arguments: Sequence[str]) -> None:
    is_roof, arguments = "--roof" in arguments, [word for word in arguments if word != "--roof"]
    found = cases()
    names = {architecture.name: architecture for architecture in ARCHITECTURES}
    unknown = [word for word in arguments if word not in names and word not in found]
    if unknown:
        raise SystemExit(f"neither a GPU ({', '.join(names)}) nor an op ({', '.join(found)}): {', '.join(unknown)}")
    architectures = [names[word] for word in arguments if word in names] or list(ARCHITECTURES)
    chosen = [found[word] for word in arguments if word in found] or list(found.values())
    if is_roof:
        print(*roof_table(chosen), sep="\n")
        return
    print("| op | kernel | GPU | warps | registers | spilled bytes | shared KiB | programs on a multiprocessor |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    spilling = []
    for each in compiled(chosen, architectures):
        print(each.line(), flush=True)
        spilling += [f"{each.op} on {each.architecture.name}"] if each.usage.spilled else []
    print("", *table(COLUMNS, map(roof_cells, chosen)), sep="\n")
    if spilling:
        raise SystemExit(f"spill registers: {', '.join(spilling)}")


if __name__ == "__main__":
    main(sys.argv[1:])
