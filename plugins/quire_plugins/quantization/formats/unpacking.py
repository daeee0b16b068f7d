"""Unpacks codes of 2 to 8 bits from words, into a byte for each code."""

from __future__ import annotations

import torch
from torch import Tensor

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each half byte of a word, lowest first, in AWQ's layout gemm (AutoAWQ, `modules/linear/gemm.py`)."""


def words_for(count: int, bits: int) -> int:
    """The 32-bit words that `count` codes fill."""
    return -(-count * bits // 32)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """words int32 [rows, words_for(count)] -> codes uint8 [rows, count]; code i has the bits i · bits … of its row,
    lowest bits first.
    """
    stored = _as_bytes(words)
    if bits == 8:
        return stored[:, :count]
    if bits in (2, 4):
        return _equal_parts(stored, bits)[:, :count]
    return _across_bytes(stored, bits)[:, :count]


def unpack_high_first(stored: Tensor) -> Tensor:
    """stored uint8 [bytes] -> codes uint8 [2 · bytes], of four bits; the high half of a byte is first."""
    codes = torch.empty(len(stored), 2, dtype=torch.uint8)
    torch.bitwise_right_shift(stored, 4, out=codes[:, 0])
    torch.bitwise_and(stored, 15, out=codes[:, 1])
    return codes.view(-1)


def unpack_low_first(stored: Tensor) -> Tensor:
    """stored uint8 [rows, bytes] -> codes uint8 [rows, 2 · bytes], of four bits; the low half of a byte is first."""
    return _equal_parts(stored, 4)


def unpack_awq(words: Tensor) -> Tensor:
    """words int32 [rows, columns / 8] -> codes uint8 [columns, rows] of four bits, in the order of `AWQ_COLUMNS`."""
    stored = _as_bytes(words.T).view(words.shape[1], words.shape[0], 4)
    codes = torch.empty(words.shape[1], 8, words.shape[0], dtype=torch.uint8)
    for part, column in enumerate(AWQ_COLUMNS):
        halves = stored[:, :, part // 2]
        if part % 2:
            torch.bitwise_right_shift(halves, 4, out=codes[:, column])
        else:
            torch.bitwise_and(halves, 15, out=codes[:, column])
    return codes.view(-1, words.shape[0])


def _as_bytes(words: Tensor) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, 4 · words], the lowest byte of a word first."""
    return words.contiguous().view(-1).view(torch.uint8).view(len(words), -1)


def _equal_parts(stored: Tensor, bits: int) -> Tensor:
    parts = 8 // bits
    codes = torch.empty(*stored.shape, parts, dtype=torch.uint8)
    for part in range(parts):
        torch.bitwise_right_shift(stored, part * bits, out=codes[..., part])
    if parts > 1:
        codes.bitwise_and_((1 << bits) - 1)
    return codes.view(len(stored), -1)


def _across_bytes(stored: Tensor, bits: int) -> Tensor:
    """Eight codes fill `bits` bytes."""
    rows, size = stored.shape
    runs = -(-size // bits)
    padded = torch.zeros(rows, runs * bits, dtype=torch.uint8)
    padded[:, :size] = stored
    padded = padded.view(rows, runs, bits)
    codes = torch.empty(rows, runs, 8, dtype=torch.uint8)
    for code in range(8):
        byte, shift = divmod(code * bits, 8)
        torch.bitwise_right_shift(padded[:, :, byte], shift, out=codes[:, :, code])
        if shift + bits > 8:
            codes[:, :, code] |= padded[:, :, byte + 1] << (8 - shift)
    return codes.bitwise_and_((1 << bits) - 1).view(rows, -1)
