"""The messages about models that are loaded and unloaded while others are served."""

from __future__ import annotations

from quire.engine_process.wire.message import WireMessage
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo


class LoadModel(WireMessage, frozen=True, tag=True):
    """Load one more model while the others run; answered by `ModelLoaded` or `CallFailed` with the same call id."""

    call_id: int
    config: ModelConfig


class UnloadModel(WireMessage, frozen=True, tag=True):
    """Unload a model, or end its load; answered by `UnloadDone`, when its memory is free, or `CallFailed`."""

    call_id: int
    model: str


class ModelProgress(WireMessage, frozen=True, tag=True):
    """How much of the weights of a model is loaded, from 0 to 1."""

    model: str
    fraction: float


class ModelLoaded(WireMessage, frozen=True, tag=True):
    """Answer to `LoadModel`: the model takes requests."""

    call_id: int
    info: ModelInfo
