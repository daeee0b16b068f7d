"""The request bodies of Cohere's chat and tokenizer routes. Fields that they do not list stay in `model_extra`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from quire.plugin import Identifier, RequestModel

MAX_TOOLS = 1024
MAX_DOCUMENTS = 4096
MAX_TOKENIZED = 1 << 16
"""Characters of a text, or tokens, of the tokenizer routes, as Cohere bounds them."""


class CoherePart(RequestModel):
    """A part of a message; `type` determines which field holds it."""

    type: Literal["text", "image_url", "thinking", "document"]
    text: str | None = None
    thinking: str | None = None
    image_url: dict[str, Any] | None = None
    document: dict[str, Any] | None = None


class CohereFunction(RequestModel):
    """The function of an earlier tool call; `arguments` is JSON text."""

    name: Identifier
    arguments: str = "{}"


class CohereToolCall(RequestModel):
    """An earlier tool call."""

    id: Identifier
    function: CohereFunction


class CohereMessage(RequestModel):
    """A message of the conversation. tool_plan: what the model said before its calls."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str | list[CoherePart] | None = None
    tool_calls: list[CohereToolCall] | None = None
    tool_plan: str | None = None
    tool_call_id: Identifier | None = None


class CohereResponseFormat(RequestModel):
    """The format of the answer: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    older_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class CohereThinking(RequestModel):
    """Whether the model reasons first, and for how many tokens."""

    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class CohereDocument(RequestModel):
    """A document that the answer may use."""

    data: dict[str, Any]
    id: Identifier | None = None


class CohereChatRequest(RequestModel):
    """The body of `POST /v2/chat`."""

    model_config = ConfigDict(extra="allow")

    model: Identifier | None = None
    messages: Annotated[list[CohereMessage], Field(min_length=1)]
    stream: bool = False
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    strict_tools: bool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: Annotated[list[str | CohereDocument], Field(max_length=MAX_DOCUMENTS)] | None = None
    response_format: CohereResponseFormat | None = None
    thinking: CohereThinking | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    k: int | None = None
    p: float | None = None
    logprobs: bool = False


class CohereTokenizeRequest(RequestModel):
    """The body of `POST /v1/tokenize`."""

    text: Annotated[str, Field(max_length=MAX_TOKENIZED)]
    model: Identifier | None = None


class CohereDetokenizeRequest(RequestModel):
    """The body of `POST /v1/detokenize`."""

    tokens: Annotated[list[int], Field(max_length=MAX_TOKENIZED)]
    model: Identifier | None = None


BODIES = (CohereChatRequest, CohereTokenizeRequest, CohereDetokenizeRequest)
