"""What a kernel may use of the device it runs on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

INTERPRETED = 227 << 10
"""Shared memory assumed by Triton's interpreter: that of an H100."""


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    return INTERPRETED if device.type == "cpu" else _shared_memory(driver.active, device.index or 0)


def launches_overlap(device: torch.device) -> bool:
    """Whether a kernel may begin before the one ahead of it has ended (programmatic dependent launch)."""
    return device.type != "cpu" and _capability(driver.active) >= 90


def overlapping(device: torch.device) -> dict[str, Any]:
    """Options of the launch of a kernel that calls `await_previous_launch` with OVERLAPS."""
    overlaps = launches_overlap(device)
    return {"OVERLAPS": overlaps, "launch_pdl": overlaps}


@triton.jit
def await_previous_launch(OVERLAPS: tl.constexpr):
    """Wait until the launch ahead has ended, then let the one behind begin.

    What a kernel reads before must not come from the launch ahead of it. All launches before that one have ended, if it
    calls this too. A kernel must not write before. At least one program of each waits, so that its end is that of the
    launches ahead.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def arrivals(device: torch.device, count: int) -> Tensor:
    """Zeros, int32 [count]: counters that the launches of one stream use one after the other, each leaving zeros.

    In a captured step they are those of earlier launches on the stream; if there were none, the step sets its own to 0.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    size = max(1 << 16, 1 << (count - 1).bit_length())
    found = _arrivals(device).get((stream, size))
    if found is None:
        found = torch.zeros(size, dtype=torch.int32, device=device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _arrivals(device)[stream, size] = found
    return found


@cache
def _arrivals(device: torch.device) -> dict[tuple[int, int], Tensor]:
    """By stream and size."""
    return {}


@cache
def _capability(active: Any) -> int:
    found: int = active.get_current_target().arch
    return found


@cache
def _shared_memory(active: Any, index: int) -> int:
    found: int = active.utils.get_device_properties(index)["max_shared_mem"]
    return found
