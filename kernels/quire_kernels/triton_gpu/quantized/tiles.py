"""The kernel of products of tiles of rows with matrices of few bits."""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.results import has_arrived_last
from quire_kernels.triton_gpu.quantized.kernels import decoded, of_words

HALF_OF_FLOAT4 = triton.language.constexpr(2.0**31)
"""Of the factor 2**127 of E2M1, what sums are multiplied by where weights are multiplied by scales."""


@triton.jit
def _moved(words, left: tl.constexpr):
    if left >= 0:
        return words << left
    else:
        return words >> -left


@triton.jit
def code_bits(words, code: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr):
    """Code `code` of words as bits of a bfloat16, int16; two codes of a word share all operations but the last.

    Of an integer: those of 128 + it. Of E4M3 and E2M1: sign, exponent and mantissa in their places, which gives
    2**-120 and 2**-127 times what the code stands for, subnormal or not.
    """
    at: tl.constexpr = code % (16 // BITS) * BITS
    if KIND == 0:
        both = (_moved(words, -at) & 0x000F000F) | 0x43004300
    elif KIND == 1:
        both = (_moved(words, 8 - at) & -0x7FFF8000) | (_moved(words, 4 - at) & 0x07F007F0)
    else:
        both = (_moved(words, 12 - at) & -0x7FFF8000) | (_moved(words, 6 - at) & 0x01C001C0)
    if code >= 16 // BITS:
        both = both >> 16
    return both.to(tl.int16)


@triton.jit
def _weight(
    words,
    code: tl.constexpr,
    scale,
    offset,
    table,
    zero: tl.constexpr,
    dtype: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    QUICK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Code `code` of words as weights, less what the sums get later. SCALES: whether these get the scale now."""
    if QUICK:
        bits = code_bits(words, code, BITS, KIND)
        wide = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        value = wide if WIDE else bits.to(tl.bfloat16, bitcast=True)
        if KIND == 0:
            value = value - tl.full((), 128.0 + zero, tl.float32).to(value.dtype)
        elif KIND == 1:
            value = value * tl.full((), 2.0**120, tl.float32).to(value.dtype)
        elif not SCALES:
            value = value * tl.full((), 2.0**127, tl.float32).to(value.dtype)
        if SCALES:
            value = value * scale.to(value.dtype)
    else:
        value = decoded(words, code * BITS, table, zero, BITS, KIND)
        if SCALES:
            value = value * scale
            if HAS_OFFSETS:
                value += offset
    return value.to(dtype)


@triton.jit
def _products(
    sums,
    some,
    of_x,
    first,
    is_row,
    scale,
    offset,
    table,
    zero: tl.constexpr,
    inputs: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    QUICK: tl.constexpr,
    IS_EVEN: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Sums [OUTPUTS, ROWS] and the products of all codes of the words `some` [OUTPUTS, WORDS], which begin at `first`.

    of_x [1, ROWS]: where rows of x begin.
    """
    at = first + tl.arange(0, WORDS)
    column = at // RUN * (32 // BITS * RUN) + at % RUN
    for i in tl.static_range(32 // BITS):
        is_input = is_row[None] if IS_EVEN else is_row[None] & (column + i * RUN < inputs)[:, None]
        some_x = tl.load(of_x + (column + i * RUN)[:, None], mask=is_input, other=0.0)
        weight = _weight(
            some, i, scale, offset, table, zero, some_x.dtype, BITS, KIND, SCALES, HAS_OFFSETS, QUICK, WIDE
        )
        if WIDE:
            weight, some_x = weight.to(tl.float32), some_x.to(tl.float32)
        sums = tl.dot(weight, some_x, sums)
    return sums


@triton.jit
def _added_offsets(sums, offsets, group_sums, t, is_row, n, is_output, group, groups):
    """Sums and, for one group, the offset of each output times the sum of each row's inputs."""
    of_rows = tl.load(group_sums + t * groups + group, mask=is_row, other=0.0)
    given = tl.load(offsets + n.to(tl.int64) * groups + group, mask=is_output, other=0.0).to(tl.float32)
    return sums + given[:, None] * of_rows[None]


@triton.jit
def _store_sums(y, bias, sums, mask, is_output, HAS_BIAS: tl.constexpr):
    """Store sums [ROWS, OUTPUTS], with the bias of each output added."""
    if HAS_BIAS:
        sums += tl.load(bias, mask=is_output, other=0.0).to(tl.float32)[None]
    tl.store(y, sums.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _store_tile(
    y, bias, sums, partial, arrived, t, is_row, n, is_output, rows, outputs, HAS_BIAS: tl.constexpr, SPLIT: tl.constexpr
):
    """Store the sums [ROWS, OUTPUTS] of a tile, or of a split of it, see `multiply_tile`."""
    to = t[:, None].to(tl.int64) * outputs + n[None]
    mask = is_row[:, None] & is_output[None]
    if SPLIT:
        place = partial + to
        tl.store(place + tl.program_id(2) * rows.to(tl.int64) * outputs, sums, mask=mask)
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if has_arrived_last(arrived + tile, tl.num_programs(2)):
            sums = tl.full(sums.shape, 0, tl.float32)
            for split in range(0, tl.num_programs(2)):
                of_split = place + split * rows.to(tl.int64) * outputs
                sums += tl.load(of_split, mask=mask, other=0.0, cache_modifier=".cg")
            _store_sums(y + to, bias + n, sums, mask, is_output, HAS_BIAS)
    else:
        _store_sums(y + to, bias + n, sums, mask, is_output, HAS_BIAS)


@triton.jit
def multiply_tile(
    x,
    x_stride,
    words,
    scales,
    offsets,
    table,
    bias,
    y,
    group_sums,
    partial,
    arrived,
    rows,
    outputs,
    groups,
    split_words,
    zero: tl.constexpr,
    inputs: tl.constexpr,
    row_words: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    QUICK: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[t, n] = Σ x[t, m] weight[n, m] + bias[n] for ROWS values of t and OUTPUTS of n.

    The weights are the left operand of products, which tensor cores take from registers. Words of one group are
    multiplied without its scale, which their sum gets; group_sums float32 [rows, groups]: of x, if there are offsets.
    Where a group has fewer words than WORDS, weights get the scale. QUICK: bfloat16 is made of a code's bits.

    Grid: blocks of outputs, blocks of rows, splits of the words. With SPLIT the splits' sums go to `partial` float32
    [splits, rows, outputs], and the last program of a tile adds them in order; arrived: 0 before and after.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_output, is_row = n < outputs, t < rows
    begin = tl.program_id(2) * split_words
    end = tl.minimum(begin + split_words, row_words)
    IS_EVEN: tl.constexpr = row_words % WORDS == 0 and row_words * (32 // BITS) == inputs
    BY_GROUP: tl.constexpr = GROUP_WORDS % WORDS == 0
    of_group = scales + n.to(tl.int64) * groups
    of_x = x + t[None].to(tl.int64) * x_stride
    of_n = words + n[:, None].to(tl.int64) * row_words
    sums = tl.full((OUTPUTS, ROWS), 0, tl.float32)
    if BY_GROUP:
        next_scale = tl.load(of_group + begin // GROUP_WORDS, mask=is_output, other=0.0)
    for first in range(begin, end, WORDS):
        at = first + tl.arange(0, WORDS)
        is_word = is_output[:, None] if IS_EVEN else is_output[:, None] & (at < row_words)[None]
        some = tl.load(of_n + at[None], mask=is_word, other=0)
        if BY_GROUP:  # loaded one step ahead, since only what products need is pipelined by the compiler
            group, scale = first // GROUP_WORDS, next_scale.to(tl.float32)
            next_group = tl.minimum(first + WORDS, row_words - 1) // GROUP_WORDS
            next_scale = tl.load(of_group + next_group, mask=is_output, other=0.0)
            zeros = tl.full((OUTPUTS, ROWS), 0, tl.float32)
            part = _products(
                *(zeros, some, of_x, first, is_row, 0.0, 0.0, table, zero, inputs, WORDS, RUN, BITS, KIND),
                *(False, HAS_OFFSETS, QUICK, IS_EVEN, WIDE),
            )
            sums += part * scale[:, None]
            if HAS_OFFSETS and first % GROUP_WORDS == 0:
                sums = _added_offsets(sums, offsets, group_sums, t, is_row, n, is_output, group, groups)
        else:
            scale = of_words(scales, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
            scale = scale * (2.0**96 if QUICK and KIND == 2 else 1.0)
            offset = scale
            if HAS_OFFSETS:
                offset = of_words(offsets, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
            sums = _products(
                *(sums, some, of_x, first, is_row, scale, offset, table, zero, inputs, WORDS, RUN, BITS, KIND),
                *(True, HAS_OFFSETS, QUICK, IS_EVEN, WIDE),
            )
    if QUICK and KIND == 2 and not BY_GROUP:
        sums *= HALF_OF_FLOAT4
    _store_tile(
        *(y, bias, tl.trans(sums), partial, arrived, t, is_row, n, is_output, rows, outputs, HAS_BIAS, SPLIT),
    )


@triton.jit
def sum_groups(x, x_stride, sums, groups, inputs, group, GROUP: tl.constexpr):
    """sums[t, g] = Σ x[t, m] over the inputs of group g. Grid: rows, groups."""
    m = tl.arange(0, GROUP)
    at = tl.program_id(1) * group + m
    some = tl.load(x + tl.program_id(0).to(tl.int64) * x_stride + at, mask=(m < group) & (at < inputs), other=0.0)
    tl.store(sums + tl.program_id(0) * groups + tl.program_id(1), tl.sum(some.to(tl.float32), 0))
