"""Calls of the Triton ops on tensors of the device "meta", at the sizes of an 8B model, with what each must move."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from quire_kernels.low_rank import TokenSlots
from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu import linear, low_rank, moe, pages
from quire_kernels.triton_gpu.attention.op import paged_attention
from quire_kernels.triton_gpu.quantized.int8 import linear_int8
from quire_kernels.triton_gpu.quantized.matrix import FLOAT4, FLOAT8, INTEGER, WHOLE_ROW, DeviceMatrix
from quire_kernels.triton_gpu.quantized.op import TritonQuantizedLinear
from quire_kernels.triton_gpu.report.case import TOKENS, Case, meta
from quire_kernels.triton_gpu.report.state_cases import state_cases
from quire_kernels.triton_gpu.rows import acts, logits, norms, sampling

WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, VOCAB = 4096, 32, 8, 128, 14336, 128_256


def attention_case(
    name: str,
    lens: tuple[int, int],
    context: int,
    shape: tuple[int, int, int] = (HEADS, KV_HEADS, HEAD),
    value_dim: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Case:
    """lens: rows, and tokens of each. shape: query heads, key-value heads, width. value_dim: of values in the keys."""
    (rows, length), (heads, kv_heads, width) = lens, shape
    host = np.full(rows, length, np.int32), np.full(rows, context, np.int32)
    starts, contexts = meta(rows + 1, dtype=torch.int32), meta(rows, dtype=torch.int32)
    step = AttentionMetadata(starts, contexts, meta(rows, -(-context // 16), dtype=torch.int32), *host, length, context)
    q, k = meta(rows * length, heads, width, dtype=dtype), meta(1024, 16, kv_heads, width, dtype=dtype)
    v = k if value_dim is None else k[..., :0]
    element, of_value = dtype.itemsize, width if value_dim is None else value_dim
    of_position = kv_heads * (width + (width if value_dim is None else 0)) * element
    moved = rows * (context * of_position + length * heads * (width + of_value) * element)
    pairs = rows * heads * length * (context - (length - 1) / 2)
    call = partial(paged_attention, q, k, v, step, width**-0.5, value_dim=value_dim)
    return Case(name, call, moved, 2 * pairs * (width + of_value))


def attention_cases() -> list[Case]:
    return [
        attention_case("paged_attention decode", (TOKENS, 1), 8192),
        attention_case("paged_attention verify", (16, 5), 8192),
        attention_case("paged_attention prefill", (1, 8192), 8192),
        attention_case("paged_attention latent decode", (TOKENS, 1), 8192, (16, 1, 576), 512),
        attention_case("paged_attention latent prefill", (1, 2048), 2048, (16, 1, 576), 512),
        attention_case("paged_attention 256 prefill", (1, 2048), 2048, (16, 8, 256)),
        attention_case("paged_attention fp32 decode", (TOKENS, 1), 2048, dtype=torch.float32),
        attention_case("paged_attention fp32 256 prefill", (1, 2048), 2048, (16, 8, 256), dtype=torch.float32),
    ]


def page_cases() -> list[Case]:
    q, k, v = meta(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD).split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1)
    q, k, v = (part.unflatten(-1, (-1, HEAD)) for part in (q, k, v))
    pools = meta(1024, 16, KV_HEADS, HEAD), meta(1024, 16, KV_HEADS, HEAD)
    slots = meta(TOKENS, dtype=torch.int64)
    angles = meta(TOKENS, HEAD // 2, dtype=torch.float32), meta(TOKENS, HEAD // 2, dtype=torch.float32)
    of_keys = 4 * TOKENS * KV_HEADS * HEAD * 2
    of_queries = 2 * TOKENS * HEADS * HEAD * 2
    return [
        Case("rotary", partial(pages.rotary, q, k, *angles), of_queries + of_keys / 2),
        Case("write_kv", partial(pages.write_kv, k, v, *pools, slots), of_keys),
        Case("rotary_write_kv", partial(pages.rotary_write_kv, q, k, v, *angles, *pools, slots), of_queries + of_keys),
        Case("read_kv", partial(pages.read_kv, *pools, slots, torch.bfloat16), of_keys),
    ]


def row_cases() -> list[Case]:
    x, weight, both = meta(TOKENS, WIDTH), meta(WIDTH), meta(TOKENS, 2 * HIDDEN)
    of_x, of_logits = TOKENS * WIDTH * 2, TOKENS * VOCAB * 4
    rows = meta(TOKENS, VOCAB, dtype=torch.float32)
    masks = meta(TOKENS, VOCAB // 32, dtype=torch.int32), meta(TOKENS, dtype=torch.int64)
    return [
        Case("rms_norm", partial(norms.rms_norm, x, weight, 1e-5), 2 * of_x),
        Case("add_rms_norm", partial(norms.add_rms_norm, x, meta(TOKENS, WIDTH), weight, 1e-5), 4 * of_x),
        Case("layer_norm", partial(norms.layer_norm, x, weight, weight, 1e-5), 2 * of_x),
        Case("act", partial(acts.act, meta(TOKENS, HIDDEN), "gelu"), 4 * TOKENS * HIDDEN),
        Case("gated_act", partial(acts.gated_act, both, "silu"), 6 * TOKENS * HIDDEN),
        Case("scale_logits", partial(acts.scale_logits, rows, 0.5, 30.0), 2 * of_logits),
        Case("argmax", partial(logits.argmax, rows), of_logits),
        Case("mask_logits", partial(logits.mask_logits, rows, *masks), of_logits / 32 + of_logits),
        Case("sample", partial(sampling.sample_on_device, rows, meta(5, len(rows), dtype=torch.float64)), of_logits),
    ]


def product_cases() -> list[Case]:
    tokens = TokenSlots.on_device(meta(TOKENS, dtype=torch.int32), meta(TOKENS, dtype=torch.float32), 16)
    adapters = low_rank.low_rank(WIDTH, [(0, WIDTH)], TOKENS, torch.bfloat16, "meta")
    of_adapters = TOKENS * 16 * 2 * WIDTH * 2 + 3 * TOKENS * WIDTH * 2
    by_row = partial(linear.linear(meta(WIDTH, WIDTH), None), meta(1, WIDTH))
    return [
        Case("linear of one row", by_row, 2 * WIDTH * WIDTH, 2 * WIDTH * WIDTH),
        Case(
            *("low_rank", partial(adapters, meta(TOKENS, WIDTH), meta(TOKENS, WIDTH), tokens), of_adapters),
            4 * TOKENS * 16 * WIDTH,
        ),
    ]


def matrix_of(
    outputs: int, inputs: int, bits: int, run: int, group: int, kind: int, has_offsets: bool = False
) -> DeviceMatrix:
    words, scales = meta(outputs, inputs * bits // 32, dtype=torch.int32), meta(outputs, inputs // group)
    offsets = meta(outputs, inputs // group) if has_offsets else None
    return DeviceMatrix(
        *((outputs, inputs), words, scales, offsets, meta(1 << bits, dtype=torch.float32), None),
        *(bits, run, WHOLE_ROW if group == inputs else group * bits // 32, kind, 0),
    )


def quantized_cases() -> list[Case]:
    """Matrices of an MLP: of int4 in groups of 128 with offsets, of E4M3 with a scale an output, of MXFP4."""
    outputs, inputs, found = HIDDEN, WIDTH, list[Case]()
    forms = {"int4": (4, 8, 128, INTEGER), "fp8": (8, 8, inputs, FLOAT8), "mxfp4": (4, 4, 32, FLOAT4)}
    for rows in (1, TOKENS):
        x, moved = meta(rows, inputs), rows * (inputs + outputs) * 2
        for name, (bits, run, group, kind) in forms.items():
            matrix = matrix_of(outputs, inputs, bits, run, group, kind, name == "int4")
            bound = TritonQuantizedLinear(matrix, None, torch.bfloat16, name == "int4")
            size = outputs * inputs * matrix.element_bytes
            case = f"linear_quantized {name} of {rows} rows"
            found.append(Case(case, partial(bound, x), size + moved, 2 * rows * outputs * inputs))
        bound8 = linear_int8(meta(outputs, inputs), None)
        size, case = outputs * (inputs + 4), f"linear_int8 of {rows} rows"
        found.append(Case(case, partial(bound8, x), size + moved, 2 * rows * outputs * inputs))
    return found


def moe_cases() -> list[Case]:
    """128 experts of which a token uses 8: decoding reads nearly all of them, prefill multiplies."""
    experts, uses, width, hidden = 128, 8, 2048, 768
    bound = moe.moe(meta(experts, 2 * hidden, width), meta(experts, width, hidden), ExpertMlp())
    found = []
    for name, tokens in (("moe decode", TOKENS), ("moe prefill", 8192)):
        chosen, weights = meta(tokens, uses, dtype=torch.int64), meta(tokens, uses, dtype=torch.float32)
        used = experts * (1 - (1 - uses / experts) ** tokens)
        of_expert, of_tokens = 3 * width * hidden, 2 * tokens * width * 2
        call = partial(bound, meta(tokens, width), weights, chosen)
        found.append(Case(name, call, used * of_expert * 2 + of_tokens, 2 * tokens * uses * of_expert))
        if tokens == TOKENS:
            for kind, form in {"int4": (4, 8, 128, INTEGER), "mxfp4": (4, 4, 32, FLOAT4)}.items():
                shapes = (2 * hidden, width), (width, hidden)
                linears = [
                    TritonQuantizedLinear(matrix_of(*each, *form), None, torch.bfloat16, False) for each in shapes
                ]
                up, down = ([linear] * experts for linear in linears)
                call = partial(moe.moe(up, down, ExpertMlp()), meta(tokens, width), weights, chosen)
                operations = 2 * tokens * uses * of_expert
                found.append(Case(f"moe decode {kind}", call, used * of_expert * 0.6 + of_tokens, operations))
    return found


def cases() -> Mapping[str, Case]:
    """All of them by name."""
    products = (*product_cases(), *quantized_cases(), *moe_cases(), *state_cases())
    return {case.op: case for case in (*attention_cases(), *page_cases(), *row_cases(), *products)}
