"""Time per operation: from the model's own profile and from torch.profiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import nn


class OpTime(NamedTuple):
    """One operation over a whole run. bytes, flops: totals over all calls, if known."""

    name: str
    calls: int
    seconds: float
    bytes: float | None = None
    flops: float | None = None


class OpProfile(Protocol):
    """A model's profile of its own operations."""

    def rows(self) -> Iterable[Sequence[Any]]:
        """(name, calls, seconds) or all fields of `OpTime` for each operation; called after the profile has ended."""
        ...


@runtime_checkable
class OpProfiler(Protocol):
    """A model that can time its own operations, because it runs many of them in one native call."""

    def profile(self) -> AbstractContextManager[OpProfile]:
        """A context manager that profiles while it is open."""
        ...


def times_of_model(model: nn.Module, run: Callable[[], object]) -> list[OpTime] | None:
    """Times of operations as the model reports them for `run`, longest first; None if it does not."""
    if not isinstance(model, OpProfiler):
        return None
    with model.profile() as profile:
        run()
    return sorted((OpTime(*row) for row in profile.rows()), key=lambda op: -op.seconds)


def times_of_torch(device: torch.device, run: Callable[[], object]) -> tuple[list[OpTime], float]:
    """Returns own times of all torch operations during `run`, longest first, and the seconds of the run.

    On a GPU these are device times, otherwise CPU times of the calling thread.
    """
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as profiler:
        start = time.perf_counter()
        run()
        elapsed_s = time.perf_counter() - start
    times = [
        OpTime(event.key, event.count, (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6)
        for event in profiler.key_averages()
    ]
    return sorted(times, key=lambda op: -op.seconds), elapsed_s
