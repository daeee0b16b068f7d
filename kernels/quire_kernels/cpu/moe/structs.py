"""The structs that Python and the C++ of mixtures share."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64

from quire_kernels.cpu.structs import POINTER, PackedMatrix


class RoutingStruct(ctypes.Structure):
    """The C++ struct `RoutingRule` in `csrc/moe/route.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("top_k", c_int32),
        ("scores", c_int32),
        ("renormalize", c_int32),
        ("groups", c_int32),
        ("chosen_groups", c_int32),
        ("best", c_int32),
        ("scale", c_float),
        ("least_sum", c_float),
        ("jitter", c_float),
        ("correction", POINTER),
    )


class ExpertMatrixStruct(ctypes.Structure):
    """The C++ struct `ExpertMatrix` in `csrc/moe/expert_matrix.hpp`."""

    __slots__ = ()
    _fields_ = (("packed", PackedMatrix), ("weight", POINTER), ("bias", POINTER))


class ExpertMatricesStruct(ctypes.Structure):
    """The C++ struct `ExpertMatrices` in `csrc/moe/expert_matrix.hpp`."""

    __slots__ = ()
    _fields_ = (("of", POINTER), ("kind", c_int32), ("row_bytes", c_int64))


class MixtureStruct(ctypes.Structure):
    """The C++ struct `Mixture` in `csrc/moe/experts.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("experts", c_int64),
        ("top_k", c_int64),
        ("width", c_int64),
        ("hidden", c_int64),
        ("up", ExpertMatricesStruct),
        ("down", ExpertMatricesStruct),
        ("finish", c_int32),
        ("act", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
        ("weighs_inputs", c_int32),
        ("first", c_int64),
    )
