"""Implementations of operations on a device, and quantizations of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OpQuery:
    """The conditions under which an operation would run: device type ("cpu", "cuda"), dtype name, device features.

    page_size: tokens in a page. head_dims: head dimensions of the model's blocks, () without a model.
    kv_dtype: how keys and values are stored, "auto" (as `dtype`) or "int8". needs: names of the implementations
    without which the model's answers would be wrong.
    """

    device: str
    dtype: str
    features: frozenset[str] = frozenset()
    page_size: int = 16
    head_dims: tuple[int, ...] = ()
    kv_dtype: str = "auto"
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OpImpl:
    """An implementation of an operation in `quire_kernels.ops`.

    supports: returns None, or the reason why it cannot run under these conditions. load: imports or compiles, and
    returns a callable with the signature of the operation. Of the implementations that support a query the one with
    the highest priority is chosen.
    layout: how paged_attention, write_kv and rotary_write_kv arrange keys and values within a page; the three are
    chosen so that they agree. "plain" is the layout in `quire_kernels.ops`. kv_dtypes: values of `OpQuery.kv_dtype`
    that these three support; with "int8" the pools are int8, with four more bytes per head for a scale.
    on_request: it is chosen only for models that name it in `needs_ops` of the `Architecture` or of a part.
    """

    name: str
    op: str
    supports: Callable[[OpQuery], str | None]
    load: Callable[[], Callable[..., Any]]
    priority: int = 0
    layout: str = "plain"
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False


@dataclass(frozen=True)
class Quantization:
    """A way to store a model's matrices in fewer bits, chosen by `--quantization`.

    linear: picks or makes, from the chosen operations (`quire_kernels.select.Ops`), the function that binds every
    quantized matrix (those of the blocks and the head), a `quire_kernels.ops.LinearOp`. What it returns should have
    `unpacked`: then the original weight is freed. supports: returns None, or the reason why it cannot run there.
    """

    name: str
    linear: Callable[[Any], Any]
    supports: Callable[[OpQuery], str | None] = lambda query: None
