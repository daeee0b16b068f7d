"""What bounds the time of an op on an H100: the roof, and how much of it traffic and occupancy allow; all computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from quire_kernels.triton_gpu.report.case import Case
from quire_kernels.triton_gpu.report.offline import ARCHITECTURES, Launch, offline

BANDWIDTH, FLOPS, FLOPS_FP32 = 3.35e12, 989e12, 67e12
"""Of an H100 SXM by its data sheet: bytes a second, bfloat16 products without sparsity, float32 operations."""

(H100,) = (each for each in ARCHITECTURES if each.capability == 90)
MULTIPROCESSORS, LATENCY = 132, 600e-9
"""Of an H100 SXM; about how many seconds a read of its memory takes."""

NEEDED = BANDWIDTH * LATENCY / MULTIPROCESSORS
"""Bytes that each multiprocessor must be waiting for, so that the memory is always busy (Little's law)."""

COLUMNS = ("op", "MB", "GFLOP", "least time", "bound by", "MB of temporaries")
COMPILED_COLUMNS = ("KB in flight", "of the roof at the most")


class _Temporaries(TorchDispatchMode):
    """Counts the bytes of tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if all(each.alias_info is None for each in func._schema.returns):  # neither a view nor in place
            self.bytes += sum(each.nbytes for each in tree_leaves(found) if isinstance(each, Tensor))
        return found


def temporary_bytes(case: Case) -> int:
    """Bytes of what a call makes other than its result; nothing is compiled or launched."""
    unlaunched = patch.object(JITFunction, "run", lambda *given, **others: None)
    with offline(H100), unlaunched, _Temporaries() as made:
        result = case.call()
    return max(0, made.bytes - sum(each.nbytes for each in tree_leaves(result) if isinstance(each, Tensor)))


def bytes_in_flight(launch: Launch) -> float:
    """Of a multiprocessor: what all loads in the code of its programs read, once each. Loops issue some of them again
    and again, and may wait for one before the next, so that it is the most that can be in flight.
    """
    wide = {"128": 16, "64": 8, "": 4, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    found = re.findall(r"\sLDG(?:STS)?\.E((?:\.[A-Z0-9]+)*)", launch.instructions())
    of_thread = sum(next((wide[part] for part in kinds.split(".") if part in wide and part), 4) for kinds in found)
    resident = launch.usage.blocks_per_multiprocessor(launch.warps, H100)
    return of_thread * 32 * launch.warps * min(resident, prod(launch.grid) / MULTIPROCESSORS)


def roof_cells(case: Case) -> list[str]:
    """What an op must move and multiply, how long an H100 takes for that at the least, what it moves besides."""
    moving, computing = _seconds(case)
    return [
        *(case.op, f"{case.bytes / 1e6:.1f}", f"{case.flops / 1e9:.1f}", f"{max(moving, computing) * 1e6:.1f} µs"),
        *("memory" if moving >= computing else "products", f"{temporary_bytes(case) / 1e6:.1f}"),
    ]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines in Markdown; the first column and "bound by" are words, others numbers."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('---' if name in ('op', 'bound by') else '--:' for name in columns)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def compiled_cells(case: Case, launches: Sequence[Launch]) -> list[str]:
    """Bytes in flight of the launch that has most of them; the fraction of the roof that those and traffic allow."""
    different = {(each.kernel, each.grid): each for each in launches}.values()
    in_flight = max(map(bytes_in_flight, different))
    moving, computing = _seconds(case)
    moved = case.bytes + 2 * temporary_bytes(case)  # written and read
    allowed = max(moving, computing) / max(computing, moved / BANDWIDTH / min(1.0, in_flight / NEEDED))
    return [f"{in_flight / 1e3:.0f}", f"{allowed:.2f}"]


def _seconds(case: Case) -> tuple[float, float]:
    return case.bytes / BANDWIDTH, case.flops / (FLOPS_FP32 if "fp32" in case.op else FLOPS)
