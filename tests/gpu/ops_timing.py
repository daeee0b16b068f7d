"""Times of the Triton ops on this machine's GPU beside their roof.

PYTHONPATH=platform:kernels:models:adapters:plugins python tests/gpu/ops_timing.py [--tune]

The roof is the larger of the bytes that an op must move over the rate of a large copy, and of its operations over the
rate of a large product; both rates are measured first. Every launch is timed in a CUDA graph of launches on different
memory, so that nothing is found in the L2 cache that a model would not find there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton
from product_timing import adapter_times, product_times

from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.attention import op as attention_op, tiles as attention_tiles

H, K, D = 32, 8, 128
"""Heads of an 8B model."""

CACHE_BYTES = 1 << 28
"""Several times the L2 cache."""


@dataclass(frozen=True)
class Roof:
    """bandwidth: bytes a second. flops: operations a second in bfloat16."""

    bandwidth: float
    flops: float

    @classmethod
    def measured(cls) -> Roof:
        source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
        target = torch.empty_like(source)
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        copy = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
        product = triton.testing.do_bench(lambda: a @ b, return_mode="median")
        return cls(2 * source.numel() / copy * 1e3, 2 * 8192**3 / product * 1e3)

    def seconds(self, moved: float, flops: float) -> float:
        return max(moved / self.bandwidth, flops / self.flops)


def graph_seconds(calls: list[Callable[[], Any]], repeats: int = 20) -> float:
    """Median seconds of one of the calls, which are captured one after the other."""
    with torch.cuda.stream(torch.cuda.Stream()):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2] / 1e3 / len(calls)


def rows_at(first_page: int, batch: int, length: int, context: int) -> AttentionMetadata:
    """Rows of `length` tokens each, on pages of 16 positions that follow each other in no order."""
    count = -(-context // 16)
    generator = torch.Generator().manual_seed(first_page)
    pages = (first_page + torch.randperm(batch * count, generator=generator)).view(batch, count).int().cuda()
    lens, contexts = np.full(batch, length, np.int32), np.full(batch, context, np.int32)
    starts = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device="cuda")
    return AttentionMetadata(starts, torch.from_numpy(contexts).cuda(), pages, lens, contexts, length, context)


def decode_cases(pools: tuple[torch.Tensor, torch.Tensor]) -> Iterator[tuple[str, list[Callable[[], Any]], float]]:
    """Name, calls on different pages, and bytes of one call."""
    for context in (2048, 8192, 32768):
        for batch in (1, 16, 64, 256):
            pages = batch * context // 16
            copies = min(len(pools[0]) // pages, max(1, CACHE_BYTES // (pages * 16 * K * D * 4)), 32)
            if not copies:
                continue
            steps = [rows_at(copy * pages, batch, 1, context) for copy in range(copies)]
            q = torch.randn(batch, H, D, device="cuda", dtype=torch.bfloat16)
            calls = [partial(attention_op.paged_attention, q, *pools, rows, D**-0.5) for rows in steps]
            yield f"decode {context} x {batch}", calls, batch * (context * K * D * 4 + 2 * H * D * 2)


def prefill_cases(pools: tuple[torch.Tensor, torch.Tensor]) -> Iterator[tuple[str, Callable[[], Any], Any, float]]:
    """Name, call, torch's fused attention for the same, and operations."""
    for length, context in ((2048, 2048), (8192, 8192), (512, 8192)):
        q = torch.randn(length, H, D, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.randn(1, K, context, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        rows = rows_at(0, 1, length, context)
        theirs = None
        if length == context:
            heads = q.transpose(0, 1)[None].contiguous()
            theirs = partial(F.scaled_dot_product_attention, heads, k, v, is_causal=True, enable_gqa=True)
        call = partial(attention_op.paged_attention, q, *pools, rows, D**-0.5)
        yield f"prefill {length} of {context}", call, theirs, 4 * H * D * length * (context - length / 2)


def attention_times(roof: Roof, gigabytes: float = 34) -> dict[str, Any]:
    pages = int(gigabytes * 2**30) // (16 * K * D * 4)
    pools = tuple(torch.empty(pages, 16, K, D, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
    found: dict[str, Any] = {}
    for name, calls, moved in decode_cases(pools):
        seconds = graph_seconds(calls)
        found[name] = {"us": seconds * 1e6, "of the roof": roof.seconds(moved, 0) / seconds}
    for name, call, theirs, flops in prefill_cases(pools):
        seconds = graph_seconds([call], 10)
        found[name] = {"us": seconds * 1e6, "of the roof": roof.seconds(0, flops) / seconds}
        if theirs is not None:
            found[name]["torch us"] = graph_seconds([theirs], 10) * 1e6
    return found


DECODES = ("decode 2048 x 1", "decode 2048 x 64", "decode 8192 x 16")
DECODE_BLOCKS = ((64, 4, 2), (64, 4, 1), (64, 4, 3), (32, 4, 3), (128, 8, 1), (128, 4, 1), (64, 2, 2), (64, 8, 2))
PREFILL_BLOCKS = ((64, 8, 2), (64, 8, 1), (128, 8, 1), (64, 4, 2), (32, 8, 3), (128, 8, 2))
"""Keys at a time, warps, how far ahead."""


def tuned(roof: Roof) -> dict[str, Any]:
    """Decode and prefill with other blocks than the default."""
    pools = tuple(torch.empty(1 << 17, 16, K, D, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
    decodes = [case for case in decode_cases(pools) if case[0] in DECODES]
    default, shortest, found = attention_op.blocks_of, attention_tiles.MIN_SPLIT, dict[str, Any]()
    for split, blocks in ((512, DECODE_BLOCKS[:1]), (128, DECODE_BLOCKS[:1]), (shortest, DECODE_BLOCKS)):
        attention_tiles.MIN_SPLIT = split
        for each in blocks:
            attention_op.blocks_of = partial(_blocks, default, each)
            for name, calls, moved in decodes:
                found[f"{name}: {each}, split {split}"] = _timed(calls, roof.seconds(moved, 0))
    for each in PREFILL_BLOCKS:
        attention_op.blocks_of = partial(_blocks, default, each)
        for name, call, _, flops in prefill_cases(pools):
            if name == "prefill 8192 of 8192":
                found[f"{name}: {each}"] = _timed([call], roof.seconds(0, flops))
    attention_op.blocks_of = default
    return found


def _blocks(default: Callable[..., Any], each: tuple[int, int, int], *given: Any) -> Any:
    return replace(default(*given), n=each[0], warps=each[1], ahead=each[2])


def _timed(calls: list[Callable[[], Any]], least: float) -> dict[str, Any]:
    try:
        seconds = graph_seconds(calls, 10)
        return {"us": seconds * 1e6, "of the roof": least / seconds}
    except Exception as error:  # blocks that need more than this GPU has
        return {"error": str(error)[:100]}


def run(tune: bool = False) -> dict[str, Any]:
    roof = Roof.measured()
    found = {"GB/s": roof.bandwidth / 1e9, "TFLOP/s": roof.flops / 1e12, **attention_times(roof)}
    torch.cuda.empty_cache()
    found |= adapter_times(graph_seconds, roof.bandwidth)
    found |= product_times(graph_seconds, roof.seconds)
    return {**found, **(tuned(roof) if tune else {})}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    for name, value in run("--tune" in sys.argv).items():
        print(name, json.dumps(_rounded(value)))
