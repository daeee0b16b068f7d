"""The search for scales of integer codes in C++ (`csrc/quantized/search.hpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.quantized import QuantizedMatrix

STORED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""Data types of scales and offsets; the numbers of the C++ enum `StoredAs`."""

MAX_GROUP = 1 << 16
"""Largest number of inputs that share a scale; a thread has sixteen such groups in float32."""


class _ScaleSearch(ctypes.Structure):
    """The C++ struct `ScaleSearch`."""

    __slots__ = ()
    _fields_ = (
        ("groups", c_int64),
        ("size", c_int64),
        ("bits", c_int32),
        ("has_offsets", c_int32),
        ("positive", c_int32),
        ("stored", c_int32),
        ("clippings", c_void_p),
        ("num_clippings", c_int64),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
    )


def search_scales(
    library: Library,
    weight: Tensor,
    group_size: int,
    bits: int,
    clippings: Sequence[float],
    *,
    has_offsets: bool = False,
    positive: bool = False,
    stored: torch.dtype = torch.float32,
) -> QuantizedMatrix:
    """A matrix [outputs, inputs] in codes of at most 8 bits, with the scales that were found.

    group_size: at most `MAX_GROUP`; it divides the inputs. clippings: starting scales, relative to the one that spans
    all values of a group. has_offsets: codes have an offset, otherwise the middle one stands for zero. positive: scales
    are; only without offsets. stored: what scales and offsets are rounded to.
    Raises ValueError if a weight is not finite.
    """
    outputs, inputs = weight.shape
    weight = weight.detach() if weight.dtype in DTYPES else weight.detach().float()
    weight = weight.contiguous()
    codes, scales = torch.empty(outputs, inputs, dtype=torch.uint8), torch.empty(outputs, inputs // group_size)
    offsets = torch.empty_like(scales) if has_offsets else None
    starts = (c_float * len(clippings))(*clippings)
    search = _ScaleSearch(
        *(scales.numel(), group_size, bits, int(has_offsets), int(positive), STORED[stored]),
        *(ctypes.addressof(starts), len(clippings)),
        *(codes.data_ptr(), scales.data_ptr(), None if offsets is None else offsets.data_ptr()),
    )
    threads = torch.get_num_threads()
    if not library.functions.quire_search_scales(DTYPES[weight.dtype], weight.data_ptr(), byref(search), threads):
        raise ValueError("a weight is not finite")
    return QuantizedMatrix(codes, scales, bits, group_size, 0 if has_offsets else 1 << (bits - 1), offsets)
