"""Response models for the OpenAPI document only; responses are built as plain dicts, for speed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from quire.server.http.responses import ErrorDetail


class PromptTokensDetails(BaseModel):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """How many completion tokens are reasoning, and how many tokens of the prediction are in the completion or not."""

    reasoning_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(BaseModel):
    """The number of prompt and completion tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class CompletionLogprobs(BaseModel):
    """Four lists of equal length, one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion; `index` is prompt number * n + sample number."""

    model_config = ConfigDict(extra="allow")

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class Completion(BaseModel):
    """The answer of `/v1/completions`."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(BaseModel):
    """A likely token at a position; `bytes`: its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, and the most likely tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities: one entry per token of the answer."""

    content: list[TokenLogprob] | None


class ChatMessage(BaseModel):
    """The message of a chat answer."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None


class ChatChoice(BaseModel):
    """One of the `n` answers of a chat completion."""

    model_config = ConfigDict(extra="allow")

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatCompletion(BaseModel):
    """The answer of `/v1/chat/completions`."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Generated(BaseModel):
    """The answer of `/generate`; lists when n > 1."""

    model_config = ConfigDict(extra="allow")

    id: str
    model: str
    text: str | list[str]
    token_ids: list[int] | list[list[int]]
    finish_reason: str | list[str | None] | None
    usage: Usage


class Tokenized(BaseModel):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerInfo(BaseModel):
    """The answer of `/tokenizer_info`; special tokens are null where there is none."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    tokenizer_class: str
    eos_token: str | None
    bos_token: str | None
    model_max_length: int
    chat_template: str | None


class Detokenized(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str


class ModelCard(BaseModel):
    """A name that requests may use as `model`. state: `unloaded` models are loaded when a request asks for them."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    owned_by: str
    root: str | None
    parent: str | None
    max_model_len: int | None
    permission: list[dict[str, Any]]
    state: str


class ModelList(BaseModel):
    """All names that requests may use as `model`."""

    object: str
    data: list[ModelCard]


class Version(BaseModel):
    """The version of Quire."""

    version: str


class ModelState(BaseModel):
    """Whether a model answers requests; one that is `unloaded` does when it is loaded for them."""

    id: str
    state: Literal["ready", "unloaded", "unavailable"]


class Readiness(BaseModel):
    """All requested models are ready."""

    status: Literal["ready"]
    models: list[ModelState]


class NotReady(BaseModel):
    """At least one requested model is not ready."""

    status: Literal["unavailable"]
    models: list[ModelState]
    error: ErrorDetail


class EngineLoad(BaseModel):
    """The number of requests that are generating."""

    server_load: int


class PluginRow(BaseModel):
    """One plugin: its origin, its records, and statistics of its calls.

    off: functions that are disabled after repeated failures. dropped: events lost because the plugin was too slow.
    """

    name: str
    distribution: str | None
    version: str | None
    hooks: list[str]
    records: dict[str, list[str]]
    enabled: bool
    error: str | None
    calls: int
    errors: int
    seconds: float
    off: list[str]
    dropped: int


class PluginList(BaseModel):
    """The answer of `GET /plugins`."""

    object: str
    data: list[PluginRow]
