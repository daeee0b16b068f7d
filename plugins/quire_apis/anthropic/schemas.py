"""The request bodies of the Messages API. Fields that they do not list stay in `model_extra`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from quire.plugin import Identifier, RequestModel

MAX_TOOLS = 1024


class MessageBlock(RequestModel):
    """A block of content; `type` determines the other fields."""

    model_config = ConfigDict(extra="allow")

    type: Identifier


Blocks = list[MessageBlock]


class MessageTurn(RequestModel):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class MessageTool(RequestModel):
    """A tool: one of the client, with `input_schema`, or one that its `type` describes."""

    model_config = ConfigDict(extra="allow")

    name: Identifier = ""
    type: Identifier | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(RequestModel):
    """Which tools the model must call, and whether it may call several."""

    type: Literal["auto", "any", "tool", "none"]
    name: Identifier | None = None
    disable_parallel_tool_use: bool = False


class ThinkingConfig(RequestModel):
    """Whether the model reasons first, for how many tokens, and whether the answer shows it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonOutputFormat(RequestModel):
    """A JSON schema for the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """How much the model reasons, and the format of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutputFormat | None = None


class MessageMetadata(RequestModel):
    """An id of the person who asks."""

    user_id: Identifier | None = None


class CountTokensRequest(RequestModel):
    """The body of `POST /v1/messages/count_tokens`."""

    model_config = ConfigDict(extra="allow")

    model: Identifier
    messages: Annotated[list[MessageTurn], Field(min_length=1)]
    system: str | Blocks | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = None


class MessagesRequest(CountTokensRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)]
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: MessageMetadata | None = None
