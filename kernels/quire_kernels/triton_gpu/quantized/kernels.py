"""The kernels of products with matrices of few bits, whose codes are decoded in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decoded(words, shift, table, zero, BITS: tl.constexpr, KIND: tl.constexpr):
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
    RUNS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
):
    """out[r] = the row ids[r] of the matrix, or row r; RUNS runs of its columns. Grid: rows, blocks of runs."""
    r = tl.program_id(0).to(tl.int64)
    n = tl.load(ids + r) if HAS_IDS else r
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    first = run // (32 // BITS) * RUN
    at = first[:, None] + tl.arange(0, RUN)[None]
    some = tl.load(words + n * row_words + at, mask=at < row_words, other=0)
    group = n * groups + first // GROUP_WORDS
    scale = tl.load(scales + group, mask=first < row_words, other=0.0).to(tl.float32)
    value = decoded(some, (run % (32 // BITS) * BITS)[:, None], table, zero, BITS, KIND) * scale[:, None]
    if HAS_OFFSETS:
        value += tl.load(offsets + group, mask=first < row_words, other=0.0).to(tl.float32)[:, None]
    column = run[:, None] * RUN + tl.arange(0, RUN)[None]
    to = tl.load(order + column, mask=column < inputs, other=0) if HAS_ORDER else column
    tl.store(out + r * inputs + to, value.to(out.dtype.element_ty), mask=column < inputs)
