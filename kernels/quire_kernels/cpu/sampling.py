"""The sampling ops in C++: `mask_logits`, `argmax`, `sample` and `logprobs`, for float32 logits."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.cpu.library import Library
from quire_kernels.sampling import Floats, Integers


class _Logits(ctypes.Structure):
    """The C++ struct `Logits` in `csrc/sampling/sampling.hpp`."""

    __slots__ = ()
    _fields_ = (("base", c_void_p), ("rows", c_int64), ("vocab", c_int64), ("stride", c_int64))


class _BitMasks(ctypes.Structure):
    """The C++ struct `BitMasks` in `csrc/sampling/mask_logits.hpp`."""

    __slots__ = ()
    _fields_ = (("words", c_void_p), ("of_rows", c_void_p), ("count", c_int64))


class _SampleSettings(ctypes.Structure):
    """The C++ struct `Settings` in `csrc/sampling/sample.hpp`."""

    __slots__ = ()
    _fields_ = tuple((name, c_void_p) for name in ("temperature", "uniform", "top_k", "top_p", "min_p"))


class _Found(ctypes.Structure):
    """The C++ struct `Found` in `csrc/sampling/logprobs.hpp`."""

    __slots__ = ()
    _fields_ = (*((name, c_void_p) for name in ("own", "rank", "ids", "values")), ("top", c_int64))


WORTH_THREADS = 1 << 18
"""Fewer logits than this are searched faster by one thread than a second thread would start."""


class CpuSampling:
    """The sampling ops of one compiled library."""

    def __init__(self, library: Library) -> None:
        self._functions = library.functions

    def mask_logits(self, logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
        """Raises ValueError for masks of the wrong size, IndexError for rows out of range."""
        logits, masks, rows = _readable(logits), masks.contiguous(), rows.contiguous()
        if masks.shape != (len(rows), -(-logits.shape[1] // 32)) or masks.dtype != torch.int32:
            raise ValueError(f"mask_logits: masks {list(masks.shape)} of {masks.dtype} for logits {list(logits.shape)}")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
            raise IndexError(f"mask_logits: rows must be from 0 to {len(logits) - 1}, got {rows.tolist()}")
        bits = _BitMasks(masks.data_ptr(), rows.data_ptr(), len(rows))
        self._functions.quire_mask_logits(byref(_described(logits)), byref(bits), torch.get_num_threads())
        return logits

    def argmax(self, logits: Tensor) -> Tensor:
        logits, out = _readable(logits), torch.empty(len(logits), dtype=torch.int64)
        threads = torch.get_num_threads() if logits.numel() > WORTH_THREADS else 1
        self._functions.quire_argmax(byref(_described(logits)), out.data_ptr(), threads)
        return out

    def sample(
        self, logits: Tensor, temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats
    ) -> Tensor:
        logits, out = _readable(logits), torch.empty(len(logits), dtype=torch.int64)
        arrays: list[np.ndarray[Any, Any]] = [
            np.ascontiguousarray(temperature, np.float64),
            np.ascontiguousarray(uniform, np.float64),
            np.ascontiguousarray(top_k, np.int64),
            np.ascontiguousarray(top_p, np.float64),
            np.ascontiguousarray(min_p, np.float64),
        ]
        if any(array.shape != (len(logits),) for array in arrays):
            raise ValueError(f"sample: {len(logits)} rows, but settings of shapes {[array.shape for array in arrays]}")
        settings = _SampleSettings(*(array.ctypes.data for array in arrays))
        self._functions.quire_sample(
            byref(_described(logits)), byref(settings), out.data_ptr(), torch.get_num_threads()
        )
        return out

    def logprobs(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Raises IndexError for a token outside the vocabulary."""
        logits, (rows, vocab), tokens = _readable(logits), logits.shape, tokens.contiguous()
        if rows and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise IndexError(f"logprobs: tokens must be from 0 to {vocab - 1}, got {tokens.tolist()}")
        top = min(top, vocab)
        own, values = torch.empty(rows), torch.empty(rows, top)
        rank, ids = torch.empty(rows, dtype=torch.int64), torch.empty(rows, top, dtype=torch.int64)
        found = _Found(own.data_ptr(), rank.data_ptr(), ids.data_ptr(), values.data_ptr(), top)
        self._functions.quire_logprobs(
            byref(_described(logits)), tokens.data_ptr(), byref(found), torch.get_num_threads()
        )
        return own, rank, ids, values


def _readable(logits: Tensor) -> Tensor:
    """logits [rows, vocab] with contiguous rows; copied only if they are not."""
    return logits if logits.stride(-1) == 1 or logits.shape[-1] == 1 else logits.contiguous()


def _described(logits: Tensor) -> _Logits:
    return _Logits(logits.data_ptr(), *logits.shape, logits.stride(0))
