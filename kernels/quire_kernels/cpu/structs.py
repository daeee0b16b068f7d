"""The structs that Python and C++ share, with the fields in the order of `csrc/program/instruction.hpp`
and `csrc/gemm/gemm.hpp`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_float, c_int32, c_int64, c_uint8, c_void_p
from enum import IntEnum

import torch
from torch import Tensor

POINTER = c_void_p


class Op(IntEnum):
    """Operation of an instruction; the numbers of the C++ enum `Op`."""

    RMS_NORM = 0
    ADD_RMS_NORM = 1
    LAYER_NORM = 2
    PRODUCT = 3
    ROTARY_WRITE = 4
    ATTENTION = 5
    GATED_ACT = 6
    ACT = 7
    ADD = 8
    SCALE = 9
    PRODUCT_INT8 = 10
    SELECT = 11
    LOW_RANK = 12
    ARGMAX = 13
    ROW_ATTENTION = 14
    ROTARY = 15
    PRODUCT_SPLIT = 16
    PRODUCT_QUANTIZED = 17
    MULTIPLY = 18
    GATED_RMS_NORM = 19
    CAUSAL_CONV = 20
    GATED_DELTA = 21
    SSD_SCAN = 22
    SELECTIVE_SCAN = 23
    ROUTE = 24
    MOE = 25
    JOIN_PARTS = 26
    PRODUCT_HEADS = 27
    CLAMP = 28
    ALL_REDUCE = 29
    SHRINK = 30


PRODUCTS = (Op.PRODUCT, Op.PRODUCT_INT8, Op.PRODUCT_SPLIT, Op.PRODUCT_QUANTIZED)

PLAIN, GATED, ACTIVE, CLAMPED = 0, 1, 2, 3
"""What is applied to a product's sums (`Instruction.gated`): nothing; act(first half) · second half; act; the
activation `quire_kernels.moe.ClampedSwiglu`.
"""

ALL, SELECTED, EARLY, EARLY_END = 0, 1, 2, 3
"""Which tokens an instruction works on: the C++ enum `Selected` in `csrc/program/instruction.hpp`."""


class TensorView(ctypes.Structure):
    """Part of a buffer: token t, part p starts at offset + t · stride + p · width, in elements."""

    __slots__ = ()
    _fields_ = (
        ("buffer", c_int32),
        ("parts", c_int32),
        ("offset", c_int64),
        ("stride", c_int64),
        ("width", c_int64),
    )


class PackedMatrix(ctypes.Structure):
    """A matrix in panels: the C++ struct `Packed` in `csrc/gemm/packed.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("units", POINTER),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("halves", c_int32),
        ("book", POINTER),
        ("bytes", c_int64),
    )


def packed_copy(packed: PackedMatrix) -> PackedMatrix:
    """A copy of the matrix description, for an instruction."""
    return PackedMatrix.from_buffer_copy(packed)


class PanelCodebook(ctypes.Structure):
    """Data shared by all compressed panels of a matrix: the C++ struct of the same name in `csrc/gemm/packed.hpp`."""

    __slots__ = ()
    _fields_ = (("upper", c_uint8 * 16), ("head", c_int64))


class Instruction(ctypes.Structure):
    """One operation; `csrc/program/program.hpp` says which fields it reads."""

    __slots__ = ()
    _fields_ = (
        ("op", c_int32),
        ("act", c_int32),
        ("inputs", TensorView * 3),
        ("out", TensorView),
        ("weight", POINTER),
        ("bias", POINTER),
        ("stripes", POINTER),
        ("packed", PackedMatrix),
        ("window", c_int64),
        ("chunk", c_int64),
        ("reach", c_int64),
        ("factor", c_float),
        ("softcap", c_float),
        ("layer", c_int32),
        ("angles", c_int32),
        ("wide", c_int32),
        ("interleaved", c_int32),
        ("gated", c_int32),
        ("selected", c_int32),
        ("of_encoder", c_int32),
        ("group", c_int32),
        ("before", c_int32),
        ("shrinks", c_int32),
    )


class ScanParams(ctypes.Structure):
    """Sizes and weights of a scan: the C++ struct of the same name in `csrc/state/scan_inputs.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("rate", POINTER),
        ("bias", POINTER),
        ("skip", POINTER),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("factor", c_float),
        ("low", c_float),
        ("high", c_float),
        ("by_channel", c_int32),
    )


class StepRows(ctypes.Structure):
    """The rows of a step: pointers to the tensors of `quire_kernels.ops.AttentionMetadata`."""

    __slots__ = ()
    _fields_ = (
        ("query_starts", POINTER),
        ("contexts", POINTER),
        ("pages", POINTER),
        ("count", c_int64),
        ("pages_stride", c_int64),
        ("visible_ends", POINTER),
    )


class StepStruct(ctypes.Structure):
    """The inputs of a program: tokens, buffers, KV cache."""

    __slots__ = ()
    _fields_ = (
        ("is_bf16", c_int32),
        ("threads", c_int32),
        ("tokens", c_int64),
        ("buffers", POINTER),
        ("slot_mapping", POINTER),
        ("rows", StepRows),
        ("k_pools", POINTER),
        ("v_pools", POINTER),
        ("page_size", c_int64),
        ("cos", POINTER),
        ("sin", POINTER),
        ("pairs", POINTER),
        ("angle_rows", POINTER),
        ("selected", POINTER),
        ("num_selected", c_int64),
        ("seconds", POINTER),
        ("kv_bits", c_int32),
        ("segments", POINTER),
        ("cross_rows", StepRows),
        ("state_slots", POINTER),
        ("states", POINTER),
        ("exact", c_int32),
    )


class GenerationStruct(ctypes.Structure):
    """Greedy generation with a program: the C++ struct `Generation` in `csrc/program/generate.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("packed", POINTER),
        ("table", POINTER),
        ("width", c_int64),
        ("scale", c_float),
        ("search", POINTER),
        ("search_program", POINTER),
        ("search_count", c_int64),
        ("found", POINTER),
        ("length", c_int64),
        ("slots", POINTER),
        ("tokens", POINTER),
        ("positions", POINTER),
        ("contexts", POINTER),
    )


def pointers(tensors: Iterable[Tensor]) -> ctypes.Array[c_void_p]:
    """An array of the tensors' addresses."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    return (c_void_p * len(addresses))(*addresses)


def view_of(x: Tensor, buffer: int) -> TensorView:
    """x [tokens, width] or [tokens, parts, width] with contiguous parts."""
    parts = x.shape[1] if x.dim() == 3 else 1
    return TensorView(buffer, parts, 0, x.stride(0), x.shape[-1])


def as_rows(x: Tensor) -> Tensor:
    """x [..., width] as [tokens, parts, width] or [tokens, width], without a copy if possible."""
    if x.dim() == 3:
        return as_heads(x)
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def as_vector(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A norm's weight, contiguous, in the activations' data type or float32."""
    return (weight if weight.dtype in (dtype, torch.float32) else weight.float()).contiguous()


def as_heads(x: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] with contiguous heads; copied only if they are not."""
    return x if x.stride(-1) == 1 and (x.stride(1) == x.shape[2] or x.shape[1] < 2) else x.contiguous()
