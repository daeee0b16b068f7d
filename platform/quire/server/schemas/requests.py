"""The request bodies of the endpoints that generate text or tokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from quire.server.schemas.adapters import AdapterChoice
from quire.server.schemas.sampling import LogprobCount, SamplingFields, TokenId, TokenIds, within
from quire.types.request_model import RequestModel

MAX_PROMPTS = 1024
MAX_TOOLS = 1024

TokenPrompt = Annotated[list[TokenId], Field(min_length=1)]
_ANY_PROMPT = (
    str
    | TokenPrompt
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[list[TokenPrompt], Field(min_length=1, max_length=MAX_PROMPTS)]
)


def _one_error(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Replace the errors of all alternatives of a union by one sentence."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            f"should be a string, a non-empty list of token ids, or a list of 1 to {MAX_PROMPTS} strings or such lists"
        ) from None


Prompts = Annotated[_ANY_PROMPT, WrapValidator(_one_error)]


class CompletionRequest(SamplingFields):
    """The body of `POST /v1/completions`."""

    prompt: Prompts
    max_tokens: Annotated[int, within(0)] | None = None
    echo: bool = False
    logprobs: LogprobCount | None = None
    add_special_tokens: bool = True


class ContentPart(RequestModel):
    """One part of a message's content; `type` determines the other fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class PredictedContent(RequestModel):
    """The text that the client expects, as a string or as parts of type text."""

    type: Literal["content"]
    content: str | list[ContentPart]


def _one_error_of_predictions(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            'should be {"type": "content", "content": a string or a list of {"type": "text", "text": a string}}'
        ) from None


Prediction = Annotated[PredictedContent, WrapValidator(_one_error_of_predictions)]


class FunctionCall(RequestModel):
    """The function and arguments of an earlier tool call."""

    name: str
    arguments: str | None = None


class MessageToolCall(RequestModel):
    """An earlier tool call, sent back with the conversation."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatRequestMessage(RequestModel):
    """One message of the conversation; unknown fields are passed to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(RequestModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool offered to the model."""

    type: Literal["function"] = "function"
    function: FunctionDefinition

    @model_validator(mode="before")
    @classmethod
    def _no_custom(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "custom":
            raise ValueError(
                "tools of type custom are not supported; offer a function with one parameter of type string"
            )
        return value


class NamedFunction(RequestModel):
    """The name of a tool's function."""

    name: str


class NamedTool(RequestModel):
    """A tool choice: the model must call this tool."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(RequestModel):
    """A subset of the tools; `mode` says whether the model must call one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(RequestModel):
    """A tool choice: the model may only use some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _one_error_of_choices(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            'should be "none", "auto", "required", {"type": "function", "function": {"name": …}} or {"type": '
            '"allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [{"type": "function", …}]}}'
        ) from None


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice, WrapValidator(_one_error_of_choices)
]


class TemplateFields(RequestModel):
    """How a chat template renders a conversation."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None


class ChatRequest(SamplingFields, TemplateFields):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatRequestMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, within(1)] | None = None
    max_tokens: Annotated[int, within(1)] | None = None
    logprobs: bool | None = False
    top_logprobs: LogprobCount | None = 0
    echo: bool = False
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    return_prompt_text: bool | None = None
    prediction: Prediction | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None


class TokenizeRequest(TemplateFields):
    """`POST /tokenize`: a prompt, or a conversation. `add_special_tokens` is true for a prompt by default."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatRequestMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # type: ignore[assignment]
    return_token_strs: bool | None = False

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of `prompt` and `messages` is needed")
        return self


class DetokenizeRequest(RequestModel):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class GenerateRequest(RequestModel):
    """`POST /generate`: one prompt as text or ids; sampling fields beside it or in `sampling_params`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    adapters: list[AdapterChoice] | None = None
    prompt: str | None = None
    prompt_token_ids: TokenPrompt | None = None
    text: str | None = None
    input_ids: TokenPrompt | None = None
    max_new_tokens: int | None = None
    sampling_params: dict[str, Any] | None = None
    stream: bool = False
