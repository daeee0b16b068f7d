"""The bodies of the Responses API. Items and tools stay objects: their kinds are many, and clients add to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from quire.plugin import Identifier, RequestModel

MAX_ITEMS = 4096
MAX_TOOLS = 1024
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
MAX_DESCRIPTION = 1 << 14
MAX_ADDED_ITEMS = 20
"""Items that one request may add to a conversation."""

Items = Annotated[list[dict[str, Any]], Field(max_length=MAX_ITEMS)]
AddedItems = Annotated[list[dict[str, Any]], Field(max_length=MAX_ADDED_ITEMS)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=MAX_KEY)], Annotated[str, Field(max_length=MAX_VALUE)]],
    Field(max_length=MAX_PAIRS),
]


class TextFormat(RequestModel):
    """The format of the answer: free text, any JSON object, or JSON of a schema."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=MAX_KEY)] | None = None
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextConfig(RequestModel):
    """Format and verbosity of the text; the verbosity is returned, and has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(RequestModel):
    """How much the model reasons, and whether its reasoning is given as a summary instead of as its text."""

    effort: Identifier | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationId(RequestModel):
    """A conversation, by its id."""

    id: Identifier


class PromptFields(RequestModel):
    """What the prompt of a response is made of. Unknown fields are those of `/v1/chat/completions`."""

    model_config = ConfigDict(extra="allow")

    model: Identifier | None = None
    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: Identifier | None = None
    conversation: Identifier | ConversationId | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Identifier | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] = "disabled"

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, however it was given."""
        given = self.conversation
        return given.id if isinstance(given, ConversationId) else given


class ResponseRequest(PromptFields):
    """The body of `POST /v1/responses`."""

    stream: bool = False
    background: bool = False
    store: bool = True
    include: Annotated[list[Identifier], Field(max_length=64)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: Identifier | None = None
    prompt_cache_retention: Identifier | None = None
    safety_identifier: Identifier | None = None
    service_tier: Identifier | None = None
    user: Identifier | None = None

    @field_validator("prompt")
    @classmethod
    def _no_prompt(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError("prompt templates are kept by OpenAI only; send `instructions` and `input`")
        return value


class TokenCountRequest(PromptFields):
    """The body of `POST /v1/responses/input_tokens`."""


class ConversationRequest(RequestModel):
    """The body of `POST /v1/conversations`."""

    items: AddedItems | None = None
    metadata: Metadata | None = None


class ConversationUpdate(RequestModel):
    """The body of `POST /v1/conversations/{conversation_id}`."""

    metadata: Metadata | None = None


class ItemsRequest(RequestModel):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: AddedItems


BODIES = (ResponseRequest, TokenCountRequest, ConversationRequest, ConversationUpdate, ItemsRequest)
