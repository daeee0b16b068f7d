"""The messages about models that are loaded and unloaded while others are served."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from quire.engine_process.wire.message import WireMessage
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo
from quire.types.adapter_info import AdapterInfo

MIN_PROGRESS, PROGRESS_EVERY_S = 0.01, 0.1
"""A smaller part of the weights, or a shorter time, is not worth a message, which both step loop and server handle."""


class LoadModel(WireMessage, frozen=True, tag=True):
    """Load one more model while the others run; answered by `ModelLoaded` or `CallFailed` with the same call id."""

    call_id: int
    config: ModelConfig


class UnloadModel(WireMessage, frozen=True, tag=True):
    """Unload a model, or end its load; answered by `UnloadDone`, when its memory is free, or `CallFailed`."""

    call_id: int
    model: str


class SleepModel(WireMessage, frozen=True, tag=True):
    """Free the KV cache of a model, and its weights unless `keep_weights` is set and they can stay without it.

    The model takes no requests then. Answered by `ModelSleeps`, when the memory is free, or `CallFailed`.
    """

    call_id: int
    config: ModelConfig
    keep_weights: bool


class WakeModel(WireMessage, frozen=True, tag=True):
    """Restore a model that sleeps, and these adapters, which are read when requests need them; answered by
    `ModelLoaded` or `CallFailed`. kv_cache False: load its weights only, if its device can do without a KV cache;
    answered by `ModelSleeps`.
    """

    call_id: int
    config: ModelConfig
    adapters: list[AdapterInfo]
    kv_cache: bool = True


class ModelProgress(WireMessage, frozen=True, tag=True):
    """How much of the weights of a model is loaded, from 0 to 1."""

    model: str
    fraction: float


class ModelLoaded(WireMessage, frozen=True, tag=True):
    """Answer to `LoadModel` and `WakeModel`: the model takes requests."""

    call_id: int
    info: ModelInfo


class ModelSleeps(WireMessage, frozen=True, tag=True):
    """Answer to `SleepModel` and `WakeModel`: the model has the memory that was asked for, and takes no requests.

    has_weights: whether its weights are loaded.
    """

    call_id: int
    has_weights: bool


def progress_reporter(name: str, send: Callable[[ModelProgress], None]) -> Callable[[float], None]:
    """Sends the progress of a load in steps of at least `MIN_PROGRESS` and `PROGRESS_EVERY_S`, the first at once."""
    last, sent = 0.0, -math.inf

    def report(fraction: float) -> None:
        nonlocal last, sent
        if fraction - last >= MIN_PROGRESS and (now := time.monotonic()) - sent >= PROGRESS_EVERY_S:
            last, sent = fraction, now
            send(ModelProgress(name, fraction))

    return report
