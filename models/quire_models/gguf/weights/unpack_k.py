"""Unpacks the K-quants of ggml: blocks of 256 weights with 8 or 16 scales of few bits, and one or two of 16 bits.

The functions are `quire_models.gguf.weights.unpack.Unpack`. Where a byte has codes of several groups of 32, each group
is written as fields of 32 bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_D, _MIN = ("d", "<f2"), ("dmin", "<f2")
Q2_K = np.dtype([("scales", "u1", 16), ("qs", "V32", 2), _D, _MIN])
Q3_K = np.dtype([("hmask", "V32"), ("qs", "V32", 2), ("scales_l", "u1", 8), ("scales_h", "u1", 4), _D])
Q4_K = np.dtype([_D, _MIN, ("scales", "<u4", 3), ("qs", "V32", 4)])
Q5_K = np.dtype([_D, _MIN, ("scales", "<u4", 3), ("qh", "V32"), ("qs", "V32", 4)])
Q6_K = np.dtype([("ql", "V64", 2), ("qh", "V32", 2), ("scales", "i1", 16), _D])


def _word(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * 8, "little"))


def _words(field: Array) -> Array:
    """The bytes of a field of all blocks as words of eight bytes."""
    return np.ascontiguousarray(field).reshape(-1).view(np.uint64)


def _spread(field: Array, codes: Array, bits: int, by: int, *, add: bool) -> None:
    """Write, for each 32 bytes of a field, 8 / bits groups of 32 codes: the lowest bits of the bytes, the next, ….

    by: how far the codes are shifted up. add: set these bits of `codes`, instead of writing codes.
    """
    words, mask = _words(field), _word((1 << bits) - 1)
    count = 8 // bits
    found = np.empty(codes.size, np.uint8) if add else codes.reshape(-1)
    groups = found.view("V32").reshape(-1, count)
    for index in range(count):
        part = words >> np.uint64(index * bits)
        part &= mask
        part <<= np.uint64(by)
        groups[:, index] = part.view("V32")
    if add:
        target = codes.reshape(-1).view(np.uint64)
        target |= found.view(np.uint64)


def _halves(field: Array, codes: Array, unit: str) -> None:
    """Write, for each field of type `unit`, the low halves of its bytes, then the high halves."""
    words, mask = _words(field), _word(0x0F)
    groups = codes.reshape(-1).view(unit).reshape(-1, 2)
    groups[:, 0] = (words & mask).view(unit)
    words = words >> np.uint64(4)
    words &= mask
    groups[:, 1] = words.view(unit)


def _float(field: Array) -> Array:
    return field.astype(np.float32)[:, None]


def q2(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _spread(blocks["qs"], codes, 2, 0, add=False)
    small = blocks["scales"]
    np.multiply(_float(blocks["d"]), (small & 15).astype(np.float32), out=scales)
    np.multiply(-_float(blocks["dmin"]), (small >> 4).astype(np.float32), out=offsets)


def q3(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _spread(blocks["qs"], codes, 2, 0, add=False)
    _spread(blocks["hmask"], codes, 1, 2, add=True)
    low = (blocks["scales_l"][:, None, :] >> np.array([[0], [4]], np.uint8)).reshape(-1, 16) & 15
    high = (blocks["scales_h"][:, None, :] >> np.array([[0], [2], [4], [6]], np.uint8)).reshape(-1, 16) & 3
    np.multiply(_float(blocks["d"]), (low | high << 4).astype(np.float32) - 32, out=scales)


def _scales_of_six_bits(blocks: Array, scales: Array, offsets: Array) -> None:
    """Scales and minima of Q4_K and Q5_K: eight each, of six bits, in twelve bytes."""
    first, second, rest = (np.ascontiguousarray(blocks["scales"][:, index]) for index in range(3))
    low, high = np.uint32(0x3F3F3F3F), np.uint32(0x30303030)
    nibble, four, two = np.uint32(0x0F0F0F0F), np.uint32(4), np.uint32(2)
    small = np.empty((len(blocks), 2), np.uint32)
    for d, out, words in (
        (_float(blocks["d"]), scales, (first & low, rest & nibble | first >> two & high)),
        (-_float(blocks["dmin"]), offsets, (second & low, rest >> four & nibble | second >> two & high)),
    ):
        small[:, 0], small[:, 1] = words
        np.multiply(d, small.view(np.uint8).astype(np.float32), out=out)


def q4(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _halves(blocks["qs"], codes, "V32")
    _scales_of_six_bits(blocks, scales, offsets)


def q5(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    q4(blocks, codes, scales, offsets)
    _spread(blocks["qh"], codes, 1, 4, add=True)


def q6(blocks: Array, codes: Array, scales: Array, offsets: Array) -> None:
    _halves(blocks["ql"], codes, "V64")
    _spread(blocks["qh"], codes, 2, 4, add=True)
    np.multiply(_float(blocks["d"]), blocks["scales"].astype(np.float32), out=scales)
