"""What computes the calls of `paged_attention` that a library cannot, such as those of tokens that see ahead."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch

from quire_kernels.attention import PagedAttention


def attention_on(device: torch.device) -> PagedAttention:
    """The best of Quire's own implementations, which read the same pages."""
    return _triton() if device.type == "cuda" and find_spec("triton") else _torch()


@cache
def _triton() -> PagedAttention:
    found: PagedAttention = import_module("quire_kernels.triton_gpu.attention.op").paged_attention
    return found


@cache
def _torch() -> PagedAttention:
    found: PagedAttention = import_module("quire_kernels.pytorch.attention").paged_attention
    return found
