"""The request fields that all generating endpoints share.

Types are checked here, ranges by `SamplingParams`: the bounds here only document them. Unknown fields stay in
`model_extra`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from quire.params.sampling import MAX_BAD_WORDS, MAX_BIASES, MAX_N, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from quire.server.schemas.adapters import AdapterChoice
from quire.types.request_model import RequestModel

INT64 = 2**63 - 1
MAX_CHOICES = 64
"""Adapters that a request may list; each model has its own limit on adapters that work together."""


def within(low: float | None = None, high: float | None = None, **more: Any) -> Any:
    """Documents a range in the schema without checking it."""
    bounds = {"minimum": low, "maximum": high}
    return Field(json_schema_extra={key: value for key, value in bounds.items() if value is not None} | more)


TokenId = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
TokenIds = list[TokenId]
TokenKey = Annotated[str, Field(pattern="^[0-9]{1,10}$")]
StopString = Annotated[str, within(minLength=1, maxLength=MAX_STOP_LENGTH)]
Penalty = Annotated[float, within(-2, 2)]
LogprobCount = Annotated[int, within(-1)]
CacheTtl = Annotated[float, Field(gt=0, le=INT64)] | Literal["no-store"]
"""Seconds for which pages of the prompt may be used once they are kept beside the device's memory."""
Choices = Annotated[list[str], Field(max_length=1 << 14)]


class StreamOptions(RequestModel):
    """The events of a stream that carry the usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchemaFormat(RequestModel):
    """A named JSON schema for the answer."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """The format of the answer: free text, any JSON object, JSON of a schema, or text with constrained parts."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(RequestModel):
    """A constraint on the output, of exactly one kind."""

    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    backend: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class SamplingFields(RequestModel):
    """Model, sampling and stopping; null means the default of the model."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    adapters: Annotated[list[AdapterChoice], Field(max_length=MAX_CHOICES)] | None = None
    n: Annotated[int, within(1, MAX_N)] | None = None
    best_of: Annotated[int, within(1, MAX_N)] | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, within(-10, 10)] = 1.0
    temperature: Annotated[float, within(0, 2)] | None = None
    top_p: Annotated[float, within(0, 1, exclusiveMinimum=0)] | None = None
    top_k: Annotated[int, within(-1, INT64)] | None = None
    min_p: Annotated[float, within(0, 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, within(1e-6, 1e6)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64)] | None = None
    stop: StopString | Annotated[list[StopString], within(maxItems=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, within(0)] = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, within(-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    logit_bias: Annotated[dict[TokenKey, float], within(maxProperties=MAX_BIASES)] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Annotated[list[str], within(maxItems=MAX_BAD_WORDS)] | None = None
    prompt_logprobs: LogprobCount | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_decoding: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, within(1)] | None = None
    priority: Annotated[int, Field(ge=-(2**63), le=INT64)] = 0
    request_id: str | None = None
    speculative: bool | None = None
    speculative_lora: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_ttl: CacheTtl | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT64)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    user: str | None = None
