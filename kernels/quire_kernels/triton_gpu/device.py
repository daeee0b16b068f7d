"""What a kernel may use of the device it runs on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from triton.runtime import driver

INTERPRETED = 227 << 10
"""Shared memory assumed by Triton's interpreter: that of an H100."""


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may use."""
    return INTERPRETED if device.type == "cpu" else _shared_memory(driver.active, device.index or 0)


@cache
def _shared_memory(active: Any, index: int) -> int:
    found: int = active.utils.get_device_properties(index)["max_shared_mem"]
    return found
