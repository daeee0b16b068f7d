"""A linear layer with a weight of few bits, packed for C++."""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref, c_int32, c_int64, c_uint8
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.proxies import Untraceable
from quire_kernels.cpu.compiled.tracer import Proxy, packed_copy
from quire_kernels.cpu.library import DTYPES, PANEL, Library
from quire_kernels.cpu.structs import POINTER, Instruction, Op, PackedMatrix
from quire_kernels.quantized import QuantizedMatrix, float8_table, has_integer_values
from quire_kernels.quantized_rows import QuantizedRows
from quire_kernels.threads import for_each

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

LINE = 64
"""Bytes of a cache line: the columns of a prepared row of x, and its steps, are padded to it."""
STEP, HALF_STEP = 32, 16
"""Inputs whose products are summed before a scale is applied. Half as many fit with codes of six bits."""
STEP_BYTES = 16
"""Size of the C++ struct `StepOfRow`."""
BYTE_ZERO = 128
ROWS_AT_ONCE = 256
"""Rows of codes that are searched at a time, in little memory."""

CODES_AT_ONCE = 1 << 20
"""Codes that are read and packed at a time, in one thread."""


class CodeKind(IntEnum):
    """What a code stands for; the numbers of the C++ enum in `csrc/quantized/layout.hpp`."""

    CODES = 0
    BYTES = 1
    BYTE_TABLE = 2
    FLOATS = 3
    FLOAT_TABLE = 4
    FLOAT_LOOKUP = 5
    FLOAT8 = 6


