"""What implementations of ops state about themselves, and what a model asks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Query(Protocol):
    """Where the ops will run; `quire.records.OpQuery` is one."""

    @property
    def device(self) -> str:
        """Device type: cpu, cuda."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the data type: float32, float16, bfloat16."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Head dimensions of the model's blocks, each once."""
        ...

    @property
    def kv_dtype(self) -> str:
        """Data type of cached keys and values: auto (the model's data type), int8 or int4."""
        ...

    @property
    def attention_options(self) -> frozenset[str]:
        """Those of `quire_kernels.attention.OPTIONS` that the model's blocks use."""
        ...

    @property
    def attention_backend(self) -> str:
        """Name of the implementation of `paged_attention` that is asked for; auto: the one of the highest priority."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Names of implementations that the model requires; these are preferred to all others."""
        ...


class Implementation(Protocol):
    """An implementation of an op; `quire.records.OpImpl` is one."""

    @property
    def name(self) -> str:
        """Name of the implementation in reports."""
        ...

    @property
    def op(self) -> str:
        """Name of the op in the op table."""
        ...

    @property
    def supports(self) -> Callable[[Any], str | None]:
        """Returns None if the implementation can run for a query, else the reason why not."""
        ...

    @property
    def load(self) -> Callable[[], Callable[..., Any]]:
        """Imports or compiles the implementation and returns the callable."""
        ...

    @property
    def priority(self) -> int:
        """The implementation with the highest priority is chosen."""
        ...

    @property
    def layout(self) -> str:
        """Layout of keys and values in a page; "plain" is [page_size, heads, head_dim]."""
        ...

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Values of `Query.kv_dtype` that it supports, if it reads or writes pages."""
        ...

    @property
    def on_request(self) -> bool:
        """Whether it is chosen only for models that require it by name."""
        ...

    @property
    def attention_options(self) -> tuple[str, ...]:
        """Values of `Query.attention_options` that it supports, if it reads or writes pages."""
        ...
