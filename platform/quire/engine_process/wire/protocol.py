"""The messages between the API process and the engine process, and their encoding (msgpack).

`Submit` has its own form of a request, since the parameter types need a tag and tensors travel as raw bytes. All other
messages carry frozen dataclasses of `quire.types` unchanged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.engine_process.replicas.share import ReplicaShare
from quire.engine_process.wire.adapter_changes import (
    AdapterChanged,
    AdapterListReply,
    AdapterLoaded,
    ListAdapters,
    LoadAdapter,
    RegisterAdapter,
    UnloadAdapter,
)
from quire.engine_process.wire.error_info import ErrorInfo
from quire.engine_process.wire.media import WireMedia, pack_media, unpack_media
from quire.engine_process.wire.memory_plan import MemoryPlan
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.model_changes import (
    LoadModel,
    ModelLoaded,
    ModelProgress,
    ModelSleeps,
    SleepModel,
    UnloadModel,
    WakeModel,
)
from quire.errors import BadRequest
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import EngineStats, ModelInfo, Prompt, Request, SeqDelta, WeightedAdapter
from quire.types.adapter_info import AdapterInfo
from quire.types.request import Params

# --- from the API process to the engine process ----------------------------------------------------


class Start(WireMessage, frozen=True, tag=True, kw_only=True):
    """The first message: load these plugins, then these models one after another, then these adapters.

    added: names of the models that were loaded while an earlier engine process ran; one that cannot be loaded again is
    left out. known_adapters: adapters that an earlier engine process had loaded. They are registered now and read when
    a request needs them. share: what the process may take of the machine; None = all. kv_events: the object of
    --kv-events-config. memory: what all models together may take.
    """

    models: list[ModelConfig]
    added: list[str] = msgspec.field(default_factory=list)
    plugins: list[str] | None = None
    options: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    enable_lora: bool = False
    plugin_max_faults: int = 100
    log_level: str = "info"
    log_format: str = "text"
    sys_path: list[str] = msgspec.field(default_factory=list)
    adapters: list[AdapterInfo] = msgspec.field(default_factory=list)
    known_adapters: list[AdapterInfo] = msgspec.field(default_factory=list)
    share: ReplicaShare | None = None
    kv_events: dict[str, Any] = msgspec.field(default_factory=dict)
    memory: MemoryPlan = MemoryPlan()


# msgspec cannot tell untagged dataclasses apart.
class _SamplingParams(msgspec.Struct, frozen=True, tag="sampling"):
    params: SamplingParams


class _BeamSearchParams(msgspec.Struct, frozen=True, tag="beam_search"):
    params: BeamSearchParams


class _PoolingParams(msgspec.Struct, frozen=True, tag="pooling"):
    params: PoolingParams


def _with_tag(params: Params) -> _SamplingParams | _BeamSearchParams | _PoolingParams:
    if isinstance(params, SamplingParams):
        return _SamplingParams(params)
    return _BeamSearchParams(params) if isinstance(params, BeamSearchParams) else _PoolingParams(params)


class Submit(WireMessage, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Run a request on a model. The prompt's text is not sent: engines work on token ids."""

    model: str
    id: str
    token_ids: tuple[int, ...]
    params: _SamplingParams | _BeamSearchParams | _PoolingParams
    token_types: tuple[int, ...] = ()
    media: tuple[WireMedia, ...] = ()
    adapters: tuple[WeightedAdapter, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    client: str = ""

    @classmethod
    def from_request(cls, model: str, request: Request) -> Submit:
        return cls(
            model=model,
            id=request.id,
            token_ids=request.prompt.token_ids,
            params=_with_tag(request.params),
            token_types=request.prompt.token_types,
            media=tuple(map(pack_media, request.prompt.media)),
            adapters=request.adapters,
            priority=request.priority,
            cache_salt=request.cache_salt,
            client=request.client,
        )

    def to_request(self) -> Request:
        media = tuple(map(unpack_media, self.media))
        return Request(
            id=self.id,
            prompt=Prompt(token_ids=self.token_ids, media=media, token_types=self.token_types),
            params=self.params.params,
            adapters=self.adapters,
            priority=self.priority,
            cache_salt=self.cache_salt,
            client=self.client,
        )


class Abort(WireMessage, frozen=True, tag=True):
    """Stop one seq of a request, or the whole request (`index` None)."""

    model: str
    request_id: str
    index: int | None = None


class GetStats(WireMessage, frozen=True, tag=True):
    """Report statistics; answered by `StatsReply`."""

    call_id: int


class Ping(WireMessage, frozen=True, tag=True):
    """Answer with `Pong` between two steps."""


class Shutdown(WireMessage, frozen=True, tag=True):
    """Notify the plugins and exit."""


# --- from the engine process to the API process ----------------------------------------------------


class Ready(WireMessage, frozen=True, tag=True):
    """The models and adapters of `Start` are loaded, except those models of `Start.added` that `failed` names.

    memory_limit: bytes that all models together may take, 0 = not known.
    """

    models: list[ModelInfo]
    adapters: list[AdapterInfo] = msgspec.field(default_factory=list)
    failed: dict[str, ErrorInfo] = msgspec.field(default_factory=dict)
    memory_limit: int = 0


class EngineFailed(WireMessage, frozen=True, tag=True):
    """The engine process exits: a plugin or model of `Start` could not be loaded, or steps keep failing."""

    error: ErrorInfo


class StepOutputs(WireMessage, frozen=True, tag=True):
    """All deltas of one step of one model."""

    deltas: list[SeqDelta]


class RequestRejected(WireMessage, frozen=True, tag=True):
    """The engine did not accept a `Submit`."""

    request_id: str
    error: ErrorInfo


class UnloadDone(WireMessage, frozen=True, tag=True):
    """A model or an adapter was unloaded."""

    call_id: int


class CallFailed(WireMessage, frozen=True, tag=True):
    """A model or an adapter could not be loaded or unloaded."""

    call_id: int
    error: ErrorInfo


class Pong(WireMessage, frozen=True, tag=True):
    """Answer to `Ping`: the step loop is running."""


class StatsReply(WireMessage, frozen=True, tag=True):
    """Statistics of every model, and calls, errors and seconds per plugin."""

    call_id: int
    engines: list[EngineStats]
    plugins: list[dict[str, Any]]


_ToAdapters = LoadAdapter | RegisterAdapter | UnloadAdapter | ListAdapters
_ToModels = LoadModel | UnloadModel | SleepModel | WakeModel
ToEngine = Start | Submit | Abort | _ToModels | _ToAdapters | GetStats | Ping | Shutdown
_Reply = ModelLoaded | ModelSleeps | UnloadDone | AdapterLoaded | AdapterListReply | StatsReply | CallFailed
_Event = RequestRejected | ModelProgress | AdapterChanged
FromEngine = Ready | EngineFailed | StepOutputs | Pong | _Event | _Reply

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: WireMessage) -> bytes:
    """Encode a message. Raises BadRequest for a value that cannot be encoded; only requests can contain one."""
    try:
        return _encoder.encode(message)
    except OverflowError as error:
        raise BadRequest("A number in the request does not fit in 64 bits.") from error
    except TypeError as error:
        raise BadRequest(f"A value in the request cannot be sent to the model: {error}.") from error


class MalformedRequest(msgspec.Struct, frozen=True):
    """Stands in for a `Submit` that could not be decoded. It is never sent."""

    request_id: str
    error: ErrorInfo


def decode_to_engine(data: bytes | memoryview) -> ToEngine | MalformedRequest:
    """Decode a message of the API process. Raises msgspec.ValidationError if any but a `Submit` is malformed."""
    try:
        return _to_engine.decode(data)
    except msgspec.ValidationError as error:
        raw = msgspec.msgpack.decode(data)
        if raw.get("type") != Submit.__name__:
            raise
        return MalformedRequest(
            str(raw.get("id")), ErrorInfo(BadRequest.__name__, f"The request cannot be read: {error}.")
        )


decode_from_engine = _from_engine.decode
"""Decodes a message of the engine process. The bound method itself: it runs for every step, and each call costs."""
