"""The kernels of products with matrices of few bits, whose codes are decoded in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.results import has_arrived_last


@triton.jit
def decoded(words, shift: tl.constexpr, table, zero, BITS: tl.constexpr, KIND: tl.constexpr):
    """What the codes at bit `shift` of words stand for, in float32. KIND: see `matrix`. zero: float32."""
    code = (words >> shift) & ((1 << BITS) - 1)
    if KIND == 0:
        return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + zero)  # 2**23 + code, exactly
    elif KIND == 1:
        half = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.int16)  # float16 has another bias of exponents
        return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif KIND == 2:
        half = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.int16)
        return half.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0
    else:
        return tl.load(table + code)


@triton.jit
def multiply_row(
    x,
    words,
    scales,
    offsets,
    table,
    bias,
    y,
    outputs,
    groups,
    zero,
    inputs: tl.constexpr,
    row_words: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """y[n] = Σ x[m] weight[n, m] + bias[n] for OUTPUTS values of n, summed in float32."""
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = n < outputs
    sums = tl.full((OUTPUTS, WORDS), 0, tl.float32)
    for first in range(0, row_words, WORDS):
        at = first + tl.arange(0, WORDS)
        mask = is_output[:, None] & (at < row_words)[None]
        some = tl.load(
            words + n[:, None].to(tl.int64) * row_words + at[None], mask=mask, other=0, eviction_policy="evict_first"
        )
        of_group = n[:, None].to(tl.int64) * groups + (at // GROUP_WORDS)[None]
        column = at // RUN * (32 // BITS * RUN) + at % RUN
        products = tl.full((OUTPUTS, WORDS), 0, tl.float32)
        total = tl.full((WORDS,), 0, tl.float32)
        for i in tl.static_range(32 // BITS):
            some_x = tl.load(x + column + i * RUN, mask=column + i * RUN < inputs, other=0.0).to(tl.float32)
            products += some_x[None] * decoded(some, i * BITS, table, zero, BITS, KIND)
            if HAS_OFFSETS:
                total += some_x
        sums += products * tl.load(scales + of_group, mask=mask, other=0.0).to(tl.float32)
        if HAS_OFFSETS:
            sums += total[None] * tl.load(offsets + of_group, mask=mask, other=0.0).to(tl.float32)
    found = tl.sum(sums, 1)
    if HAS_BIAS:
        found += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)
    tl.store(y + n, found.to(y.dtype.element_ty), mask=is_output)


@triton.jit
def weights_of(
    some, n, at, scales, offsets, table, groups, zero, shift: tl.constexpr, mask,
    WORDS: tl.constexpr, GROUP_WORDS: tl.constexpr, BITS: tl.constexpr, KIND: tl.constexpr, HAS_OFFSETS: tl.constexpr,
):  # fmt: skip
    """Decoded weights [OUTPUTS, WORDS] at bit `shift` of the words, in float32."""
    found = decoded(some, shift, table, zero, BITS, KIND)
    if GROUP_WORDS % WORDS == 0:  # all words are of one group
        of_group = n.to(tl.int64) * groups + tl.min(at, 0) // GROUP_WORDS
        inside = tl.max(mask.to(tl.int32), 1) > 0
        found *= tl.load(scales + of_group, mask=inside, other=0.0).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            found += tl.load(offsets + of_group, mask=inside, other=0.0).to(tl.float32)[:, None]
    else:
        of_group = n[:, None].to(tl.int64) * groups + (at // GROUP_WORDS)[None]
        found *= tl.load(scales + of_group, mask=mask, other=0.0).to(tl.float32)
        if HAS_OFFSETS:
            found += tl.load(offsets + of_group, mask=mask, other=0.0).to(tl.float32)
    return found


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
    partial,
    arrived,
    rows,
    outputs,
    groups,
    zero,
    split_words,
    inputs: tl.constexpr,
    row_words: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[t, n] = Σ x[t, m] weight[n, m] + bias[n] for ROWS values of t and OUTPUTS of n.

    Grid: blocks of outputs, blocks of rows, splits of the words. With SPLIT the splits' sums go to `partial` float32
    [splits, rows, outputs], and the last program of a tile adds them in order; arrived: 0 before and after.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_output, is_row = n < outputs, t < rows
    begin = tl.program_id(2) * split_words
    sums = tl.full((OUTPUTS, ROWS), 0, tl.float32)
    for first in range(begin, tl.minimum(begin + split_words, row_words), WORDS):
        at = first + tl.arange(0, WORDS)
        mask = is_output[:, None] & (at < row_words)[None]
        some = tl.load(words + n[:, None].to(tl.int64) * row_words + at[None], mask=mask, other=0)
        column = at // RUN * (32 // BITS * RUN) + at % RUN
        for i in tl.static_range(32 // BITS):
            weight = weights_of(
                *(some, n, at, scales, offsets, table, groups, zero, i * BITS, mask),
                *(WORDS, GROUP_WORDS, BITS, KIND, HAS_OFFSETS),
            )
            some_x = tl.load(
                x + t[:, None].to(tl.int64) * x_stride + (column + i * RUN)[None],
                mask=is_row[:, None] & (column + i * RUN < inputs)[None],
                other=0.0,
            )
            if WIDE:
                weight, some_x = weight.to(some_x.dtype).to(tl.float32), some_x.to(tl.float32)
            sums = tl.dot(weight.to(some_x.dtype), tl.trans(some_x), sums)
    to = t[None].to(tl.int64) * outputs + n[:, None]
    mask = is_output[:, None] & is_row[None]
    if SPLIT:
        tl.store(partial + tl.program_id(2) * rows.to(tl.int64) * outputs + to, sums, mask=mask)
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if has_arrived_last(arrived + tile, tl.num_programs(2)):
            sums = tl.full((OUTPUTS, ROWS), 0, tl.float32)
            for split in range(0, tl.num_programs(2)):
                place = partial + split * rows.to(tl.int64) * outputs + to
                sums += tl.load(place, mask=mask, other=0.0, cache_modifier=".cg")
            if HAS_BIAS:
                sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
            tl.store(y + to, sums.to(y.dtype.element_ty), mask=mask)
    else:
        if HAS_BIAS:
            sums += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
        tl.store(y + to, sums.to(y.dtype.element_ty), mask=mask)


@triton.jit
def dequantize(
    words,
    scales,
    offsets,
    table,
    ids,
    order,
    out,
    groups,
    zero,
    inputs: tl.constexpr,
    row_words: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
):
    """out[r] = the row ids[r] of the matrix, or row r; WORDS words of it. Grid: rows, blocks of words."""
    r = tl.program_id(0).to(tl.int64)
    n = tl.load(ids + r) if HAS_IDS else r
    at = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    some = tl.load(words + n * row_words + at, mask=at < row_words, other=0)
    scale = tl.load(scales + n * groups + at // GROUP_WORDS, mask=at < row_words, other=0.0).to(tl.float32)
    if HAS_OFFSETS:
        offset = tl.load(offsets + n * groups + at // GROUP_WORDS, mask=at < row_words, other=0.0).to(tl.float32)
    for i in tl.static_range(32 // BITS):
        column = at // RUN * (32 // BITS * RUN) + at % RUN + i * RUN
        value = decoded(some, i * BITS, table, zero, BITS, KIND) * scale
        if HAS_OFFSETS:
            value += offset
        inside = column < inputs
        to = tl.load(order + column, mask=inside, other=0) if HAS_ORDER else column
        tl.store(out + r * inputs + to, value.to(out.dtype.element_ty), mask=inside)
