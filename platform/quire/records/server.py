"""What plugins add to the HTTP server: request gates, routes, and exporters of metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from quire.records.context import Context
from quire.types.route_calls import PostJson, ReadUpload

if TYPE_CHECKING:
    import msgspec
    from fastapi import APIRouter, Request as HttpRequest
    from pydantic import BaseModel
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

    from quire import RequestOutput
    from quire.errors import QuireError
    from quire.params.sampling import SamplingParams
    from quire.types import ClientUsage, EngineStats, ModelInfo
    from quire.types.adapter_info import AdapterInfo
    from quire.types.model_control import ModelControl

B = TypeVar("B", bound="BaseModel")


@dataclass(frozen=True)
class RequestRefused:
    """A gate's refusal: the sentence that the client receives, and the HTTP status (400 … 503)."""

    message: str
    status: int = 403


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """A request as it arrived: its route, model, headers and parsed body.

    A gate may return a copy (`dataclasses.replace`) with another model or body.
    """

    route: str
    model: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class RequestGateImpl(Protocol):
    """Inspects each request before it is validated and tokenized. Called in worker threads, several at once."""

    def admit(self, request: GateRequest) -> GateRequest | RequestRefused:
        """The request itself, a changed copy, or a refusal."""
        ...


@dataclass(frozen=True)
class RequestGate:
    """A gate in front of the server. Gates run in ascending order of `priority`, each on the result of the last."""

    name: str
    build: Callable[[Context], RequestGateImpl]
    priority: int = 0


class Generate(Protocol):
    """Generates text for a plugin's route, as a request to the built-in routes would."""

    def __call__(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, model: str | None = None
    ) -> Awaitable[RequestOutput]:
        """The finished output for a text or its token ids. Cancelling the call aborts the request.

        model: name of a model or adapter, None for the server's default. Raises errors of `quire.errors`, each with
        the HTTP status that the server answers with.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next part of a tool call. `index` counts the calls of a choice. The first part has `id` and `name`; the
    `arguments` of all parts together are the JSON text.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The next part of an answer: text, reasoning, a part of a tool call, or the end of a choice.

    index: of the choice. logprobs: of the tokens of this part and of parts held back before it, if they were asked for:
    the encoded objects `{token, logprob, bytes, top_logprobs}` of OpenAI's chat API. finish_reason: "stop", "length",
    "tool_calls" or "abort" in the last part of a choice. stop_reason: the stop string or stop token id that ended it.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    logprobs: Sequence[msgspec.Raw] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Tokens of an answer so far. cached: of the prompt, from the prefix cache. reasoning: of the output."""

    prompt: int
    output: int
    cached: int
    reasoning: int


class Answer(Protocol):
    """A checked and tokenized request. Nothing is generated before `deltas` is iterated."""

    model: str

    def deltas(self) -> AsyncGenerator[AnswerDelta, None]:
        """Generate. Closing the iterator aborts the request; raises errors of `quire.errors`."""
        ...

    def usage(self) -> AnswerUsage:
        """The tokens so far; before the first delta those of the prompt alone."""
        ...


class StartAnswer(Protocol):
    """Checks a request body, passes the request gates, renders and tokenizes."""

    def __call__(self, request: HttpRequest, body: Mapping[str, Any]) -> Awaitable[Answer]:
        """The answer that the built-in route would give to `body`.

        request: of the client; gates see its path and headers. Raises errors of `quire.errors`.
        """
        ...


class StartTranscription(Protocol):
    """Checks fields, passes the request gates, and decodes a recording, for a route that may be a WebSocket."""

    def __call__(self, connection: HTTPConnection, recording: bytes, fields: Mapping[str, Any]) -> Awaitable[Answer]:
        """The answer, in text alone, that `/v1/audio/transcriptions` would give to a form with this file.

        connection: of the client; gates see its path and headers. recording: the bytes of an audio file. fields: the
        other fields of the form. The spoken language is detected first, if it must be. Raises errors of `quire.errors`.
        """
        ...


class ReadBody(Protocol):
    """Reads the JSON body of a request within the server's limits."""

    def __call__(self, request: HttpRequest, schema: type[B]) -> Awaitable[B]:
        """The body as an instance of a pydantic model. Raises errors of `quire.errors` that name the wrong fields."""
        ...


class StreamEvents(Protocol):
    """Makes a response of server-sent events, or of other data that is sent piece by piece."""

    def __call__(
        self,
        request: HttpRequest,
        pieces: AsyncGenerator[bytes, None],
        failure: Callable[[QuireError], bytes],
        media_type: str = "text/event-stream",
    ) -> Awaitable[Response]:
        """Returns when the first piece is there, so that an earlier error still gets its HTTP status.

        pieces: iterated in a task of its own, and closed when the client disconnects. failure: the last piece after an
        error within the stream.
        """
        ...


