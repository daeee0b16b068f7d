"""The structs that Python and C++ share: fields in the order of `csrc/program.hpp` and `csrc/product.hpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_float, c_int32, c_int64, c_uint8, c_void_p
from enum import IntEnum

from torch import Tensor

POINTER = c_void_p


class Op(IntEnum):
    """What an instruction does."""

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


PRODUCTS = (Op.PRODUCT, Op.PRODUCT_INT8, Op.PRODUCT_SPLIT)

PLAIN, GATED, ACTIVE = 0, 1, 2
"""What becomes of a product's sums, `Instruction.gated`: nothing, act(first half) · second half, act of each."""


class View(ctypes.Structure):
    """Part of a buffer: token t, part p at offset + t · stride + p · width, in elements."""

    _fields_ = (
        ("buffer", c_int32),
        ("parts", c_int32),
        ("offset", c_int64),
        ("stride", c_int64),
        ("width", c_int64),
    )


class PackedMatrix(ctypes.Structure):
    """A matrix in panels; see `csrc/packed.hpp`."""

    _fields_ = (
        ("units", POINTER),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("halves", c_int32),
        ("book", POINTER),
    )


class PanelBook(ctypes.Structure):
    """What compact panels have in common; see `csrc/packed.hpp`."""

    _fields_ = (("upper", c_uint8 * 16), ("head", c_int64))


class Instruction(ctypes.Structure):
    """One operation; which fields it reads is in `csrc/program.hpp`."""

    _fields_ = (
        ("op", c_int32),
        ("act", c_int32),
        ("inputs", View * 3),
        ("out", View),
        ("weight", POINTER),
        ("bias", POINTER),
        ("packed", PackedMatrix),
        ("window", c_int64),
        ("factor", c_float),
        ("softcap", c_float),
        ("layer", c_int32),
        ("angles", c_int32),
        ("wide", c_int32),
        ("interleaved", c_int32),
        ("gated", c_int32),
        ("few", c_int32),
        ("of_sources", c_int32),
    )


class StepRows(ctypes.Structure):
    """The rows of a step, as `quire_kernels.ops.Rows` has them."""

    _fields_ = (
        ("query_starts", POINTER),
        ("contexts", POINTER),
        ("pages", POINTER),
        ("count", c_int64),
        ("pages_stride", c_int64),
        ("ends", POINTER),
    )


class Step(ctypes.Structure):
    """What a program runs on: tokens, buffers, pools."""

    _fields_ = (
        ("is_bf16", c_int32),
        ("threads", c_int32),
        ("tokens", c_int64),
        ("buffers", POINTER),
        ("slots", POINTER),
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
        ("kv_bytes", c_int32),
        ("segments", POINTER),
        ("sources", StepRows),
    )


def pointers(tensors: Iterable[Tensor]) -> ctypes.Array[c_void_p]:
    """An array of the tensors' addresses."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    return (c_void_p * len(addresses))(*addresses)
