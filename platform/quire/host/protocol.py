"""What the API process and the host say to each other, and how it becomes bytes (msgpack).

Requests are flattened first: the kind of their parameters is told by which field is set, and tensors of
media travel as raw bytes. Everything else is the contract's frozen dataclasses as they are.
It knows no sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from quire.config import ModelConfig
from quire.errors import STATUS_BY_TYPE_NAME, BadRequest, ConfigError, PluginError, QuireError, StartupError
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import AdapterRef, Delta, EngineStats, Media, ModelInfo, Prompt, Request

if TYPE_CHECKING:
    from torch import Tensor


class Message(msgspec.Struct, frozen=True, tag=True):
    """Anything that is sent."""


# --- from the API process to the host --------------------------------------------------------------


class Start(Message, frozen=True, tag=True, kw_only=True):
    """The first message: load these plugins, then these models, one after another."""

    models: list[ModelConfig]
    plugins: list[str] | None = None
    options: dict[str, dict[str, Any]] = {}
    enable_lora: bool = False
    log_level: str = "info"
    sys_path: list[str] = []


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: dtype name, shape, and its bytes in row-major order."""

    dtype: str
    shape: list[int]
    data: bytes


class WireMedia(msgspec.Struct, frozen=True, kw_only=True):
    """A `types.Media`."""

    modality: str
    start: int
    length: int
    digest: str
    tensors: dict[str, WireTensor]


class Submit(Message, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Run a request on a model. Exactly one of `sampling` and `beams` is set; the prompt's text stays behind."""

    model: str
    id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams | None = None
    beams: BeamSearchParams | None = None
    media: tuple[WireMedia, ...] = ()
    adapter: AdapterRef | None = None
    priority: int = 0
    cache_salt: str | None = None


class Abort(Message, frozen=True, tag=True):
    """Stop one seq of a request, or all of it."""

    model: str
    request_id: str
    index: int | None = None


class Load(Message, frozen=True, tag=True):
    """Load one more model while the others go on; answered by `Loaded` or `Failed` with the same call number."""

    call: int
    config: ModelConfig


class Unload(Message, frozen=True, tag=True):
    """Let go of a model; answered by `Unloaded` or `Failed`."""

    call: int
    model: str


class Ask(Message, frozen=True, tag=True):
    """Report figures; answered by `Figures`."""

    call: int


class Shutdown(Message, frozen=True, tag=True):
    """Tell the plugins and end."""


# --- from the host to the API process --------------------------------------------------------------


class Fault(msgspec.Struct, frozen=True):
    """An error of `quire.errors` by the name of its class."""

    kind: str
    message: str
    param: str | None = None


class Ready(Message, frozen=True, tag=True):
    """The models of `Start` are loaded."""

    models: list[ModelInfo]


class StartFailed(Message, frozen=True, tag=True):
    """A plugin or a model of `Start` could not be loaded; the host ends."""

    fault: Fault


class Deltas(Message, frozen=True, tag=True):
    """Everything that one step of one model gave."""

    deltas: list[Delta]


class Refused(Message, frozen=True, tag=True):
    """A `Submit` was not accepted."""

    request_id: str
    fault: Fault


class Loaded(Message, frozen=True, tag=True):
    """A model was loaded."""

    call: int
    info: ModelInfo


class Unloaded(Message, frozen=True, tag=True):
    """A model is gone."""

    call: int


class Failed(Message, frozen=True, tag=True):
    """A `Load` or `Unload` failed."""

    call: int
    fault: Fault


class Figures(Message, frozen=True, tag=True):
    """Statistics of every model, and calls, errors and seconds per plugin."""

    call: int
    engines: list[EngineStats]
    plugins: list[dict[str, Any]]


ToHost = Start | Submit | Abort | Load | Unload | Ask | Shutdown
FromHost = Ready | StartFailed | Deltas | Refused | Loaded | Unloaded | Failed | Figures

_encoder = msgspec.msgpack.Encoder()
_to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
_from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)


def encode(message: Message) -> bytes:
    """A message as bytes; raises BadRequest for values that cannot be sent, which can only be a client's."""
    try:
        return _encoder.encode(message)
    except OverflowError as error:
        raise BadRequest("A number in the request does not fit in 64 bits.") from error
    except TypeError as error:
        raise BadRequest(f"A value in the request cannot be sent to the model: {error}.") from error


class Unreadable(msgspec.Struct, frozen=True):
    """A `Submit` that was sent but cannot be read; never sent itself."""

    request_id: str
    fault: Fault


def decode_to_host(data: bytes | memoryview) -> ToHost | Unreadable:
    """What the API process sent."""
    try:
        return _to_host.decode(data)
    except msgspec.ValidationError as error:
        raw = msgspec.msgpack.decode(data)
        if raw.get("type") != Submit.__name__:
            raise
        return Unreadable(str(raw.get("id")), Fault(BadRequest.__name__, f"The request cannot be read: {error}."))


decode_from_host = _from_host.decode
"""What the host sent, from its bytes. (Not a function around this: it runs for every step, and each call costs.)"""


def submit(model: str, request: Request) -> Submit:
    """The message that carries a request."""
    params = request.params
    return Submit(
        model=model,
        id=request.id,
        token_ids=request.prompt.token_ids,
        sampling=params if isinstance(params, SamplingParams) else None,
        beams=params if isinstance(params, BeamSearchParams) else None,
        media=tuple(_pack_media(media) for media in request.prompt.media),
        adapter=request.adapter,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def request_of(message: Submit) -> Request:
    """The request that a message carries, without the prompt's text."""
    params = message.sampling or message.beams
    if params is None:
        raise BadRequest("A request came without parameters.")
    media = tuple(_unpack_media(media) for media in message.media)
    return Request(
        id=message.id,
        prompt=Prompt(token_ids=message.token_ids, media=media),
        params=params,
        adapter=message.adapter,
        priority=message.priority,
        cache_salt=message.cache_salt,
    )


def _pack_media(media: Media) -> WireMedia:
    return WireMedia(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _pack(tensor) for name, tensor in media.tensors.items()},
    )


def _unpack_media(media: WireMedia) -> Media:
    return Media(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _unpack(tensor) for name, tensor in media.tensors.items()},
    )


def _pack(tensor: Tensor) -> WireTensor:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return WireTensor(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data)


def _unpack(tensor: WireTensor) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if not tensor.data:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


_KINDS: Mapping[str, type[QuireError]] = {
    **STATUS_BY_TYPE_NAME,
    **{kind.__name__: kind for kind in (StartupError, ConfigError, PluginError)},
}


def fault_of(error: BaseException) -> Fault:
    """What to send of an exception: ours as they are, others by name and message."""
    if isinstance(error, QuireError):
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _KINDS)
        return Fault(kind, error.message, error.param)
    return Fault(QuireError.__name__, f"{type(error).__name__}: {error}")


def error_of(fault: Fault) -> QuireError:
    """The exception that a fault stands for."""
    return _KINDS.get(fault.kind, QuireError)(fault.message, fault.param)
