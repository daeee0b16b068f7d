"""The request bodies of Cohere's chat and tokenizer routes. Fields that they do not list stay in `model_extra`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from quire.plugin import RequestModel


class CoherePart(RequestModel):
    """A part of a message; `type` determines which field holds it."""

    type: Literal["text", "image_url", "thinking", "document"]
    text: str | None = None
    thinking: str | None = None
    image_url: dict[str, Any] | None = None
    document: dict[str, Any] | None = None


class CohereFunction(RequestModel):
    """The function of an earlier tool call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class CohereToolCall(RequestModel):
    """An earlier tool call."""

    id: str
    function: CohereFunction


class CohereMessage(RequestModel):
    """A message of the conversation. tool_plan: what the model said before its calls."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str | Annotated[list[CoherePart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[CohereToolCall], Field(fail_fast=True)] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None


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
    id: str | None = None


class CohereChatRequest(RequestModel):
    """The body of `POST /v2/chat`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: Annotated[list[CohereMessage], Field(min_length=1, fail_fast=True)]
    stream: bool = False
    tools: list[dict[str, Any]] | None = None
    strict_tools: bool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: Annotated[list[str | CohereDocument], Field(fail_fast=True)] | None = None
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

    text: str
    model: str | None = None


class CohereDetokenizeRequest(RequestModel):
    """The body of `POST /v1/detokenize`."""

    tokens: list[int]
    model: str | None = None


BODIES = (CohereChatRequest, CohereTokenizeRequest, CohereDetokenizeRequest)
