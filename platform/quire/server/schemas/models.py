"""The bodies of requests and responses about models that come and go."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from quire.server.schemas.responses import ModelCard
from quire.types.request_model import RequestModel


class LoadModelRequest(RequestModel):
    """`POST /v1/load_model`.

    name: by which requests call the model. model: a folder or hub id, as on the command line. settings: of this model,
    named as flags are; flags of the command line are the defaults. wait: respond when the model is ready; else at once,
    and `GET /v1/models/{name}` shows its state.
    """

    name: str
    model: str
    settings: dict[str, Any] = Field(default_factory=dict)
    wait: bool = True


class UnloadModelRequest(RequestModel):
    """`POST /v1/unload_model`. force: end the running requests of the model instead of waiting for them."""

    name: str
    force: bool = False


class ModelBytes(BaseModel):
    """Bytes of memory that a model takes. weights: an upper bound. state: of recurrent blocks."""

    weights: int
    kv_cache: int
    state: int


class ModelDetails(ModelCard):
    """One model or adapter. progress: fraction of the weights that is loaded. error: why it could not be loaded.

    bytes: null until it is loaded. adapters: names of the adapters of the model.
    """

    state: Literal["unloaded", "loading", "ready", "sleeping", "draining", "failed"]
    progress: float
    error: str | None
    bytes: ModelBytes | None
    adapters: list[str]


class UnloadedModel(BaseModel):
    """A model was unloaded, or its load was ended."""

    id: str
    object: Literal["model"]
    deleted: bool
