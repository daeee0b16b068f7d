"""The bodies of requests and responses about adapters."""

from __future__ import annotations

from pydantic import BaseModel, Field

from quire.types.request_model import RequestModel


class AdapterChoice(RequestModel):
    """One of the adapters that a request uses. weight: factor of its delta."""

    name: str = Field(min_length=1)
    weight: float = 1.0


class LoadAdapterRequest(RequestModel):
    """`POST /v1/load_lora_adapter`.

    base_model_name: the adapter's model, if several are served. load_inplace: replace an adapter of the same name;
    requests in flight finish on the old weights. pinned: never evict it from host memory. wait: respond when it is
    loaded; else at once, and `GET /v1/adapters` shows its state.
    """

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    pinned: bool = False
    wait: bool = True
    is_3d_lora_weight: bool = False


class UnloadAdapterRequest(RequestModel):
    """`POST /v1/unload_lora_adapter`. lora_int_id: ignored, accepted for compatibility with vLLM."""

    lora_name: str
    lora_int_id: int | None = None


class AdapterRow(BaseModel):
    """One adapter: its origin, state, size and number of requests."""

    id: str
    object: str
    parent: str
    root: str
    revision: int
    state: str
    error: str | None
    tier: str | None
    kind: str
    rank: int
    bytes: int
    targets: list[str]
    virtual_tokens: int
    pinned: bool
    requests: int
    requests_total: int


class AdapterList(BaseModel):
    """All adapters, also those that are loading, failed, or unloaded but still used by requests in flight."""

    object: str
    data: list[AdapterRow]
