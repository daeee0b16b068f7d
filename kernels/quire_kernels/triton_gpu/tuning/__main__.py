"""Measures launches on this machine's GPU, and keeps the quickest settings where Quire finds them.

python -m quire_kernels.triton_gpu.tuning [--matrices 4096x4096,14336x4096] [--heads 32x8x128] [--codes int4,fp8]
    [--out FILE]

--matrices: outputs and inputs, as they are fused in the model (queries, keys and values are one matrix). --heads: heads
of queries, of keys, and their width. The default shapes are those of a model of 8 billion parameters. Results of
earlier runs are kept. The table is read when a model is loaded.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from triton.runtime.errors import OutOfResources

from quire_kernels.triton_gpu.tuning.cases import (
    CODE_FORMS,
    AttentionHeads,
    TuningCase,
    attention_cases,
    code_cases,
    row_cases,
)
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable, table_path
from quire_kernels.triton_gpu.tuning.search import QuickestSettings, quickest
from quire_kernels.triton_gpu.tuning.settings import LaunchSettings
from quire_kernels.triton_gpu.tuning.timing import graph_seconds

MATRICES, HEADS, CODES = "6144x4096,4096x4096,28672x4096,4096x14336", "32x8x128", ",".join(CODE_FORMS)
CONTEXTS = ((1, 1, 8192), (64, 1, 2048), (1, 2048, 2048))
"""Rows, tokens of each, and contexts of the attention that is measured."""


def cases(matrices: Sequence[Sequence[int]], heads: AttentionHeads, codes: Sequence[str]) -> Iterator[TuningCase]:
    """Made one after the other: their memory is not held longer than each is measured."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    for outputs, inputs in matrices:
        yield from row_cases(outputs, inputs, device, dtype)
        for name in codes:
            yield from code_cases(outputs, inputs, name, device)
    for rows, length, context in CONTEXTS:
        yield from attention_cases(heads, rows, length, context, device, dtype)


def found(case: TuningCase) -> QuickestSettings[LaunchSettings]:
    def seconds_of(settings: LaunchSettings) -> float:
        try:
            return graph_seconds(case.calls(LaunchTable().with_settings(case.op, case.shape, settings)))
        except OutOfResources:
            return math.inf

    return quickest(case.default, seconds_of)


def tune(table: LaunchTable, measured: Iterator[TuningCase]) -> LaunchTable:
    """A table with what is quicker than the default; prints a line for each case."""
    for case in measured:
        best = found(case)
        print(f"{case.op}, {case.shape}: {best.default_s * 1e6:.1f} -> {best.seconds * 1e6:.1f} µs, {best.settings}")
        sys.stdout.flush()
        table = table.with_settings(case.op, case.shape, best.settings)
    return table


def numbers(text: str) -> list[int]:
    """4096x14336 -> [4096, 14336]. Raises ValueError."""
    return [int(each) for each in text.split("x")]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--matrices", default=MATRICES, help=f"OUTPUTSxINPUTS,… (default: {MATRICES})")
    parser.add_argument("--heads", default=HEADS, help=f"QUERIESxKEYSxWIDTH (default: {HEADS})")
    parser.add_argument("--codes", default=CODES, help=f"of {', '.join(CODE_FORMS)}; empty = none")
    parser.add_argument("--out", type=Path, help="the file to write (default: where Quire finds it)")
    options = parser.parse_args(arguments)
    try:
        matrices, heads = (
            [numbers(each) for each in options.matrices.split(",")],
            AttentionHeads(*numbers(options.heads)),
        )
        if any(len(each) != 2 for each in matrices):
            raise ValueError("a matrix has outputs and inputs")
    except (ValueError, TypeError) as error:
        parser.error(f"--matrices or --heads: {error}")
    codes = [name for name in options.codes.split(",") if name]
    if unknown := [name for name in codes if name not in CODE_FORMS]:
        parser.error(f"--codes: {unknown[0]} is not one of {', '.join(CODE_FORMS)}")
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU to measure on.")
    path = options.out or table_path(torch.device("cuda"))
    tune(LaunchTable.read(path), cases(matrices, heads, codes)).write(path)
    print(f"written to {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
