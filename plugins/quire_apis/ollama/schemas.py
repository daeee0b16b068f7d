"""The request bodies of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quire.plugin import RequestModel

Format = Literal["", "json"] | dict[str, Any]
Think = bool | Literal["none", "minimal", "low", "medium", "high", "max"]
ModelName = Annotated[str, Field(min_length=1)]


class OllamaFunction(RequestModel):
    """The function and the arguments of an earlier tool call."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(RequestModel):
    """An earlier tool call."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(RequestModel):
    """A message; `images` are base64."""

    role: str
    content: str = ""
    thinking: str | None = None
    images: Annotated[list[str], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaRequest(RequestModel):
    """The fields that requests for text share. `keep_alive` has no effect: models stay loaded."""

    model: ModelName
    stream: bool = True
    format: Format | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(OllamaRequest):
    """The body of `POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], Field(fail_fast=True)] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    images: Annotated[list[str], Field(fail_fast=True)] | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool = False


class OllamaEmbedRequest(RequestModel):
    """The body of `POST /api/embed`."""

    model: ModelName
    input: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    truncate: bool = True
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class OllamaEmbeddingsRequest(RequestModel):
    """The body of `POST /api/embeddings`, the older route."""

    model: ModelName
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class OllamaModelRequest(RequestModel):
    """The body of `POST /api/show` and `POST /api/pull`. `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    stream: bool = True
    verbose: bool = False
    insecure: bool = False


BODIES = (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingsRequest,
    OllamaModelRequest,
)
