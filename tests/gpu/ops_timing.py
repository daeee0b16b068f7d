"""Times of the Triton ops on this machine's GPU beside their roof.

PYTHONPATH=platform:kernels:models:adapters:plugins python tests/gpu/ops_timing.py

The roof is the larger of the bytes that an op must move over the rate of a large copy, and of its operations over the
rate of a large product; both rates are measured first. Every launch is timed in a CUDA graph of launches on different
memory, so that nothing is found in the L2 cache that a model would not find there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton
from product_timing import adapter_times, product_times

from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.attention.op import paged_attention
from quire_kernels.triton_gpu.tuning.timing import CACHE_BYTES, graph_seconds

H, K, D = 32, 8, 128
"""Heads of an 8B model."""


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
            calls = [partial(paged_attention, q, *pools, rows, D**-0.5) for rows in steps]
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
        call = partial(paged_attention, q, *pools, rows, D**-0.5)
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


def run() -> dict[str, Any]:
    roof = Roof.measured()
    found = {"GB/s": roof.bandwidth / 1e9, "TFLOP/s": roof.flops / 1e12, **attention_times(roof)}
    torch.cuda.empty_cache()
    found |= adapter_times(graph_seconds, roof.bandwidth)
    return found | product_times(graph_seconds, roof.seconds)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    for name, value in run().items():
        print(name, json.dumps(_rounded(value)))
