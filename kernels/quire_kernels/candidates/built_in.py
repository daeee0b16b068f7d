"""The implementations of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from quire_kernels import attention, ops
from quire_kernels.candidates.protocols import Implementation

BUILT_IN = "built-in"
"""Plugin name of this package's implementations in reports."""

PLAIN = "plain"
"""The page layout that the op table describes."""

STORES = ("write_kv", "rotary_write_kv")
"""Ops that must write pages in the layout that `paged_attention` reads."""

PAGED = ("paged_attention", *STORES, "read_kv")

REFERENCE = "quire_kernels.reference"
QUANTIZED_PAGES = "quire_kernels.quantized_pages"


@dataclass(frozen=True)
class BuiltIn:
    """An implementation in plain torch, in the module of that name; it runs for every query."""

    name: str
    op: str
    module: str
    priority: int
    layout: str = PLAIN
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False
    attention_options: tuple[str, ...] = attention.OPTIONS

    def supports(self, query: Any) -> str | None:
        return None

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(self.module), self.op)
        return found


def built_in() -> list[tuple[str, Implementation]]:
    """This package's implementations, as pairs of plugin name and implementation."""
    from quire_kernels.cpu.implementations import implementations
    from quire_kernels.pytorch import ops as torch_ops
    from quire_kernels.triton_gpu.ops import MODULES, TritonOp

    found: list[Implementation] = [*implementations(), *map(TritonOp, MODULES)]
    found += [BuiltIn("torch", op, torch_ops.__name__, 1) for op in ops.TABLE if op in torch_ops.__all__]
    found += [BuiltIn("reference", op, REFERENCE, 0) for op in ops.TABLE]
    found += [
        BuiltIn(f"torch-{kv}", op, QUANTIZED_PAGES, 0, kv_dtypes=(kv,)) for kv in ("int8", "int4") for op in PAGED
    ]
    return [(BUILT_IN, impl) for impl in found]
