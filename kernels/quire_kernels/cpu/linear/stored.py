"""Packed matrices as data: what a file must keep of a matrix that C++ has packed, and the matrix made of it again.

A file may have been changed by others, so everything that C++ uses as a size, an index or an end of a list is checked
before a matrix is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled, shared_ops
from quire_kernels.cpu.library import MAX_RARE_SHARE, PANEL, Library, PackedWeight, panel_units
from quire_kernels.cpu.linear.int8 import Int8Linear, Int8Weight, padded_inputs
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.linear.quantized import QuantizedLinear
from quire_kernels.cpu.linear.quantized_packing import (
    HALF_STEP,
    STEP,
    CodeKind,
    PackedCodes,
    QuantizedStruct,
    address_of,
    panel_bytes,
)
from quire_kernels.cpu.structs import PackedMatrix, PanelCodebook
from quire_kernels.ops import BoundLinear, MatrixPlace

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

RARE_BYTES, NO_POSITION = 8, (1 << 32) - 1
"""Size of a rare value of a compressed panel, and the position after the last (`csrc/gemm/packed_compressed.hpp`)."""

MAX_GROUP = 1 << 24
"""Inputs of a group of quantized weights; more than any matrix has."""

UNITS = "units"
"""The tensor with the panels."""


@dataclass(frozen=True)
class PackedData:
    """A packed matrix. kind: of `FORMS`. numbers: by name. tensors: by name, contiguous, on the CPU."""

    kind: str
    numbers: Mapping[str, int]
    tensors: Mapping[str, Tensor]


class TensorSize(NamedTuple):
    """Data type and number of elements of a tensor."""

    dtype: torch.dtype
    elements: int


def library_name() -> str | None:
    """A name that says how matrices are packed: that of the compiled library, with a digest of its sources and its
    instruction set; None without one.
    """
    try:
        return Path(compiled().functions._name).name
    except BuildError:
        return None


def stored(bound: BoundLinear) -> PackedData | None:
    """A bound matrix as data, whose tensors share its memory; None if it was not packed by C++ of this machine."""
    packed: Any = bound
    for form in FORMS.values():
        if type(packed) is form.kind and packed.library is shared_ops().library:
            found: PackedData = form.store(packed)
            return found
    return None


def expected_tensors(kind: str, numbers: Mapping[str, int], place: MatrixPlace) -> dict[str, TensorSize]:
    """The tensors that a stored matrix must have. Raises ValueError for numbers that no matrix for this place has."""
    if kind not in FORMS:
        raise ValueError(f"there is no kind {kind!r:.40} of packed matrices")
    return FORMS[kind].sizes(shared_ops().library, numbers, place)


def room_for(name: str, size: TensorSize) -> Tensor:
    """Memory for a tensor of a matrix, of which panels lie in large pages. Not for several threads at once."""
    if name == UNITS:
        return shared_ops().library.panels.take(size.elements)
    return torch.empty(size.elements, dtype=size.dtype)


def restored(matrix: PackedData, place: MatrixPlace) -> BoundLinear:
    """The bound matrix, whose memory the tensors become; they have their expected sizes. Raises ValueError."""
    made: BoundLinear = FORMS[matrix.kind].restore(shared_ops(), matrix, place)
    return made


class _Packed:
    """Panels of float32 or bfloat16; head: bytes of rare values that each panel begins with, 0 = not compressed."""

    kind = PackedLinear

    @staticmethod
    def store(bound: PackedLinear) -> PackedData:
        weight = bound.weight
        if weight.book is None:
            return PackedData("packed", {"head": 0}, {UNITS: weight.units})
        upper = torch.tensor(list(weight.book.upper), dtype=torch.uint8)
        return PackedData("packed", {"head": weight.book.head}, {UNITS: weight.units, "upper": upper})

    @staticmethod
    def sizes(library: Library, numbers: Mapping[str, int], place: MatrixPlace) -> dict[str, TensorSize]:
        head, panel = _number(numbers, "head", 0, 1 << 30), panel_units(place.shape[1], place.dtype)
        panels = library.functions.quire_panels(place.shape[0], _halves(place))
        if not head:
            return {UNITS: TensorSize(torch.int32, panels * panel)}
        if head % 64 or head * MAX_RARE_SHARE > panel * 4 or place.dtype != torch.bfloat16:
            raise ValueError("a compressed panel has an impossible size")
        return {UNITS: TensorSize(torch.int32, panels * (head + panel * 3) // 4), "upper": TensorSize(torch.uint8, 16)}

    @staticmethod
    def restore(ops: CpuOps, matrix: PackedData, place: MatrixPlace) -> PackedLinear:
        units, head, book = matrix.tensors[UNITS], matrix.numbers["head"], None
        if head:
            panel = panel_units(place.shape[1], place.dtype)
            _check_rare(units.view(torch.int64).view(-1, (head + panel * 3) // 8)[:, : head // 8], panel * 2)
            book = PanelCodebook(tuple(matrix.tensors["upper"].tolist()), head)
        packed = PackedMatrix(units.data_ptr(), *place.shape, _halves(place), None if book is None else addressof(book))
        return PackedLinear(ops, PackedWeight(packed, units, book), place.dtype, place.bias)


class _Int8:
    """Panels of bytes, and a scale for each output."""

    kind = Int8Linear

    @staticmethod
    def store(bound: Int8Linear) -> PackedData:
        return PackedData("int8", {}, {UNITS: bound.weight.units, "scales": bound.weight.scales})

    @staticmethod
    def sizes(library: Library, numbers: Mapping[str, int], place: MatrixPlace) -> dict[str, TensorSize]:
        outputs = library.functions.quire_panels(place.shape[0], _halves(place)) * PANEL
        units = outputs * padded_inputs(place.shape[1]) // 4
        return {UNITS: TensorSize(torch.int32, units), "scales": TensorSize(torch.float32, outputs)}

    @staticmethod
    def restore(ops: CpuOps, matrix: PackedData, place: MatrixPlace) -> Int8Linear:
        units = matrix.tensors[UNITS]
        packed = PackedMatrix(units.data_ptr(), *place.shape, _halves(place), None)
        return Int8Linear(ops, Int8Weight(units, matrix.tensors["scales"], packed), place.dtype, place.bias)


BITS = {
    CodeKind.CODES: (2, 3, 4, 5, 6),
    CodeKind.BYTES: (8,),
    CodeKind.BYTE_TABLE: (4,),
    CodeKind.FLOATS: (2, 3, 4, 5, 6, 8),
    CodeKind.FLOAT_TABLE: (2, 3, 4),
    CodeKind.FLOAT_LOOKUP: (5, 6, 8),
    CodeKind.FLOAT8: (8,),
}
"""Bits that codes of each kind may have."""


class _Quantized:
    """Panels of codes of few bits; the numbers are the fields of `QuantizedStruct`."""

    kind = QuantizedLinear
    NUMBERS = ("group", "groups", "step", "bits", "kind", "zero", "has_offsets", "wide")

    @classmethod
    def store(cls, bound: QuantizedLinear) -> PackedData:
        struct, (values, factors, order) = bound.weight.struct, bound.weight.kept
        table = torch.tensor(list(struct.bytes), dtype=torch.uint8)
        tensors = {UNITS: bound.weight.units, "values": values, "factors": factors, "bytes": table}
        numbers = {name: int(getattr(struct, name)) for name in cls.NUMBERS} | {"ordered": int(order is not None)}
        return PackedData("quantized", numbers, tensors if order is None else tensors | {"order": order})

    @classmethod
    def sizes(cls, library: Library, numbers: Mapping[str, int], place: MatrixPlace) -> dict[str, TensorSize]:
        struct, inputs = cls._struct(numbers), place.shape[1]
        group, groups, step, kind = struct.group, struct.groups, struct.step, struct.kind
        if step not in (STEP, HALF_STEP) or group % step or not (groups - 1) * group < inputs <= groups * group:
            raise ValueError("groups of quantized weights have an impossible size")
        if struct.bits not in BITS[CodeKind(kind)]:
            raise ValueError("codes of quantized weights have an impossible number of bits")
        panels = library.functions.quire_panels(place.shape[0], _halves(place))
        found = {
            UNITS: TensorSize(torch.int32, panels * panel_bytes(struct) // 4),
            "values": TensorSize(torch.float32, 256),
            "factors": TensorSize(torch.float32, panels * PANEL),
            "bytes": TensorSize(torch.uint8, 16),
        }
        return found | ({"order": TensorSize(torch.int32, inputs)} if _number(numbers, "ordered", 0, 1) else {})

    @classmethod
    def _struct(cls, numbers: Mapping[str, int]) -> QuantizedStruct:
        limits = {"group": MAX_GROUP, "groups": MAX_GROUP, "step": STEP, "bits": 8, "kind": max(CodeKind), "zero": 255}
        least = {"group": 1, "groups": 1, "step": 1}
        fields = (_number(numbers, name, least.get(name, 0), limits.get(name, 1)) for name in cls.NUMBERS)
        return QuantizedStruct(*fields)

    @classmethod
    def restore(cls, ops: CpuOps, matrix: PackedData, place: MatrixPlace) -> QuantizedLinear:
        struct, tensors, order = cls._struct(matrix.numbers), matrix.tensors, matrix.tensors.get("order")
        if order is not None and not bool(((order >= 0) & (order < place.shape[1])).all()):
            raise ValueError("the order of quantized weights names an input that does not exist")
        values, factors, units = tensors["values"], tensors["factors"], tensors[UNITS]
        struct.factors, struct.values, struct.order = map(address_of, (factors, values, order))
        struct.bytes[:] = tensors["bytes"].tolist()
        packed = PackedMatrix(units.data_ptr(), *place.shape, _halves(place), None, panel_bytes(struct))
        return QuantizedLinear(
            ops, PackedCodes(packed, struct, units, (values, factors, order)), place.dtype, place.bias
        )


FORMS: Mapping[str, Any] = {"packed": _Packed, "int8": _Int8, "quantized": _Quantized}
"""How each kind of matrix is stored, by the name of the kind."""


def _halves(place: MatrixPlace) -> int:
    """Whether panels join the halves of the matrix, as when it is packed."""
    return int(place.gated and place.shape[0] % 2 == 0)


def _number(numbers: Mapping[str, int], name: str, least: int, most: int) -> int:
    value = numbers.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"`{name}` must be from {least} to {most}, got {value!r:.40}")
    return value


def _check_rare(heads: Tensor, elements: int) -> None:
    """Check the lists of rare values, int64 [panels, entries]: ascending positions of elements, then NO_POSITION."""
    position = heads & NO_POSITION
    is_end = position == NO_POSITION
    listed = is_end.cumsum(1) == 0
    ascending = torch.ones_like(is_end)
    ascending[:, 1:] = position[:, 1:] > position[:, :-1]
    if not bool(is_end.any(1).all()) or bool((listed & ((position >= elements) | ~ascending)).any()):
        raise ValueError("rare values of a compressed panel are not in the panel")
