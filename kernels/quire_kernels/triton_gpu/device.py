"""What a kernel may use of the device it runs on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

INTERPRETED = 227 << 10
"""Shared memory assumed by Triton's interpreter: that of an H100."""


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    return INTERPRETED if device.type == "cpu" else _shared_memory(driver.active, device.index or 0)


def arrivals(device: torch.device, count: int) -> Tensor:
    """Zeros, int32 [count]: counters that the launches of one stream use one after the other, each leaving zeros."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _arrivals(device, stream, max(1 << 16, 1 << (count - 1).bit_length()))


@cache
def _arrivals(device: torch.device, stream: int, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


@cache
def _shared_memory(active: Any, index: int) -> int:
    found: int = active.utils.get_device_properties(index)["max_shared_mem"]
    return found
