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
def of_words(
    source,
    n,
    first,
    outputs,
    groups,
    row_words,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
):
    """Scales or offsets of WORDS words from `first` on, float32 [OUTPUTS, WORDS], or [OUTPUTS, 1] if they are equal.

    `first` is a multiple of WORDS.
    """
    if GROUP_WORDS % WORDS == 0:
        at = source + n.to(tl.int64) * groups + first // GROUP_WORDS
        return tl.load(at, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    elif WORDS % GROUP_WORDS == 0:
        group = first // GROUP_WORDS + tl.arange(0, WORDS // GROUP_WORDS)
        at = source + n[:, None].to(tl.int64) * groups + group[None]
        found = tl.load(at, mask=(n < outputs)[:, None] & (group < groups)[None], other=0.0).to(tl.float32)
        of_each = tl.broadcast_to(found[:, :, None], (OUTPUTS, WORDS // GROUP_WORDS, GROUP_WORDS))
        return tl.reshape(of_each, (OUTPUTS, WORDS))
    else:
        word = first + tl.arange(0, WORDS)
        at = source + n[:, None].to(tl.int64) * groups + (word // GROUP_WORDS)[None]
        return tl.load(at, mask=(n < outputs)[:, None] & (word < row_words)[None], other=0.0).to(tl.float32)


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
        column = at // RUN * (32 // BITS * RUN) + at % RUN
        products = tl.full((OUTPUTS, WORDS), 0, tl.float32)
        total = tl.full((WORDS,), 0, tl.float32)
        for i in tl.static_range(32 // BITS):
            some_x = tl.load(x + column + i * RUN, mask=column + i * RUN < inputs, other=0.0).to(tl.float32)
            products += some_x[None] * decoded(some, i * BITS, table, zero, BITS, KIND)
            if HAS_OFFSETS:
                total += some_x
        sums += products * of_words(scales, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
        if HAS_OFFSETS:
            sums += total[None] * of_words(
                offsets, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS)
            )
    found = tl.sum(sums, 1)
    if HAS_BIAS:
        found += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)
    tl.store(y + n, found.to(y.dtype.element_ty), mask=is_output)


@triton.jit
def store_sums(y, bias, sums, mask, is_output, HAS_BIAS: tl.constexpr):
    """Store sums [ROWS, OUTPUTS], with the bias of each output added."""
    if HAS_BIAS:
        sums += tl.load(bias, mask=is_output, other=0.0).to(tl.float32)[None]
    tl.store(y, sums.to(y.dtype.element_ty), mask=mask)


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
    sums = tl.full((ROWS, OUTPUTS), 0, tl.float32)
    for first in range(begin, tl.minimum(begin + split_words, row_words), WORDS):
        at = first + tl.arange(0, WORDS)
        mask = is_output[:, None] & (at < row_words)[None]
        some = tl.load(words + n[:, None].to(tl.int64) * row_words + at[None], mask=mask, other=0)
        column = at // RUN * (32 // BITS * RUN) + at % RUN
        scale = of_words(scales, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
        if HAS_OFFSETS:
            offset = of_words(offsets, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
        for i in tl.static_range(32 // BITS):
            weight = decoded(some, i * BITS, table, zero, BITS, KIND) * scale
            if HAS_OFFSETS:
                weight += offset
            some_x = tl.load(
                x + t[:, None].to(tl.int64) * x_stride + (column + i * RUN)[None],
                mask=is_row[:, None] & (column + i * RUN < inputs)[None],
                other=0.0,
            )
            if WIDE:
                weight, some_x = weight.to(some_x.dtype).to(tl.float32), some_x.to(tl.float32)
            sums = tl.dot(some_x, tl.trans(weight.to(some_x.dtype)), sums)
    to = t[:, None].to(tl.int64) * outputs + n[None]
    mask = is_row[:, None] & is_output[None]
    if SPLIT:
        place = partial + to
        tl.store(place + tl.program_id(2) * rows.to(tl.int64) * outputs, sums, mask=mask)
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if has_arrived_last(arrived + tile, tl.num_programs(2)):
            sums = tl.full((ROWS, OUTPUTS), 0, tl.float32)
            for split in range(0, tl.num_programs(2)):
                of_split = place + split * rows.to(tl.int64) * outputs
                sums += tl.load(of_split, mask=mask, other=0.0, cache_modifier=".cg")
            store_sums(y + to, bias + n, sums, mask, is_output, HAS_BIAS)
    else:
        store_sums(y + to, bias + n, sums, mask, is_output, HAS_BIAS)


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
