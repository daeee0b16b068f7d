"""Operations of the device, and ways to keep weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OpQuery:
    """Where an operation would run: device type ("cpu", "cuda"), dtype name, CPU or GPU features.

    page_size: tokens in a page. head_dims: the head dimensions of the model's blocks, if there is a model.
    kv_dtype: how keys and values are kept, "auto" (as the dtype says) or "int8". needs: names of the implementations
    without which the model's answers are wrong.
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

    supports: None, or the reason why not here. load: imports or compiles and returns a callable
    with the op's signature. Among those that support a query the highest priority wins. layout: how
    paged_attention, write_kv and rotary_write_kv have keys and values lie in a page; they are chosen so that it is
    the same for all three. "plain" is what the op table describes. kv_dtypes: values of `OpQuery.kv_dtype` that these
    three can do; "int8" makes pools int8, with four bytes more per head for a scale. on_request: it is only for models
    that name it in `Architecture.needs_ops` or `needs_ops` of a part.
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
    """A way to hold a model's matrices in fewer bits, chosen by `--quantization`.

    linear: picks or makes, of the chosen operations (`quire_kernels.select.Ops`), what binds every matrix that is
    quantised: those of the blocks and the head, as `quire_kernels.ops.Linear` does. A product that it gives should have
    `unpacked`: then the original weight is let go of. supports: None, or why it cannot run there.
    """

    name: str
    linear: Callable[[Any], Any]
    supports: Callable[[OpQuery], str | None] = lambda query: None
