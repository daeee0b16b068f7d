"""The bodies of the requests and answers about adapters."""

from __future__ import annotations

from pydantic import BaseModel, Field

from quire.server.schema_base import RequestModel


class AdapterChoice(RequestModel):
    """One of several adapters that work on a request. weight: what its share is multiplied by."""

    name: str = Field(min_length=1)
    weight: float = 1.0


class LoadAdapterRequest(RequestModel):
    """`POST /v1/load_lora_adapter`.

    base_model_name: the model it is for, where several are served. load_inplace: it may replace one of that name;
    requests in flight finish on the old weights. pinned: it stays in host memory. wait: answer when requests are
    answered; else at once, and `GET /v1/adapters` tells how it goes.
    """

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    pinned: bool = False
    wait: bool = True
    is_3d_lora_weight: bool = False


class UnloadAdapterRequest(RequestModel):
    """`POST /v1/unload_lora_adapter`. lora_int_id is taken and not used, as vLLM has it."""

    lora_name: str
    lora_int_id: int | None = None


class AdapterRow(BaseModel):
    """One adapter: where it comes from, where it is, who uses it."""

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
    pinned: bool
    requests: int
    requests_total: int


class AdapterList(BaseModel):
    """All adapters, those too that are being loaded, could not be, or are only kept for requests in flight."""

    object: str
    data: list[AdapterRow]
