"""Matrices of few bits with a scale for each group of inputs: their form in memory, and their product in plain torch.

Every quantized checkpoint format is read into a `QuantizedMatrix`; the op `linear_quantized` packs and multiplies it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quire_kernels import int8

MIN_GROUP = 16
"""Group sizes are multiples of this, or all inputs."""
X_GROUP = 32
"""Neighbouring columns of x that share a scale when x is quantized."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A matrix [outputs, inputs] (N, K below) whose columns are in G groups of `group_size` neighbours.

    weight[n, k] = scales[n, k // group_size] · value + offsets[n, k // group_size], where value is codes[n, k] - zero,
    or table[codes[n, k]] if there is a table.

    codes: uint8 [N, K], below 2 ** bits. scales: float32 [N, G]. offsets: float32 [N, G], None = zeros.
    bits: 2, 3, 4, 5, 6 or 8. zero: the code that stands for zero. table: float32 [2 ** bits].
    order: int64 [K], None = 0 … K-1; column k of `codes` belongs to input order[k] (act-order of GPTQ).
    """

    codes: Tensor
    scales: Tensor
    bits: int
    group_size: int
    zero: int = 0
    offsets: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Sizes of the matrix: [outputs, inputs]."""
        return self.codes.shape

    def problem(self) -> str | None:
        """Why the fields do not make a matrix; None if they do."""
        found = self.problem_of_form()
        for name, tensor in (("scales", self.scales), ("offsets", self.offsets)):
            if found is None and tensor is not None and not bool(tensor.sum(dtype=torch.float64).isfinite()):
                found = f"its {name} are not all finite"  # found in one pass, without a copy
        if found is None and self.bits < 8 and self.codes.numel() and int(self.codes.max()) >= 1 << self.bits:
            found = f"a code has more than {self.bits} bits"
        return found

    def problem_of_form(self) -> str | None:
        """Why sizes and tables do not make a matrix; None if they do, whatever the codes, scales and offsets are."""
        outputs, inputs = self.codes.shape
        if self.group_size < 1:
            return f"a group size of {self.group_size} is not positive"
        groups = (outputs, -(-inputs // self.group_size))
        if self.bits not in (2, 3, 4, 5, 6, 8):
            return f"{self.bits} bits are not supported"
        if self.group_size != inputs and (self.group_size % MIN_GROUP or inputs % self.group_size):
            return f"a group size of {self.group_size} does not divide {inputs} inputs in multiples of {MIN_GROUP}"
        for name, tensor in (("scales", self.scales), ("offsets", self.offsets)):
            if tensor is not None and tuple(tensor.shape) != groups:
                return f"its {name} have shape {list(tensor.shape)}, expected {list(groups)}"
        if self.table is not None and tuple(self.table.shape) != (1 << self.bits,):
            return f"its table has {len(self.table)} values for {self.bits} bits"
        if self.order is not None and not torch.equal(
            self.order.sort().values, torch.arange(inputs, device=self.order.device)
        ):
            return "its order of inputs is not a permutation"
        return None

    def bind(
        self, ops: Any, bias: Tensor | None, dtype: torch.dtype, gated: bool = False, activation_bits: int = 8
    ) -> Any:
        """The matrix ready to be multiplied, by the op `linear_quantized` of `ops` (`quire_kernels.select.Ops`)."""
        return ops.linear_quantized(self, bias, dtype, gated, activation_bits)

    def rows(self, index: Tensor | slice) -> QuantizedMatrix:
        """The matrix of some outputs: ids int64, or a slice."""
        offsets = None if self.offsets is None else self.offsets[index]
        return replace(self, codes=self.codes[index], scales=self.scales[index], offsets=offsets)

    def columns(self, first: int, last: int) -> QuantizedMatrix:
        """The matrix of the inputs first … last - 1, with smaller groups where these are not at boundaries of groups.

        Raises ValueError if no group size of at least `MIN_GROUP` has these boundaries, or if inputs are reordered.
        """
        inputs = self.shape[1]
        if (first, last) == (0, inputs):
            return self
        if self.order is not None:
            raise ValueError("its columns are in an order of their own (desc_act)")
        whole = self.group_size >= inputs
        size = last - first if whole else math.gcd(self.group_size, first, last)
        if size < MIN_GROUP and size != last - first:
            raise ValueError(f"groups of {self.group_size} inputs cannot be cut at {first} and {last}")
        groups = torch.arange(first, last, size) // self.group_size
        return replace(
            self,
            codes=self.codes[:, first:last],
            scales=self.scales[:, groups],
            offsets=None if self.offsets is None else self.offsets[:, groups],
            group_size=size,
        )

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [outputs, inputs] in `dtype`, computed in float32."""
        values = self.codes.float() - self.zero if self.table is None else self.table[self.codes.int()]
        values = values.mul_(self.scales.repeat_interleave(self.group_size, 1)[:, : values.shape[1]])
        if self.offsets is not None:
            values = values.add_(self.offsets.repeat_interleave(self.group_size, 1)[:, : values.shape[1]])
        if self.order is not None:
            values = torch.empty_like(values).index_copy_(1, self.order, values)
        return values.to(dtype)


def float8_table() -> Tensor:
    """float32 [256]: the value of each byte as float8_e4m3fn; 0 for NaN, 0x7f and 0xff, which no code may be."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num_(0.0)


def joined(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix | None:
    """One matrix with the outputs of all, in a form that represents each exactly; None if there is no such form.

    It has the most bits, the smallest group, and offsets if one of them has. Tables that differ become bytes if their
    values are integers. Orders must be equal.
    """
    if any(not _equal(matrix.table, matrices[0].table) for matrix in matrices):
        if not all(has_integer_values(matrix) for matrix in matrices):
            return None
        matrices = [matrix if matrix.table is None else _without_table(matrix) for matrix in matrices]
    first = matrices[0]
    for other in matrices[1:]:
        if other.shape[1] != first.shape[1] or not _equal(other.order, first.order):
            return None
    if first.table is not None and any(matrix.bits != first.bits for matrix in matrices):
        return None
    bits, size = max(m.bits for m in matrices), min(m.group_size for m in matrices)
    if any(matrix.group_size % size for matrix in matrices):
        return None
    zero = max(m.zero for m in matrices)
    if first.table is None and any(zero - m.zero + (1 << m.bits) > 1 << bits for m in matrices if m.zero != zero):
        zero = 0  # raising the codes to a common zero would need more bits: zeros become offsets
        matrices = [_without_zero(matrix) for matrix in matrices]
    has_offsets = any(matrix.offsets is not None for matrix in matrices)
    parts = [_in_groups(matrix, size, zero, has_offsets) for matrix in matrices]
    codes, scales = torch.cat([m.codes for m in parts]), torch.cat([m.scales for m in parts])
    offsets = torch.cat([m.offsets for m in parts if m.offsets is not None]) if has_offsets else None
    return replace(first, codes=codes, scales=scales, offsets=offsets, bits=bits, group_size=size, zero=zero)


def _without_table(matrix: QuantizedMatrix) -> QuantizedMatrix:
    """Write a matrix whose table has integers with these integers as codes of 8 bits."""
    assert matrix.table is not None
    codes = (matrix.table + 128).to(torch.uint8)[matrix.codes.int()]
    return replace(matrix, codes=codes, bits=8, zero=128, table=None)


def _without_zero(matrix: QuantizedMatrix) -> QuantizedMatrix:
    offsets = torch.zeros_like(matrix.scales) if matrix.offsets is None else matrix.offsets
    return replace(matrix, zero=0, offsets=offsets - matrix.zero * matrix.scales)


def _in_groups(matrix: QuantizedMatrix, size: int, zero: int, has_offsets: bool) -> QuantizedMatrix:
    """Write a matrix with smaller groups, another zero, and offsets if wanted."""
    times = -(-matrix.shape[1] // size) // matrix.scales.shape[1]
    scales, offsets = matrix.scales.repeat_interleave(times, 1), matrix.offsets
    if has_offsets:
        offsets = torch.zeros_like(scales) if offsets is None else offsets.repeat_interleave(times, 1)
    codes = matrix.codes if zero == matrix.zero else matrix.codes + (zero - matrix.zero)
    return replace(matrix, codes=codes, scales=scales, offsets=offsets, group_size=size, zero=zero)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def has_integer_values(matrix: QuantizedMatrix) -> bool:
    """Whether each weight is a scale times an integer of at most 8 bits (plus an offset), so that x may be int8 too."""
    table = matrix.table
    return table is None or bool((table == table.round()).all() and (table.abs() <= 127).all())


def quantize_rows(x: Tensor) -> Tensor:
    """x [rows, columns] as the op rounds it to 8 bits: groups of `X_GROUP` columns by `int8.quantize`, dequantized."""
    rows, columns = x.shape
    padded = torch.zeros(rows, -(-columns // X_GROUP) * X_GROUP, device=x.device)
    padded[:, :columns] = x
    quantized, scale = int8.quantize(padded.view(rows, -1, X_GROUP))
    return int8.dequantize(quantized, scale, torch.float32).view(rows, -1)[:, :columns]


class QuantizedBoundLinear:
    """`linear_quantized` in plain torch; the dequantized matrix is made anew for each product."""

    def __init__(
        self, matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype, activation_bits: int = 8
    ) -> None:
        self._matrix, self._bias, self._dtype = matrix, bias, dtype
        self._rounds = activation_bits == 8 and has_integer_values(matrix)

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        rows, order = x.reshape(-1, x.shape[-1]).float(), self._matrix.order
        if self._rounds:
            ordered = rows if order is None else rows[:, order]
            y = quantize_rows(ordered) @ replace(self._matrix, order=None).dequantized().T
        else:
            y = rows @ self._matrix.dequantized().T
        if self._bias is not None:
            y = y + self._bias.float()
        return (y if float32 else y.to(x.dtype)).view(*x.shape[:-1], -1)

    @property
    def element_bytes(self) -> float:
        return self._matrix.bits / 8 + 2 / self._matrix.group_size

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        return self._matrix.rows(slice(None) if rows is None else rows).dequantized(self._dtype)


def linear_quantized(
    matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype, gated: bool = False, activation_bits: int = 8
) -> QuantizedBoundLinear:
    return QuantizedBoundLinear(matrix, bias, dtype, activation_bits)
