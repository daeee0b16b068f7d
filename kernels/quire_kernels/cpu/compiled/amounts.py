"""What the instructions of a program move and compute, for profiles: bytes and floating-point operations."""

from __future__ import annotations

from ctypes import Array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.library import COMPRESSED_BYTES, PANEL
from quire_kernels.cpu.structs import (
    EARLY,
    EARLY_END,
    PRODUCTS,
    SELECTED,
    Instruction,
    Op,
    PackedMatrix,
    StepStruct,
    TensorView,
)

UNKNOWN = frozenset(
    (
        Op.LOW_RANK,
        Op.SHRINK,
        Op.MOE,
        Op.GATED_DELTA,
        Op.SSD_SCAN,
        Op.SELECTIVE_SCAN,
        Op.PRODUCT_HEADS,
        Op.ROW_ATTENTION,
    )
)
"""Operations whose instructions do not say how much they read."""


class OpTiming(NamedTuple):
    """One operation of a program over its timed runs. bytes, flops: None if they are not known."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    bytes: float | None = 0.0
    flops: float | None = 0.0

    def plus(self, calls: int, seconds: float, moved: float | None, flops: float | None) -> OpTiming:
        """With the runs of another instruction of the same name."""
        return OpTiming(
            self.name,
            self.calls + calls,
            self.seconds + seconds,
            None if self.bytes is None or moved is None else self.bytes + moved,
            None if self.flops is None or flops is None else self.flops + flops,
        )


class Amounts:
    """Sums over the timed runs of a program, for each instruction."""

    def __init__(self, code: Array[Instruction]) -> None:
        self._code = code
        self._sums = np.zeros((len(code), 2))

    def add(self, step: StepStruct, fwd: Any) -> None:
        """Count the instructions of a run that was timed."""
        early = _early_lens(fwd) if any(instruction.selected == EARLY for instruction in self._code) else None
        for i, instruction in enumerate(self._code):
            is_early = instruction.selected == EARLY and early is not None
            is_selected = is_early or instruction.selected in (SELECTED, EARLY_END)
            tokens = step.num_selected if is_selected else step.tokens
            size = 2 if step.is_bf16 else 4
            if instruction.op in PRODUCTS:
                self._sums[i] += _of_product(instruction, tokens, size)
            elif instruction.op == Op.ATTENTION:
                rows = fwd.cross_attention if instruction.of_encoder else fwd.rows
                lens = early if is_early and early is not None else rows.lens_host
                self._sums[i] += _of_attention(instruction, lens, rows.contexts_host, step.kv_bits / 8 or size)
            else:
                self._sums[i] += tokens * size * _columns(instruction), np.nan

    def drain(self) -> list[tuple[float | None, float | None]]:
        """(bytes, floating-point operations) of each instruction since the last call; None if it is not known."""
        sums, self._sums = self._sums, np.zeros_like(self._sums)
        return [
            (None, None) if instruction.op in UNKNOWN else (moved, None if np.isnan(flops) else flops)
            for instruction, (moved, flops) in zip(self._code, sums.tolist(), strict=True)
        ]


def _width(view: TensorView) -> int:
    return max(view.parts, 1) * view.width


def _columns(instruction: Instruction) -> int:
    """Columns of the inputs and of the output."""
    return sum(map(_width, (*instruction.inputs, instruction.out)))


def _of_product(instruction: Instruction, tokens: int, size: int) -> tuple[float, float]:
    packed = instruction.packed
    elements = packed.inputs * packed.outputs
    rows = tokens * size * (packed.inputs + _width(instruction.out))
    return elements * _element_bytes(instruction.op, packed, size) + rows, 2.0 * elements * tokens


def _element_bytes(op: int, packed: PackedMatrix, size: int) -> float:
    if packed.bytes:
        return packed.bytes / (PANEL * packed.inputs)
    if packed.book:
        return COMPRESSED_BYTES
    return {Op.PRODUCT_INT8: 1, Op.PRODUCT_SPLIT: 6}.get(Op(op), size)


def _early_lens(fwd: Any) -> NDArray[np.int64] | None:
    """Number of logit rows of each row; None if they are not the last tokens of each (the C++ class `EarlyRows`)."""
    ends, selected = np.cumsum(fwd.rows.lens_host), fwd.logit_rows.numpy()
    lens = np.diff(np.searchsorted(selected, ends), prepend=0)
    last = [np.arange(end - length, end) for end, length in zip(ends, lens, strict=True)]
    return lens if np.array_equal(np.concatenate([selected[:0], *last]), selected) else None


def _of_attention(
    instruction: Instruction, lens: NDArray[np.integer], contexts: NDArray[np.integer], kv_size: float
) -> tuple[float, float]:
    """The keys and values that each row sees are counted once for the row."""
    queries, keys, values = instruction.inputs
    contexts = np.where(lens > 0, contexts, 0).astype(np.int64)
    lens = lens.astype(np.int64)
    window = instruction.window or int(contexts.max(initial=0)) + 1
    cut = np.clip(contexts - window, 0, lens)  # tokens that see the whole window
    whole = lens - cut
    seen = whole * (contexts - lens) + whole * (whole + 1) // 2 + cut * window
    positions = np.minimum(contexts, window + lens - 1).sum()
    moved = positions * kv_size * (keys.parts * keys.width + values.parts * values.width)
    return float(moved), 2.0 * queries.parts * (keys.width + values.width) * float(seen.sum())
