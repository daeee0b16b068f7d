"""Where the time of a run goes by operation: as the model's own profile tells, and as torch.profiler does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import nn


class OpTime(NamedTuple):
    """One operation over a whole run. bytes, flops: read and done in all of its calls, where it is known."""

    name: str
    calls: int
    seconds: float
    bytes: float | None = None
    flops: float | None = None


class OpProfile(Protocol):
    """What a model measured of itself."""

    def rows(self) -> Iterable[Sequence[Any]]:
        """(name, calls, seconds) or all fields of `OpTime`, of each operation; asked when the measuring has ended."""
        ...


@runtime_checkable
class ShowsOps(Protocol):
    """A model that can time its own operations, because it computes many of them in one call."""

    def profile(self) -> AbstractContextManager[OpProfile]:
        """Measures while it is open."""
        ...


def times_of_model(model: nn.Module, run: Callable[[], object]) -> list[OpTime] | None:
    """What the model tells of its operations during `run`, the longest first; None if it tells nothing."""
    if not isinstance(model, ShowsOps):
        return None
    with model.profile() as profile:
        run()
    return sorted((OpTime(*row) for row in profile.rows()), key=lambda op: -op.seconds)


def times_of_torch(device: torch.device, run: Callable[[], object]) -> tuple[list[OpTime], float]:
    """Every torch operation during `run` by its own time, without those it calls; the longest first. And the run's.

    On a GPU it is the device's time, elsewhere that of the thread that calls.
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
