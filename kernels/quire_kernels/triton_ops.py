"""What the Triton ops offer to `quire_kernels.select`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

MODULES = {"low_rank": "quire_kernels.triton_low_rank"}
"""Op → where it is."""


@dataclass(frozen=True)
class TritonOp:
    """One op in Triton."""

    op: str
    name: str = "triton"
    priority: int = 2
    layout: str = "plain"
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False

    def supports(self, query: Any) -> str | None:
        """None, or why it cannot run there."""
        if query.device != "cuda":
            return "it is for GPUs"
        if query.dtype not in ("float32", "float16", "bfloat16"):
            return f"it computes in float32, float16 and bfloat16, not {query.dtype}"
        return None if find_spec("triton") else "triton is not installed"

    def load(self) -> Callable[..., Any]:
        """Import it; kernels are compiled when they are first needed."""
        function: Callable[..., Any] = getattr(import_module(MODULES[self.op]), self.op)
        return function
