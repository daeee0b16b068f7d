"""The Triton ops on this machine's GPU against the reference.

PYTHONPATH=platform:kernels:models:adapters:plugins:tests/helpers/kernels python tests/gpu/ops_parity.py

Kernels of different checks are compiled in processes of their own, side by side.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from attention_options import SHAPES, TOLERANCE, check_options

from quire.records import OpImpl
from quire_kernels import reference
from quire_kernels.low_rank import LowRankUpdate, Segments, TokenSlots
from quire_kernels.moe import ExpertMlp
from quire_kernels.pytorch import ops as pytorch_ops
from quire_kernels.quantized import QuantizedMatrix, float8_table
from quire_kernels.triton_gpu.ops import MODULES, TritonOp
from quire_testing import check_op
from quire_testing.ops.attention_cases import rows_of
from quire_testing.ops.cases import CASES, RandomInputs

DTYPES = ("float32", "bfloat16", "float16")
PARTS = {"paged_attention": 5, "linear_quantized": 6}
"""By op: checks among which its cases are divided, since each has kernels of its own to compile."""

STEPS = [((1, 1, 1), (1, 9, 1400)), ((40, 1, 5, 16), (300, 70, 31, 2000))]
"""Tokens and contexts of rows: one step of single tokens, one of all kinds of rows."""


class TritonOps:
    """The ops by name."""

    def __getattr__(self, op: str) -> Any:
        return TritonOp(op).load()


def conforms(op: str, dtype: str, part: int) -> None:
    mine, cases = TritonOp(op), CASES[op]
    with patch.dict(CASES, {op: lambda draw: islice(cases(draw), part, None, PARTS.get(op, 1))}):
        check_op(OpImpl(mine.name, op, mine.supports, mine.load), dtype, "cuda")


def attention(shape: int, option: int, dtype: str) -> None:
    """One option of attention, for one of the shapes."""
    chosen = slice(option, option + 1)
    check_options(TritonOps(), getattr(torch, dtype), "cuda", STEPS, SHAPES[shape : shape + 1], chosen)


def attention_of_a_model(heads: int, kv_heads: int, dim: int, dtype: str) -> None:
    """Geometries of real models; a step of single tokens is also captured as a CUDA graph, with padded rows."""
    kind = getattr(torch, dtype)
    draw = RandomInputs(kind, torch.device("cuda"), torch.Generator().manual_seed(1))
    ops = TritonOps()
    for lens, contexts in (((1, 1, 1, 1), (3000, 1, 8191, 70)), ((200, 1, 3), (4100, 900, 5000))):
        rows, pages = rows_of(draw, lens, contexts)
        pools = draw(pages, 16, kv_heads, dim), draw(pages, 16, kv_heads, dim)
        q = draw(sum(lens), heads, dim)
        wanted = reference.paged_attention(q.float(), *(pool.float() for pool in pools), rows, dim**-0.5)
        found = ops.paged_attention(q, *pools, rows, dim**-0.5)
        worst = (found.float() - wanted).abs().max().item()
        assert worst < TOLERANCE.get(kind, 5e-3), (lens, worst)
        if max(lens) == 1:
            stepped = replace(rows, contexts=rows.contexts.clone(), max_context=20000)
            captured(ops, q, pools, stepped, found)


def captured(ops: Any, q: torch.Tensor, pools: Any, rows: Any, wanted: torch.Tensor) -> None:
    scale = q.shape[-1] ** -0.5
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        ops.paged_attention(q, *pools, rows, scale)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.paged_attention(q, *pools, rows, scale)
    rows.contexts[1] = 0
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert not out[1].any()
    kept = torch.tensor([0, 2, 3])
    assert torch.equal(out[kept], wanted[kept]), "the number of splits depends on the row alone"


def sampling() -> None:
    """Rows of all kinds at the size of a real vocabulary; nothing waits for the device."""
    rows, vocab, random = 64, 151_936, np.random.default_rng(0)
    logits = torch.randn(rows, vocab, generator=torch.Generator("cuda").manual_seed(0), device="cuda") * 4
    settings = (
        random.choice([0.0, 0.3, 1.0, 1.7], rows),
        random.random(rows),
        random.choice([0, 0, 1, 40, 1000], rows),
        random.choice([1.0, 0.9, 0.99, 0.3], rows),
        random.choice([0.0, 0.0, 0.05], rows),
    )
    wanted = reference.sample(logits, *settings)
    ops = TritonOps()
    assert (ops.sample(logits, *settings) == wanted).sum().item() >= rows - 1, "one row may be near an edge"
    torch.cuda.set_sync_debug_mode("error")
    ops.sample(logits, *settings)
    torch.cuda.set_sync_debug_mode("default")


def experts(tokens: int) -> None:
    """64 experts, of which a token uses 6; nothing waits for the device."""
    draw = RandomInputs(torch.bfloat16, torch.device("cuda"), torch.Generator().manual_seed(1))
    up, down = draw(64, 1408, 1024, scale=1024**-0.5), draw(64, 1024, 704, scale=704**-0.5)
    x, weights = draw(tokens, 1024), draw(tokens, 6, dtype=torch.float32).softmax(-1)
    chosen = torch.rand(tokens, 64, device="cuda").argsort(-1)[:, :6].contiguous()
    found = TritonOps().moe(up, down, ExpertMlp())
    wanted = pytorch_ops.moe(up, down, ExpertMlp())(x, weights, chosen)
    torch.testing.assert_close(found(x, weights, chosen), wanted, rtol=2e-2, atol=2e-2)
    torch.cuda.set_sync_debug_mode("error")
    found(x, weights, chosen)
    torch.cuda.set_sync_debug_mode("default")


def adapters(dtype: str, repeats: int) -> None:
    """Rows of one token with adapters of their own and without, which only the device knows, as a captured graph.

    repeats: of six rows.
    """
    kind, inputs, slices = getattr(torch, dtype), 4096, [(0, 2048), (2048, 2560)]
    draw = RandomInputs(kind, torch.device("cuda"), torch.Generator().manual_seed(1))
    mine, theirs = (make(inputs, slices, 4, kind, "cuda") for make in (TritonOps().low_rank, reference.low_rank))
    for slot, rank in enumerate((16, 3, 8)):
        update = [LowRankUpdate(draw(rank, inputs, scale=1 / 64), draw(2048, rank)), None]
        update[1] = LowRankUpdate(scale=draw(512), shift=draw(512)) if slot else update[1]
        for each in (mine, theirs):
            each.put(slot, each.pack(update))
    used = [(1, 1.0), None, (0, 0.5), (2, 2.0), (3, 1.0), (0, 1.0)] * repeats
    y, x = draw(len(used), 2560), draw(len(used), inputs)
    slots = torch.tensor([-1 if use is None else use[0] for use in used], dtype=torch.int32, device="cuda")
    weights = torch.tensor([0.0 if use is None else use[1] for use in used], device="cuda")
    segments = Segments.from_uses([() if use is None else (use,) for use in used], [1] * len(used), "cuda")
    wanted, tokens = theirs(y.clone(), x, segments), TokenSlots.on_device(slots, weights, 16)
    close = {"rtol": 2e-2, "atol": 5e-2} if dtype != "float32" else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(mine(y.clone(), x, tokens), wanted, **close)
    graph, out = torch.cuda.CUDAGraph(), y.clone()
    with torch.cuda.graph(graph):
        mine(out, x, tokens)
    for _ in range(3):
        out.copy_(y)
        graph.replay()
        torch.testing.assert_close(out, wanted, **close)


def quantized(form: str, rows: int) -> None:
    """A matrix of the size of a model's against its dequantized form; large enough that programs divide its words."""
    draw = RandomInputs(torch.bfloat16, torch.device("cpu"), torch.Generator().manual_seed(1))
    outputs, inputs, x = 1536, 2048, draw(rows, 2048)
    if form == "int8":
        weight = draw(outputs, inputs, scale=inputs**-0.5)
        wanted = reference.linear_int8(weight, None)(x)
        bound = TritonOps().linear_int8(weight.cuda(), None)
    else:
        table = float8_table() if form == "fp8" else None
        bits, group = (8, inputs) if form == "fp8" else (4, 128)
        codes = draw.ids(1 << bits, outputs, inputs).to(torch.uint8)
        codes = codes.masked_fill(codes & 0x7F == 0x7F, 5) if form == "fp8" else codes
        scales = draw(outputs, inputs // group, scale=inputs**-0.5 / (200 if form == "fp8" else 8)).float()
        matrix = QuantizedMatrix(codes, scales, bits, group, 8 if table is None else 0, table=table)
        wanted = reference.linear_quantized(matrix, None, torch.bfloat16)(x)
        bound = TritonOps().linear_quantized(matrix, None, torch.bfloat16)
    for _ in range(3):
        torch.testing.assert_close(bound(x.cuda()).cpu(), wanted, rtol=2e-2, atol=3e-2)


def checks() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for op in sorted(MODULES, key=lambda op: -PARTS.get(op, 1)):
        for dtype in DTYPES[: 2 if PARTS.get(op, 1) > 1 else None]:
            for part in range(PARTS.get(op, 1)):
                found[f"{op} {dtype} {part}"] = partial(conforms, op, dtype, part)
    found |= {f"adapters of {6 * n} tokens {dtype}": partial(adapters, dtype, n) for n in (1, 33) for dtype in DTYPES}
    for form in ("int4", "fp8", "int8"):
        found |= {f"quantized {form}, {rows} rows": partial(quantized, form, rows) for rows in (1, 20, 100, 300)}
    found["sampling from a large vocabulary"] = sampling
    found |= {f"experts of {tokens} tokens": partial(experts, tokens) for tokens in (1, 64, 1000)}
    for option in range(13):  # those of `attention_options.options`
        found[f"attention option {option}"] = partial(attention, 2, option, "bfloat16")
    for shape in range(len(SHAPES)):
        for dtype in ("float32", "bfloat16"):
            found[f"attention {SHAPES[shape]} {dtype}"] = partial(attention, shape, 0, dtype)
    for heads, kv_heads, dim in ((32, 8, 128), (32, 8, 64), (16, 8, 256), (28, 4, 128), (32, 32, 96)):
        found[f"attention {heads} {kv_heads} {dim}"] = partial(attention_of_a_model, heads, kv_heads, dim, "bfloat16")
    for dtype in ("float32", "float16"):
        found[f"attention 32 8 128 {dtype}"] = partial(attention_of_a_model, 32, 8, 128, dtype)
    return found


def result_of(name: str) -> tuple[str, float, str]:
    """Seconds, and what is wrong."""
    start = time.monotonic()
    try:
        checks()[name]()
        return name, time.monotonic() - start, ""
    except Exception:
        return name, time.monotonic() - start, traceback.format_exc(limit=-3)


def run(processes: int = min(16, os.cpu_count() or 1)) -> dict[str, Any]:
    """By check: seconds, and the error if it failed."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(result_of, checks()))
    return {name: {"seconds": round(seconds, 1), "error": error} for name, seconds, error in found}


if __name__ == "__main__":
    begin = time.monotonic()
    results = run()
    for name, result in results.items():
        if result["error"]:
            print(f"FAILED {name}\n{result['error']}")
    failed = sum(bool(result["error"]) for result in results.values())
    slow = sorted(results, key=lambda name: -results[name]["seconds"])[:5]
    print(f"ops: {len(results) - failed} checks passed, {failed} failed, {time.monotonic() - begin:.0f} s; slowest:")
    print("; ".join(f"{name} {results[name]['seconds']} s" for name in slow))
    sys.exit(failed > 0)
