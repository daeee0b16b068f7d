"""Packs matrices of few bits for C++ (`csrc/quantized/pack.hpp`)."""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref, c_int32, c_int64, c_uint8
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from quire_kernels.cpu.ggml_blocks import TYPES
from quire_kernels.cpu.library import PANEL, Library
from quire_kernels.cpu.structs import POINTER, PackedMatrix
from quire_kernels.quantized import QuantizedMatrix, float8_table, has_integer_values
from quire_kernels.quantized_rows import BlockRows, QuantizedRows
from quire_kernels.threads import for_each

LINE = 64
"""Bytes of a cache line: the columns of a prepared row of x, and its steps, are padded to it."""
STEP, HALF_STEP = 32, 16
"""Inputs whose products are summed before a scale is applied. Half as many codes of six bits fit sums of 16 bits."""
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
    _fields_ = (("codes", POINTER), ("scales", POINTER), ("offsets", POINTER), ("padding", c_int32), ("bits", c_int32))


class _BlockRows(ctypes.Structure):
    """The C++ struct `BlockRows` in `csrc/quantized/pack_blocks.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("type", c_int32),
        ("padding", c_int32),
        ("bits", c_int32),
        ("shift", c_int32),
        ("count", c_int64),
        ("rows", POINTER),
    )


_PROBLEMS = {1: "its scales are not all finite", 2: "its offsets are not all finite", 4: "a code has more than {} bits"}
"""What each bit of the C++ enum `PackProblem` means."""


@dataclass(frozen=True, eq=False)
class PackedCodes:
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


def pack(library: Library, matrix: QuantizedMatrix | QuantizedRows, halves: bool, activation_bits: int) -> PackedCodes:
    form = matrix.form() if isinstance(matrix, QuantizedRows) else matrix
    kind, zero = _kind(form, activation_bits), form.zero
    form = _with_zero(form, kind)
    bits = 8 if kind == CodeKind.BYTES else form.bits
    outputs, inputs = matrix.shape
    groups = -(-inputs // form.group_size)
    is_long = bits == 6 and kind == CodeKind.CODES and not library.isa.vnni
    step = HALF_STEP if is_long or (groups > 1 and form.group_size % STEP) else STEP
    group = -(-form.group_size // step) * step
    panels = library.functions.quire_panels(outputs, int(halves))
    values, factors = _values(form, kind), torch.empty(panels * PANEL)
    order = None if form.order is None else form.order.int().contiguous()
    struct = QuantizedStruct(
        *(group, groups, step, bits, kind, form.zero),
        *(int(form.offsets is not None), int(activation_bits == 16)),
        *(address_of(tensor) for tensor in (factors, values, order)),
    )
    panel = panel_bytes(struct)
    units = library.panels.take(panels * panel // 4)
    packed = PackedMatrix(units.data_ptr(), outputs, inputs, int(halves), None, panel)
    result = PackedCodes(packed, struct, units, (values, factors, order))
    if isinstance(matrix, QuantizedMatrix):
        _write(library, values, packed, struct, form, factors)
    elif matrix.blocks is None or not _write_blocks(library, result, matrix.blocks, form.bits, form.zero - zero):
        _write_some(library, result, matrix, panels)
    return result


def panel_bytes(struct: QuantizedStruct) -> int:
    """Size of a panel: scales, perhaps offsets, and codes of each group."""
    head = (2 if struct.has_offsets else 1) * PANEL * (4 if struct.wide else 2)
    return int(struct.groups * (head + struct.group * PANEL * struct.bits // 8))


def _write_blocks(library: Library, to: PackedCodes, blocks: BlockRows, bits: int, shift: int) -> bool:
    """Pack the blocks of a file; False if they have numbers that cannot be packed. shift: from their zero to ours."""
    values, factors, _ = to.kept
    rows = blocks.addresses.contiguous()
    padding = _padding(values[: 1 << bits])
    source = _BlockRows(TYPES.index(blocks.kind), padding, bits, shift, blocks.count, rows.data_ptr())
    problems = library.functions.quire_pack_blocks(
        *(byref(source), byref(to.packed), byref(to.struct), factors.data_ptr(), torch.get_num_threads())
    )
    blocks.release()
    return not problems


def _write_some(library: Library, to: PackedCodes, matrix: QuantizedRows, panels: int) -> None:
    """Read and pack a few panels at a time, in several threads. Panels are independent of each other."""
    (values, factors, _), kind = to.kept, CodeKind(to.struct.kind)
    structs: list[QuantizedStruct] = []

    def write(first: int) -> None:
        ids = _outputs(to.packed, first, min(at_once, panels - first))
        rows = matrix.read(ids)
        problem = rows.problem_of_form()
        if problem is not None:
            raise ValueError(f"linear_quantized: {problem}")
        struct = QuantizedStruct.from_buffer_copy(to.struct)  # C++ writes to it
        at = to.packed.units + first * to.packed.bytes
        part = PackedMatrix(at, len(ids), to.packed.inputs, to.packed.halves, None, to.packed.bytes)
        _write(library, values, part, struct, _with_zero(rows, kind), factors[first * PANEL :])
        structs.append(struct)

    at_once = max(1, CODES_AT_ONCE // max(1, PANEL * matrix.shape[1]))
    for_each(write, range(0, panels, at_once))
    if structs:
        ctypes.memmove(addressof(to.struct), addressof(structs[0]), ctypes.sizeof(QuantizedStruct))


def _outputs(packed: PackedMatrix, first: int, count: int) -> Tensor:
    """The outputs of some panels, those of the first half before those of the second."""
    if not packed.halves:
        return torch.arange(first * PANEL, min((first + count) * PANEL, packed.outputs))
    half, lanes = packed.outputs // 2, PANEL // 2
    places = torch.arange(first * lanes, min((first + count) * lanes, half))
    return torch.cat([places, places + half])


def _write(
    library: Library,
    values: Tensor,
    packed: PackedMatrix,
    struct: QuantizedStruct,
    matrix: QuantizedMatrix,
    factors: Tensor,
) -> None:
    """Pack a matrix into the panels that `packed` describes. Raises ValueError if its numbers cannot be packed."""
    codes, scales = matrix.codes.to(torch.uint8).contiguous(), matrix.scales.float().contiguous()
    offsets = None if matrix.offsets is None else matrix.offsets.float().contiguous()
    padding = _padding(values[: 1 << matrix.bits])
    source = QuantizedSource(*(address_of(tensor) for tensor in (codes, scales, offsets)), padding, matrix.bits)
    threads = torch.get_num_threads()
    problems = library.functions.quire_pack_quantized(
        *(byref(source), byref(packed), byref(struct), factors.data_ptr(), threads)
    )
    if problems:
        raise ValueError(f"linear_quantized: {_PROBLEMS[problems & -problems].format(matrix.bits)}")


def address_of(tensor: Tensor | None) -> int | None:
    """The address of a tensor's memory, for a struct."""
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
