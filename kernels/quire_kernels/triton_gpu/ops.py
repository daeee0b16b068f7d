"""Triton implementations as candidates for `quire_kernels.select`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MODULES = {"low_rank": "quire_kernels.triton_gpu.low_rank"}
"""Op name -> module that implements it."""


@dataclass(frozen=True)
class TritonOp:
    """One op implemented in Triton."""

    op: str
    name: str = "triton"
    priority: int = 2
    layout: str = "plain"
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False
    attention_options: tuple[str, ...] = ()

    def supports(self, query: Any) -> str | None:
        """Returns None, or why the op cannot run for this query."""
        if query.device != "cuda":
            return "it is for GPUs"
        if query.dtype not in ("float32", "float16", "bfloat16"):
            return f"it computes in float32, float16 and bfloat16, not {query.dtype}"
        return None if find_spec("triton") else "triton is not installed"

    def load(self) -> Callable[..., Any]:
        """Import the op; its kernels are compiled at their first call."""
        function: Callable[..., Any] = getattr(import_module(MODULES[self.op]), self.op)
        return function
