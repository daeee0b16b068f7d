"""Turns the blocks of a quantized tensor into a `QuantizedMatrix`: types with one scale for 32 weights, and the driver.

Layouts are those of ggml (ggml/src/ggml-common.h and ggml-quants.c of llama.cpp). A layout is a structured numpy type,
whose fields are views of the mapped file. Every weight gets one byte. CPUs do it in C++ where they can; numpy works in
chunks that stay in the processor's cache, on words of eight bytes, or by copying fields of 16 or more bytes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from quire_kernels.cpu.ggml_blocks import compiled_unpacking, unpack_blocks
from quire_kernels.quantized import QuantizedMatrix
from quire_models.gguf.weights import unpack_k

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
CHUNK = 1 << 20
"""Weights that are unpacked at a time."""

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Values of the 4-bit codes of IQ4_NL and IQ4_XS."""
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of the codes of MXFP4 (E2M1), so that they are integers; scales are halved instead."""

_WORDS = {n: np.uint64(int.from_bytes(bytes([n]) * 8, "little")) for n in (0x0F, 0x80)}
_FOUR = np.uint64(4)
_BIT_BYTES = np.array(
    [int.from_bytes(bytes(16 * (byte >> bit & 1) for bit in range(8)), "little") for byte in range(256)], np.uint64
)
"""For each byte, eight bytes that are 16 where the byte has a bit, else 0."""

Unpack: TypeAlias = "Callable[[Array, Array, Array, Array], None]"
"""A function (blocks, codes, scales, offsets): fills uint8 [blocks, elements] and float32 [blocks, groups], twice."""


@dataclass(frozen=True)
class BlockLayout:
    """How a type is stored, and what a `QuantizedMatrix` of it has. dtype: of a block. group_size: inputs per scale."""

    dtype: np.dtype[Any]
    unpack: Unpack
    bits: int
    group_size: int = 32
    zero: int = 0
    has_offsets: bool = False
    table: tuple[int, ...] | None = None


def unpacked(blocks: Array, kind: str, inputs: int) -> QuantizedMatrix:
    """The matrix [outputs, inputs] whose rows have the blocks `blocks`, uint8 [outputs, bytes], contiguous.

    kind: name of the type. Raises ValueError, naming it, if a scale or an offset is not finite.
    """
    layout, outputs = LAYOUTS[kind], len(blocks)
    groups, count = inputs // layout.group_size, blocks.size // layout.dtype.itemsize
    matrix = QuantizedMatrix(
        codes=torch.empty(outputs, inputs, dtype=torch.uint8),
        scales=torch.empty(outputs, groups),
        bits=layout.bits,
        group_size=layout.group_size,
        zero=layout.zero,
        offsets=torch.empty(outputs, groups) if layout.has_offsets else None,
        table=_table(layout.table),
    )
    library = compiled_unpacking()
    if library is None:
        problem = unpack_in_numpy(blocks, layout, matrix)
    else:
        problem = unpack_blocks(library, kind, blocks.ctypes.data, count, matrix.codes, matrix.scales, matrix.offsets)
    if problem is not None:
        raise ValueError(f"{problem} that is not finite")
    return matrix


def unpack_in_numpy(blocks: Array, layout: BlockLayout, to: QuantizedMatrix) -> str | None:
    """`quire_kernels.cpu.ggml_blocks.unpack_blocks` in numpy: the reference."""
    stored = blocks.reshape(-1).view(layout.dtype)
    if not len(stored):
        return None
    codes = to.codes.numpy().reshape(len(stored), -1)
    scales = to.scales.numpy().reshape(len(stored), -1)
    offsets = scales[:0] if to.offsets is None else to.offsets.numpy().reshape(len(stored), -1)
    step = max(1, CHUNK // codes.shape[1])
    for start in range(0, len(stored), step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):
            layout.unpack(stored[part], codes[part], scales[part], offsets[part])
    for what, values in (("a scale", scales), ("an offset", offsets)):
        if not np.isfinite(values).all():
            return what
    return None


def _table(values: tuple[int, ...] | None) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32)


def nibbles(packed: Array, codes: Array, unit: str) -> None:
    """Fill codes (uint8): of each field of type `unit`, first the low halves of its bytes, then the high halves."""
    words = np.ascontiguousarray(packed).view(np.uint64)
    halves = codes.reshape(-1).view(unit).reshape(-1, 2)
    halves[:, 0] = (words & _WORDS[0x0F]).reshape(-1).view(unit)
    words = words >> _FOUR
    words &= _WORDS[0x0F]
    halves[:, 1] = words.reshape(-1).view(unit)


def _q4(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    nibbles(blocks["qs"], codes, "V16")
    scales[:, 0] = blocks["d"]


def _q4_1(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _q4(blocks, codes, scales, offsets)
    offsets[:, 0] = blocks["m"]


def _q5(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _q4(blocks, codes, scales, offsets)
    words = codes.reshape(-1).view(np.uint64).reshape(-1, 4)
    bits = np.ascontiguousarray(blocks["qh"]).view(np.uint8).astype(np.intp)
    words |= np.take(_BIT_BYTES, bits.reshape(-1, 4), mode="clip")  # no index is out of range


def _q5_1(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _q5(blocks, codes, scales, offsets)
    offsets[:, 0] = blocks["m"]


def _q8_0(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    codes.reshape(-1).view("V32")[:] = blocks["qs"]
    words = codes.reshape(-1).view(np.uint64)
    words ^= _WORDS[0x80]  # from two's complement to codes with the zero 128
    scales[:, 0] = blocks["d"]


def _mxfp4(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    nibbles(blocks["qs"], codes, "V16")
    np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128, out=scales[:, 0])  # half of 2 ** (e - 127)


def _iq4_xs(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    nibbles(blocks["qs"], codes, "V16")
    low = (blocks["scales_l"][:, :, None] >> np.array([0, 4], np.uint8)).reshape(-1, 8) & 15
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    np.multiply(blocks["d"].astype(np.float32)[:, None], (low | high << 4).astype(np.float32) - 32, out=scales)


def _dtype(*fields: Any) -> np.dtype[Any]:
    return np.dtype(list(fields))


_D, _M, _QS = ("d", "<f2"), ("m", "<f2"), ("qs", "V16")
LAYOUTS = {
    "Q4_0": BlockLayout(_dtype(_D, _QS), _q4, 4, zero=8),
    "Q4_1": BlockLayout(_dtype(_D, _M, _QS), _q4_1, 4, has_offsets=True),
    "Q5_0": BlockLayout(_dtype(_D, ("qh", "V4"), _QS), _q5, 5, zero=16),
    "Q5_1": BlockLayout(_dtype(_D, _M, ("qh", "V4"), _QS), _q5_1, 5, has_offsets=True),
    "Q8_0": BlockLayout(_dtype(_D, ("qs", "V32")), _q8_0, 8, zero=128),
    "IQ4_NL": BlockLayout(_dtype(_D, _QS), _q4, 4, table=IQ4_VALUES),
    "MXFP4": BlockLayout(_dtype(("e", "u1"), _QS), _mxfp4, 4, table=MXFP4_VALUES),
    "IQ4_XS": BlockLayout(
        _dtype(_D, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "V16", 8)), _iq4_xs, 4, table=IQ4_VALUES
    ),
    "Q2_K": BlockLayout(unpack_k.Q2_K, unpack_k.q2, 2, group_size=16, has_offsets=True),
    "Q3_K": BlockLayout(unpack_k.Q3_K, unpack_k.q3, 3, group_size=16, zero=4),
    "Q4_K": BlockLayout(unpack_k.Q4_K, unpack_k.q4, 4, has_offsets=True),
    "Q5_K": BlockLayout(unpack_k.Q5_K, unpack_k.q5, 5, has_offsets=True),
    "Q6_K": BlockLayout(unpack_k.Q6_K, unpack_k.q6, 6, group_size=16, zero=32),
}
"""Layouts by the names of types (`quire_models.gguf.file.types`)."""
