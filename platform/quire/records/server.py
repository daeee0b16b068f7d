"""What plugins add to the HTTP server: request gates, routes, and exporters of metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from quire.records.context import Context

if TYPE_CHECKING:
    from fastapi import APIRouter

    from quire import RequestOutput
    from quire.params.sampling import SamplingParams
    from quire.types import EngineStats, ModelInfo


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


@dataclass(frozen=True, kw_only=True)
class RouterContext:
    """What a plugin's routes may use of the server.

    options: values of the plugin's `Option`s by name. models: returns the models that are served now. generate: runs a
    request; it is counted in the metrics, and ends with the server.
    """

    options: Mapping[str, Any]
    models: Callable[[], Sequence[ModelInfo]]
    generate: Generate


@dataclass(frozen=True)
class Router:
    """HTTP routes, mounted after the built-in ones. A path that is already taken stops the start.

    open_paths: paths of these routes that need no API key; every other one does. ui: whether the routes are pages for
    people, which `--no-ui` leaves out.
    """

    name: str
    build: Callable[[RouterContext], APIRouter]
    open_paths: tuple[str, ...] = ()
    ui: bool = False


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
