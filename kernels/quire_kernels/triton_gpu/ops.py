"""Triton implementations as candidates for `quire_kernels.select`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from quire_kernels import attention

MODULES = {
    "fused_blocks": "quire_kernels.triton_gpu.fused_blocks",
    "linear": "quire_kernels.triton_gpu.linear",
    "linear_int8": "quire_kernels.triton_gpu.quantized.int8",
    "linear_quantized": "quire_kernels.triton_gpu.quantized.op",
    "low_rank": "quire_kernels.triton_gpu.low_rank",
    "moe": "quire_kernels.triton_gpu.moe",
    "paged_attention": "quire_kernels.triton_gpu.attention.op",
    **dict.fromkeys(("rotary", "write_kv", "rotary_write_kv", "read_kv"), "quire_kernels.triton_gpu.pages"),
    **dict.fromkeys(("rms_norm", "add_rms_norm", "layer_norm"), "quire_kernels.triton_gpu.rows.norms"),
    **dict.fromkeys(("act", "gated_act", "scale_logits"), "quire_kernels.triton_gpu.rows.acts"),
    "causal_conv": "quire_kernels.triton_gpu.state.convolution",
    "gated_delta": "quire_kernels.triton_gpu.state.delta",
    "gated_rms_norm": "quire_kernels.triton_gpu.state.norm",
    **dict.fromkeys(("ssd_scan", "selective_scan"), "quire_kernels.triton_gpu.state.mamba"),
    "sample": "quire_kernels.triton_gpu.rows.sampling",
    **dict.fromkeys(("argmax", "mask_logits"), "quire_kernels.triton_gpu.rows.logits"),
}
"""Op name -> module that implements it."""

OLDEST = 80
"""The oldest compute capability for whose multiprocessors the kernels are written."""

WIDEST = 576
"""Maximum width of keys; wider ones do not fit shared memory beside their values."""


@dataclass(frozen=True)
class TritonOp:
    """One op implemented in Triton."""

    op: str
    name: str = "triton"
    priority: int = 2
    layout: str = "plain"
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False
    attention_options: tuple[str, ...] = attention.OPTIONS

    def supports(self, query: Any) -> str | None:
        """Returns None, or why the op cannot run for this query."""
        if query.device != "cuda":
            return "it is for GPUs"
        if query.dtype not in ("float32", "float16", "bfloat16"):
            return f"it computes in float32, float16 and bfloat16, not {query.dtype}"
        found = [int(match[1]) for name in query.features if (match := re.fullmatch(r"sm(\d+)", name))]
        if found and found[0] < OLDEST:
            return f"it needs compute capability {OLDEST / 10}, and the GPU has {found[0] / 10}"
        if self.op == "paged_attention" and max(query.head_dims, default=0) > WIDEST:
            return f"its keys have up to {WIDEST} elements, not {max(query.head_dims)}"
        return None if find_spec("triton") else "triton is not installed"

    def load(self) -> Callable[..., Any]:
        """Import the op; its kernels are compiled at their first call."""
        function: Callable[..., Any] = getattr(import_module(MODULES[self.op]), self.op)
        return function
