"""Times of products on this machine's GPU: 64 adapters of 64 and of 256 rows, and matrices of few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from quire_kernels.low_rank import LowRankUpdate, TokenSlots
from quire_kernels.triton_gpu import linear, low_rank
from quire_kernels.triton_gpu.quantized.int8 import linear_int8
from quire_kernels.triton_gpu.quantized.op import TritonQuantizedLinear
from quire_kernels.triton_gpu.tuning.cases import CODE_FORMS, CodeForm, random_codes
from quire_kernels.triton_gpu.tuning.timing import CACHE_BYTES

CUDA = torch.device("cuda")

RANK, ADAPTERS = 16, 64
PROJECTIONS = {
    "qkv, of which q and v": (4096, (4096, 1024, 1024), (0, 2)),
    "gate_up, of which up": (4096, (14336, 14336), (1,)),
    "down": (14336, (4096,), (0,)),
    "o, of which nothing": (4096, (4096,), ()),
}
"""Inputs, outputs of the fused matrices, and which of these adapters change; those of an 8B model."""

SHAPES = ((14336, 4096), (4096, 4096))


def adapter_calls(rows: int, inputs: int, sizes: Sequence[int], changed: Sequence[int]) -> tuple[list[Any], float]:
    """Calls with different adapters, and the bytes that one must move."""
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    update = [
        LowRankUpdate(torch.randn(RANK, inputs) / 64, torch.randn(size, RANK)) if i in changed else None
        for i, size in enumerate(sizes)
    ]
    moved = sum(ADAPTERS * 2 * RANK * (inputs + sizes[i]) + rows * 4 * sizes[i] for i in changed)
    x, y = (torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for width in (inputs, edges[-1]))
    tokens = torch.randperm(rows, device="cuda").int() % ADAPTERS, torch.ones(rows, device="cuda")
    given = TokenSlots.on_device(*tokens, RANK)
    calls = []
    for _ in range(max(1, min(16, CACHE_BYTES // max(moved, 1)))):
        slots = low_rank.low_rank(inputs, list(pairwise(edges)), ADAPTERS, torch.bfloat16)
        packed = slots.pack(update)
        for slot in range(ADAPTERS if changed else 0):
            slots.put(slot, packed)
        calls.append(partial(slots, y, x, given))
    return calls, moved


def adapter_times(seconds_of: Callable[[list[Any]], float], bandwidth: float) -> Iterator[tuple[str, dict[str, float]]]:
    for rows in (ADAPTERS, 4 * ADAPTERS):
        for name, projection in PROJECTIONS.items():
            calls, moved = adapter_calls(rows, *projection)
            seconds = seconds_of(calls)
            found = {"us": seconds * 1e6, "of the roof": moved / bandwidth / seconds}
            yield f"adapters of {rows} rows, {name}", found


def products(outputs: int, inputs: int) -> Iterator[tuple[str, Callable[[], Any], float]]:
    """Name, what makes a bound matrix, and its bytes."""
    for name, form in CODE_FORMS.items():
        matrix = random_codes(outputs, inputs, form, CUDA)
        moved = outputs * inputs * matrix.element_bytes
        for rounds in (False, True) if name.startswith("int4") else (False,):

            def make(form: CodeForm = form, rounds: bool = rounds) -> Any:
                return TritonQuantizedLinear(random_codes(outputs, inputs, form, CUDA), None, torch.bfloat16, rounds)

            yield f"{name}{', inputs rounded' if rounds else ''}", make, moved
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
    yield "int8", lambda: linear_int8(weight, None), outputs * inputs
    yield "bf16", lambda: linear.linear(weight.clone(), None), 2 * outputs * inputs


def product_times(
    seconds_of: Callable[[list[Any]], float], least: Callable[[float, float], float]
) -> Iterator[tuple[str, dict[str, float]]]:
    """least: seconds that bytes and operations take at least."""
    for outputs, inputs in SHAPES:
        for name, make, moved in products(outputs, inputs):
            bound = [make() for _ in range(max(1, int(CACHE_BYTES // moved)))]
            for rows in (1, 16, 64, 256):
                x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
                seconds = seconds_of([partial(each, x) for each in bound])
                roof = least(moved + 2 * rows * (inputs + outputs), 2 * rows * outputs * inputs)
                found = {"us": seconds * 1e6, "of the roof": roof / seconds}
                yield f"{outputs} x {inputs} {name}, {rows} rows", found
