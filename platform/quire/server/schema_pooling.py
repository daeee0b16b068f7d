"""The bodies of requests for embeddings, classes and scores.

Bounds that a number of inputs has to keep to are a setting; here they are not checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from quire.server.schema_adapters import AdapterChoice
from quire.server.schema_base import RequestModel
from quire.server.schema_requests import Message, TemplateFields, TokenPrompt
from quire.server.schema_sampling import INT64, MOST_CHOICES, within

Dtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "little", "big"]


class TextObject(RequestModel):
    """A text as an object, as Jina's clients write queries, documents and inputs."""

    model_config = ConfigDict(extra="ignore")

    text: str


def _plain(value: Any) -> Any:
    """Texts in place of objects that have nothing else."""
    if isinstance(value, list):
        return list(map(_plain, value)) if any(isinstance(one, dict) for one in value) else value
    alone = isinstance(value, dict) and value.keys() == {"text"} and isinstance(value["text"], str)
    return value["text"] if alone else value


_Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
_ANY_INPUT = str | TokenPrompt | _Texts | Annotated[list[TokenPrompt], Field(min_length=1, fail_fast=True)]


def _one_error(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One sentence instead of what is wrong with the value under each of its readings."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            "should be a string, a non-empty list of token ids, or a non-empty list of strings or of such lists"
        ) from None


def _one_error_of_texts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError("should be a string or a non-empty list of strings") from None


_JINA = Annotated[list[TextObject], Field(min_length=1)]
Inputs = Annotated[
    _ANY_INPUT,
    WrapValidator(_one_error, json_schema_input_type=_ANY_INPUT | _JINA),
    BeforeValidator(_plain, json_schema_input_type=_ANY_INPUT | _JINA),
]
ScoreTexts = Annotated[str | _Texts, WrapValidator(_one_error_of_texts)]


class CommonFields(RequestModel):
    """What all of them have in common; null everywhere means the model's default."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    adapters: Annotated[list[AdapterChoice], Field(max_length=MOST_CHOICES)] | None = None
    user: str | None = None
    priority: Annotated[int, Field(ge=-(2**63), le=INT64)] = 0
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None


class PoolingFields(CommonFields):
    """How prompts are cut, and whether what comes of them is normalised or squashed."""

    use_activation: bool | None = None
    truncate_prompt_tokens: Annotated[int, within(-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["do_not_pad"] | None = None


class InputFields(PoolingFields, TemplateFields):
    """What is read: `input`, or a conversation. `add_special_tokens` is true for `input` by default."""

    input: Inputs | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_generation_prompt: bool = False
    add_special_tokens: bool | None = None  # type: ignore[assignment]


class EncodingFields(RequestModel):
    """How numbers are written: JSON; base64 or bare bytes of `embed_dtype`; `bytes_only` leaves out the header."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Dtype = "float32"
    endianness: Endianness = "native"


class EmbeddingRequest(InputFields, EncodingFields):
    """`POST /v1/embeddings`."""

    dimensions: Annotated[int, within(1)] | None = None
    normalize: Annotated[Any, within(deprecated=True)] = None


class PoolingRequest(InputFields, EncodingFields):
    """`POST /pooling`: what a pooler gives, as it is."""

    task: Annotated[str, within(enum=["embed", "classify", "token_embed", "token_classify"])] | None = None
    dimensions: Annotated[Any, within(deprecated=True)] = None


class ClassifyRequest(InputFields):
    """`POST /classify`."""


class ScoreFields(PoolingFields):
    """Texts that are compared with others, and how much of each is read; 0 = all."""

    max_tokens_per_query: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    max_tokens_per_doc: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


class ScoreRequest(ScoreFields):
    """`POST /score`: one text with one or many, or as many with as many. Each pair of fields says the same."""

    text_1: ScoreTexts | None = None
    text_2: ScoreTexts | None = None
    queries: ScoreTexts | None = None
    documents: ScoreTexts | None = None
    items: ScoreTexts | None = None
    data_1: ScoreTexts | None = None
    data_2: ScoreTexts | None = None


class RerankRequest(ScoreFields):
    """`POST /rerank`: documents by how well they answer the query."""

    query: str | TextObject
    documents: Annotated[list[str | TextObject], Field(min_length=1, fail_fast=True)]
    top_n: Annotated[int, Field(ge=0, le=INT64)] = 0
    return_documents: bool = True


class CohereContent(RequestModel):
    """A part of an input; only text can be read."""

    type: Literal["text"]
    text: str


class CohereInput(RequestModel):
    """An input in parts."""

    content: Annotated[list[CohereContent], Field(min_length=1)]


EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


class CohereEmbedRequest(CommonFields):
    """`POST /v2/embed`, as Cohere's clients send it. `input_type` changes nothing: prefixes are the caller's."""

    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    inputs: Annotated[list[CohereInput], Field(min_length=1, fail_fast=True)] | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = None
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = None
    output_dimension: Annotated[int, within(1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
