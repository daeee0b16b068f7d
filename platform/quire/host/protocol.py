"""What the API process and the host say to each other, and how it becomes bytes (msgpack).

Requests are flattened first: the field that is set gives the kind of their parameters, and tensors of media
travel as raw bytes. Everything else is the contract's frozen dataclasses as they are. It knows no sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from quire.adapter_info import AdapterInfo
from quire.config import ModelConfig
from quire.errors import BadRequest
from quire.host.faults import Fault
from quire.host.wire_media import WireMedia, pack_media, unpack_media
from quire.pooling import PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import AdapterUse, Delta, EngineStats, ModelInfo, Prompt, Request


class Message(msgspec.Struct, frozen=True, tag=True):
    """Anything that is sent."""


# --- from the API process to the host --------------------------------------------------------------


class Start(Message, frozen=True, tag=True, kw_only=True):
    """The first message: load these plugins, then these models, one after another, and these adapters.

    known_adapters: those that an earlier host had loaded; they are read when they are wanted.
    """

    models: list[ModelConfig]
    plugins: list[str] | None = None
    options: dict[str, dict[str, Any]] = {}
    enable_lora: bool = False
    plugin_max_faults: int = 100
    log_level: str = "info"
    sys_path: list[str] = []
    adapters: list[AdapterInfo] = []
    known_adapters: list[AdapterInfo] = []


class Submit(Message, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Run a request on a model. Exactly one of `sampling`, `beams` and `pooling` is set; the text stays behind."""

    model: str
    id: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams | None = None
    beams: BeamSearchParams | None = None
    pooling: PoolingParams | None = None
    token_types: tuple[int, ...] = ()
    media: tuple[WireMedia, ...] = ()
    adapters: tuple[AdapterUse, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    client: str = ""


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


class LoadAdapter(Message, frozen=True, tag=True, kw_only=True):
    """Load an adapter; answered by `AdapterLoaded` or `Failed`.

    replacing: its name may be in use. wait: answer when requests can be answered; else at once, and `AdapterChanged`
    tells how it went.
    """

    call: int
    adapter: AdapterInfo
    replacing: bool = False
    wait: bool = True


class UnloadAdapter(Message, frozen=True, tag=True):
    """Let go of an adapter; answered by `Unloaded`, when its memory is free or requests still use it, or `Failed`."""

    call: int
    model: str
    name: str


class AskAdapters(Message, frozen=True, tag=True):
    """Tell all about the adapters of every model; answered by `Adapters`."""

    call: int


class Ask(Message, frozen=True, tag=True):
    """Report figures; answered by `Figures`."""

    call: int


class Ping(Message, frozen=True, tag=True):
    """Answer with `Pong` between two steps."""


class Shutdown(Message, frozen=True, tag=True):
    """Tell the plugins and end."""


# --- from the host to the API process --------------------------------------------------------------


class Ready(Message, frozen=True, tag=True):
    """The models and adapters of `Start` are loaded."""

    models: list[ModelInfo]
    adapters: list[AdapterInfo] = []


class Ending(Message, frozen=True, tag=True):
    """Why the host ends: a plugin or a model of `Start` could not be loaded, or steps keep failing."""

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
    """A model or an adapter is gone."""

    call: int


class AdapterLoaded(Message, frozen=True, tag=True):
    """An adapter was loaded, or will be."""

    call: int
    info: AdapterInfo


class AdapterChanged(Message, frozen=True, tag=True):
    """An adapter that nobody waited for was loaded, or could not be."""

    info: AdapterInfo


class Adapters(Message, frozen=True, tag=True):
    """The adapters of every model."""

    call: int
    infos: list[AdapterInfo]


class Failed(Message, frozen=True, tag=True):
    """A model or an adapter could not be loaded or unloaded."""

    call: int
    fault: Fault


class Pong(Message, frozen=True, tag=True):
    """The step loop goes on."""


class Figures(Message, frozen=True, tag=True):
    """Statistics of every model, and calls, errors and seconds per plugin."""

    call: int
    engines: list[EngineStats]
    plugins: list[dict[str, Any]]


ToHost = Start | Submit | Abort | Load | Unload | LoadAdapter | UnloadAdapter | AskAdapters | Ask | Ping | Shutdown
_OfAdapters = AdapterLoaded | AdapterChanged | Adapters
FromHost = Ready | Ending | Deltas | Refused | Loaded | Unloaded | Failed | Pong | Figures | _OfAdapters

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
        pooling=params if isinstance(params, PoolingParams) else None,
        token_types=request.prompt.token_types,
        media=tuple(map(pack_media, request.prompt.media)),
        adapters=request.adapters,
        priority=request.priority,
        cache_salt=request.cache_salt,
        client=request.client,
    )


def request_of(message: Submit) -> Request:
    """The request that a message carries, without the prompt's text."""
    params = message.sampling or message.beams or message.pooling
    if params is None:
        raise BadRequest("A request came without parameters.")
    media = tuple(map(unpack_media, message.media))
    return Request(
        id=message.id,
        prompt=Prompt(token_ids=message.token_ids, media=media, token_types=message.token_types),
        params=params,
        adapters=message.adapters,
        priority=message.priority,
        cache_salt=message.cache_salt,
        client=message.client,
    )
