"""A matrix of few bits as the kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix, float8_table

WORD_BITS = 32
MAX_RUN = 8
"""Neighbouring columns in the same bits of neighbouring words, at most: 16 bytes of inputs in 16 bits."""

WHOLE_ROW = 1 << 24
"""Words of the only group of a row."""

INTEGER, FLOAT8, FLOAT4, TABLE = range(4)
"""What a code stands for: itself less a zero; E4M3; twice E2M1; an entry of a table."""


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A `QuantizedMatrix` [N, K] on a device, with 4 or 8 bits a code.

    Columns are in blocks of `run` times the codes of a word; bits `bits * i` … of word w of block b are the code of
    column (codes * b + i) * run + w, so that neighbouring words need neighbouring inputs. A block is in one group.
    words: int32 [N, row_words]. scales, offsets: [N, G] in the smallest data type that holds them exactly.
    group_words: words of a group. kind: of INTEGER … TABLE. table: float32, or any tensor without one.
    """

    shape: tuple[int, int]
    words: Tensor
    scales: Tensor
    offsets: Tensor | None
    table: Tensor
    order: Tensor | None
    bits: int
    run: int
    group_words: int
    kind: int
    zero: int

    @classmethod
    def from_matrix(cls, matrix: QuantizedMatrix, device: torch.device) -> DeviceMatrix:
        outputs, inputs = matrix.shape
        bits = 4 if matrix.bits <= 4 else 8
        codes = WORD_BITS // bits
        whole = matrix.scales.shape[1] == 1
        run = MAX_RUN
        while not whole and matrix.group_size % (codes * run):
            run //= 2
        words = _packed(matrix.codes.to(device), bits, run)
        table = matrix.scales if matrix.table is None else matrix.table.to(torch.float32)
        return cls(
            shape=(outputs, inputs),
            words=words,
            scales=_exact(matrix.scales).to(device).contiguous(),
            offsets=None if matrix.offsets is None else _exact(matrix.offsets).to(device).contiguous(),
            table=table.to(device).contiguous(),
            order=None if matrix.order is None else matrix.order.to(device),
            bits=bits,
            run=run,
            group_words=WHOLE_ROW if whole else matrix.group_size // codes,
            kind=_kind(matrix),
            zero=matrix.zero,
        )

    @property
    def element_bytes(self) -> float:
        tensors = (self.words, self.scales, *(() if self.offsets is None else (self.offsets,)))
        return sum(each.numel() * each.element_size() for each in tensors) / max(1, self.shape[0] * self.shape[1])


def _kind(matrix: QuantizedMatrix) -> int:
    table = matrix.table
    if table is None:
        return INTEGER
    if matrix.bits == 8 and torch.equal(table.cpu(), float8_table()):
        return FLOAT8
    positive = torch.tensor((0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0))
    if matrix.bits == 4 and torch.equal(table.cpu().float(), torch.cat((positive, -positive))):
        return FLOAT4
    return TABLE


def _packed(codes: Tensor, bits: int, run: int) -> Tensor:
    """uint8 [N, K] -> int32 [N, words]; columns that fill the last block up have code 0."""
    outputs, inputs = codes.shape
    per_word = WORD_BITS // bits
    missing = -inputs % (per_word * run)
    if missing:
        codes = torch.nn.functional.pad(codes, (0, missing))
    of_words = codes.view(outputs, -1, per_word, run).transpose(2, 3)
    if bits == 4:
        of_words = of_words[..., 0::2] | of_words[..., 1::2] << 4
    return of_words.contiguous().view(torch.int32).flatten(1)


def _exact(values: Tensor) -> Tensor:
    """Numbers in 16 bits, if one of the types holds them all."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).float(), values.float()):
            return values.to(dtype)
    return values.float()