class QuantizedStruct(ctypes.Structure):
    """The C++ struct `Quantized` in `csrc/quantized/layout.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("group", c_int64),
        ("groups", c_int64),
        ("step", c_int64),
        ("bits", c_int32),
        ("kind", c_int32),
        ("zero", c_int32),
        ("has_offsets", c_int32),
        ("wide", c_int32),
        ("factors", POINTER),
        ("values", POINTER),
        ("order", POINTER),
        ("bytes", c_uint8 * 16),
    )


class QuantizedSource(ctypes.Structure):
    """The C++ struct of the same name in `csrc/quantized/pack.hpp`."""

    __slots__ = ()
    _fields_ = (("codes", POINTER), ("scales", POINTER), ("offsets", POINTER), ("padding", c_int32))


class QuantizedLinear:
    """`ops.LinearQuantized` in C++: x [..., inputs] -> x weightᵀ + bias, [..., outputs].

    The packed matrix is the only copy that is needed; `unpacked` returns it dequantized.
    """

    def __init__(
        self,
        ops: CpuOps,
        matrix: QuantizedMatrix | QuantizedRows,
        bias: Tensor | None,
        dtype: torch.dtype,
        gated: bool,
        activation_bits: int,
    ) -> None:
        """Raises ValueError for fields that do not make a matrix, and for other activation_bits than 8 and 16."""
        problem = matrix.problem() if isinstance(matrix, QuantizedMatrix) else None
        if activation_bits not in (8, 16):
            problem = f"activations have 8 or 16 bits, not {activation_bits}"
        if problem is not None:
            raise ValueError(f"linear_quantized: {problem}")
        self._ops, self.library, self.dtype = ops, ops.library, dtype
        self.inputs = matrix.shape[1]
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self._weight = _pack(ops.library, matrix, gated and matrix.shape[0] % 2 == 0, activation_bits)
        self.packed = self._weight.packed
        self.scratch = self._weight.row_bytes // dtype.itemsize
        """Columns of x's data type that the prepared x takes."""
        self.argmax = CpuArgmax(self, self.scratch)
        """Argmax of each row's outputs, as `quire_kernels.ops.BoundLinear` describes."""

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if requested, else in x's data type. Raises ValueError for
        another x.
        """
        op = Op.PRODUCT_QUANTIZED
        if isinstance(x, Proxy):
            if float32:
                raise Untraceable("all buffers of a program have one data type")
            return x.tracer.product(x, self, op, self.scratch, weight=addressof(self._weight.struct))  # type: ignore[return-value]
        if x.shape[-1] != self.inputs or x.dtype != self.dtype:
            expected = f"expected [..., {self.inputs}] in {self.dtype}"
            raise ValueError(f"linear_quantized: {expected}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = torch.empty(len(rows), self.packed.outputs, dtype=torch.float32 if float32 else x.dtype)
        scratch = torch.empty(len(rows), self.scratch, dtype=x.dtype)
        self._ops.run(op, [rows, scratch], out, **self._fields, wide=int(float32))
        return out.view(*x.shape[:-1], self.packed.outputs)

    @property
    def _fields(self) -> dict[str, Any]:
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return {"packed": packed_copy(self.packed), "weight": addressof(self._weight.struct), "bias": bias}

    @property
    def element_bytes(self) -> float:
        return self._weight.units.numel() * 4 / (self.packed.outputs * self.inputs)

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it, without x, scratch memory and the output."""
        return Instruction(op=Op.PRODUCT_QUANTIZED, **self._fields)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        out = torch.empty(len(ids), self.inputs, dtype=self.dtype)
        self.library.functions.quire_unpack_quantized(
            *(DTYPES[self.dtype], byref(self.packed), byref(self._weight.struct), ids.data_ptr(), len(ids)),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out


@dataclass(frozen=True, eq=False)
class _PackedCodes:
    """A packed matrix: its description in two structs, and the memory that they point to."""

    packed: PackedMatrix
    struct: QuantizedStruct
    units: Tensor
    kept: tuple[Tensor, Tensor, Tensor | None]

    @property
    def row_bytes(self) -> int:
        """Memory of a prepared row of x: its columns, and `StepOfRow` for each step."""
        steps = self.struct.groups * (self.struct.group // self.struct.step)
        size = 4 if self.struct.kind >= CodeKind.FLOATS else 1
        columns = -(-steps * self.struct.step // STEP) * STEP * size
        return (-(-columns // LINE) + -(-steps * STEP_BYTES // LINE)) * LINE


def _pack(
    library: Library, matrix: QuantizedMatrix | QuantizedRows, halves: bool, activation_bits: int
) -> _PackedCodes:
    form = matrix.form() if isinstance(matrix, QuantizedRows) else matrix
    kind = _kind(form, activation_bits)
    form = _with_zero(form, kind)
    bits = 8 if kind == CodeKind.BYTES else form.bits
    outputs, inputs = matrix.shape
    groups = -(-inputs // form.group_size)
    step = HALF_STEP if (groups > 1 and form.group_size % STEP) or bits == 6 else STEP
    group = -(-form.group_size // step) * step
    panels = library.functions.quire_panels(outputs, int(halves))
    values, factors = _values(form, kind), torch.empty(panels * PANEL)
    order = None if form.order is None else form.order.int().contiguous()
    struct = QuantizedStruct(
        *(group, groups, step, bits, kind, form.zero),
        *(int(form.offsets is not None), int(activation_bits == 16)),
        *(_address(tensor) for tensor in (factors, values, order)),
    )
    head = (1 if form.offsets is None else 2) * PANEL * (4 if struct.wide else 2)
    panel = struct.groups * (head + group * PANEL * bits // 8)
    units = library.panels.take(panels * panel // 4)
    packed = PackedMatrix(units.data_ptr(), outputs, inputs, int(halves), None, panel)
    result = _PackedCodes(packed, struct, units, (values, factors, order))
    if isinstance(matrix, QuantizedRows):
        _write_some(library, result, matrix, panels)
    else:
        _write(library, values, packed, struct, form, factors)
    return result


def _write_some(library: Library, to: _PackedCodes, matrix: QuantizedRows, panels: int) -> None:
    """Read and pack a few panels at a time, in several threads. Panels are independent of each other."""
    (values, factors, _), kind = to.kept, CodeKind(to.struct.kind)
    structs: list[QuantizedStruct] = []

    def write(first: int) -> None:
        ids = _outputs(to.packed, first, min(at_once, panels - first))
        rows = matrix.read(ids)
        problem = rows.problem()
        if problem is not None:
            raise ValueError(f"linear_quantized: {problem}")
        struct = QuantizedStruct.from_buffer_copy(to.struct)  # C++ writes to it
        at = to.packed.units + first * to.packed.bytes
        part = PackedMatrix(at, len(ids), to.packed.inputs, 0, None, to.packed.bytes)
        _write(library, values, part, struct, _with_zero(rows, kind), factors[first * PANEL :])
        structs.append(struct)

    at_once = max(1, CODES_AT_ONCE // max(1, PANEL * matrix.shape[1]))
    for_each(write, range(0, panels, at_once))
    if structs:
        ctypes.memmove(addressof(to.struct), addressof(structs[0]), ctypes.sizeof(QuantizedStruct))


def _outputs(packed: PackedMatrix, first: int, count: int) -> Tensor:
    """The outputs in the lanes of some panels; the last panel is completed with an output that is not used."""
    if not packed.halves:
        return torch.arange(first * PANEL, min((first + count) * PANEL, packed.outputs))
    half, lanes = packed.outputs // 2, PANEL // 2
    places = torch.arange(first * lanes, (first + count) * lanes).clamp_(max=half - 1).view(-1, lanes)
    return torch.cat([places, places + half], 1).flatten()


def _write(
    library: Library,
    values: Tensor,
    packed: PackedMatrix,
    struct: QuantizedStruct,
    matrix: QuantizedMatrix,
    factors: Tensor,
) -> None:
    """Pack a matrix into the panels that `packed` describes."""
    codes, scales = matrix.codes.to(torch.uint8).contiguous(), matrix.scales.float().contiguous()
    offsets = None if matrix.offsets is None else matrix.offsets.float().contiguous()
    padding = _padding(values[: 1 << matrix.bits])
    source = QuantizedSource(*(_address(tensor) for tensor in (codes, scales, offsets)), padding)
    threads = torch.get_num_threads()
    library.functions.quire_pack_quantized(byref(source), byref(packed), byref(struct), factors.data_ptr(), threads)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _kind(matrix: QuantizedMatrix, activation_bits: int) -> CodeKind:
    table = matrix.table
    if activation_bits == 8 and has_integer_values(matrix):
        if matrix.bits == 4 and table is not None:
            return CodeKind.BYTE_TABLE
        return CodeKind.CODES if matrix.bits < 8 and table is None else CodeKind.BYTES
    if table is None:
        return CodeKind.FLOATS
    if matrix.bits <= 4:
        return CodeKind.FLOAT_TABLE
    return CodeKind.FLOAT8 if matrix.bits == 8 and _is_float8(matrix) else CodeKind.FLOAT_LOOKUP


def _is_float8(matrix: QuantizedMatrix) -> bool:
    """Whether the values are float8 (e4m3) and none is NaN, which C++ would not decode."""
    equal = matrix.table is not None and torch.equal(matrix.table.nan_to_num(0.0), float8_table())
    return equal and not any(bool((part.bitwise_and(127) == 127).any()) for part in matrix.codes.split(ROWS_AT_ONCE))


def _with_zero(matrix: QuantizedMatrix, kind: CodeKind) -> QuantizedMatrix:
    """Write a matrix with a zero for which exact sums fit in C++; the difference becomes offsets."""
    if matrix.table is not None or kind not in (CodeKind.CODES, CodeKind.BYTES):
        return matrix
    middle = BYTE_ZERO if kind == CodeKind.BYTES else 1 << matrix.bits - 1
    any_fits = kind == CodeKind.CODES and matrix.bits <= 4
    fits = 0 <= matrix.zero < 1 << matrix.bits if any_fits else matrix.zero == middle
    if fits:
        return matrix
    offsets = (middle - matrix.zero) * matrix.scales
    return replace(matrix, zero=middle, offsets=offsets if matrix.offsets is None else offsets + matrix.offsets)


def _values(matrix: QuantizedMatrix, kind: CodeKind) -> Tensor:
    """float32 [256]: the value of each code. float8 is divided by 256, as C++ decodes it."""
    values = torch.zeros(256)
    table = torch.arange(1 << matrix.bits).float() - matrix.zero if matrix.table is None else matrix.table
    values[: len(table)] = table / 256 if kind == CodeKind.FLOAT8 else table
    return values


def _padding(values: Tensor) -> int:
    """Choose the code of inputs that are added: one whose value is finite."""
    return int(values.abs().nan_to_num(torch.inf).argmin())
