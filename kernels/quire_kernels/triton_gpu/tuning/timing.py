"""Times of launches on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

CACHE_BYTES = 1 << 28
"""Several times the L2 cache: calls that are timed use different memory of so many bytes together."""


def graph_seconds(calls: Sequence[Callable[[], Any]], repeats: int = 20) -> float:
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
