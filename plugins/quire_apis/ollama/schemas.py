"""The request bodies of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quire.plugin import Identifier, RequestModel

Format = Literal["", "json"] | dict[str, Any]
Think = bool | Literal["none", "minimal", "low", "medium", "high", "max"]
ModelName = Annotated[str, Field(min_length=1, max_length=512)]
MAX_IMAGES = 1024
MAX_TOOLS = 1024
Images = Annotated[list[str], Field(max_length=MAX_IMAGES)]


class OllamaFunction(RequestModel):
    """The function and the arguments of an earlier tool call."""

    name: Identifier
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(RequestModel):
    """An earlier tool call."""

    id: Identifier | None = None
    function: OllamaFunction


class OllamaMessage(RequestModel):
    """A message; `images` are base64."""

    role: Identifier
    content: str = ""
    thinking: str | None = None
    images: Images | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: Identifier | None = None
    tool_call_id: Identifier | None = None


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

    messages: list[OllamaMessage] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    images: Images | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool = False


class OllamaEmbedRequest(RequestModel):
    """The body of `POST /api/embed`."""

    model: ModelName
    input: str | list[str] | None = None
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

    model: Identifier | None = None
    name: Identifier | None = None
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