class CallRoute(Protocol):
    """Sends a JSON body to another route of this server, without HTTP and without an API key."""

    def __call__(self, path: str, body: Mapping[str, Any], client: str) -> Awaitable[tuple[int, Any]]:
        """The status and the parsed JSON of the response to `POST path`; a stream is refused with status 400.

        client: the client's share of the engine, see `RouterContext.client_of`. Under the name
        `quire.plugin.background(client)` the request runs behind those of all other clients. Cancelling the call aborts
        the request.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ModelFormats:
    """How a model writes conversations; None: not at all.

    template: its chat template. tool_parser, reasoning_parser: names of the formats of its tool calls and reasoning.
    limits_reasoning: whether the field `thinking_token_budget` works.
    """

    template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    limits_reasoning: bool = False


class FindFormats(Protocol):
    """Finds out how a model or adapter writes conversations."""

    def __call__(self, model: str | None = None) -> Awaitable[ModelFormats]:
        """The formats of the model that answers requests with this name, None: of the server's default.

        An adapter that plugins find by its name is loaded. Raises `NotFound` for an unknown name.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RouterContext:
    """What a plugin's routes may use of the server.

    Requests of generate, chat, complete and transcribe are counted in the metrics, and end with the server.

    options: values of the plugin's `Option`s by name. models: returns the models that are served now. adapters: returns
    the adapters that requests may name. generate: runs a prompt to its end. chat: begins the answer to a body of
    `/v1/chat/completions`. complete: begins the answer to a body of `/v1/completions` with one prompt. transcribe:
    begins to write down a recording. read: reads a body. stream: makes a streamed response. call: sends a body to
    another route of the server. post: sends JSON text to another route, and returns the whole response. upload: reads a
    form with a file. client_of: the name under which the client of a request gets its share of the engine: a digest of
    its API key if the server has keys, else its address. formats: finds how a model writes conversations. clients: what
    each client has used, the latest first, as far as the sender of a request may see it: all with an admin key, or a
    key, or from this machine if there are none. model_control: loads, unloads, names, puts to sleep and wakes models.
    """

    options: Mapping[str, Any]
    models: Callable[[], Sequence[ModelInfo]]
    adapters: Callable[[], Sequence[AdapterInfo]]
    generate: Generate
    chat: StartAnswer
    complete: StartAnswer
    transcribe: StartTranscription
    read: ReadBody
    stream: StreamEvents
    call: CallRoute
    post: PostJson
    upload: ReadUpload
    client_of: Callable[[HttpRequest], str]
    formats: FindFormats
    clients: Callable[[HttpRequest], Sequence[ClientUsage]]
    model_control: ModelControl


@dataclass(frozen=True)
class Router:
    """HTTP routes, mounted after the built-in ones. A path that is already taken stops the start.

    Routes may be WebSockets (`APIRouter.websocket`), at paths without parameters: their handshakes need a key as
    requests do, and web pages of other origins are refused. A message has at most --max-body-bytes, and 8 MiB.
    The lifespan of the `APIRouter` begins when the server starts and ends, before its engines, when it stops.
    bodies: models of the bodies that the routes read with `RouterContext.read`, for the OpenAPI document, or a function
    that imports and returns them; a route names its own with `openapi_extra=json_body(Model)`. error_body: makes the
    JSON body of error responses at the paths of these routes, also of those that the server sends itself, such as 401
    and 413, from the error and the request's id (its header `X-Request-Id`, None without one); None: OpenAI's shape.
    open_paths: paths of these routes that need no API key; every other one does. ui: whether the routes are pages for
    people, which `--no-ui` leaves out. upload_paths: paths whose bodies `--max-body-bytes` does not limit, because
    their routes read them with `RouterContext.upload`.
    """

    name: str
    build: Callable[[RouterContext], APIRouter]
    bodies: Sequence[type[BaseModel]] | Callable[[], Sequence[type[BaseModel]]] = ()
    error_body: Callable[[QuireError, str | None], Mapping[str, Any]] | None = None
    open_paths: tuple[str, ...] = ()
    ui: bool = False
    upload_paths: Sequence[str] = ()

    def body_models(self) -> Sequence[type[BaseModel]]:
        """The models of the bodies, imported now if `bodies` is a function."""
        return self.bodies() if callable(self.bodies) else self.bodies


class StatsObserver(Protocol):
    """Receives engine statistics and forwards them to another system."""

    def observe(self, stats: EngineStats) -> None:
        """Called about once a second for each model, in a thread of the plugin's own."""
        ...


@dataclass(frozen=True)
class MetricsExporter:
    """Another destination of engine statistics, besides `GET /metrics`."""

    name: str
    build: Callable[[Context], StatsObserver]
