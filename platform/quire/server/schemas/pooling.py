"""The request bodies of the endpoints of pooling models: embeddings, classes, scores.

The number of inputs is limited by a setting, which is checked elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from quire.params.pooling import MAX_POOLING_INPUTS
from quire.server.schemas.adapters import AdapterChoice
from quire.server.schemas.requests import ChatRequestMessage, TemplateFields, TokenPrompt
from quire.server.schemas.sampling import INT64, MAX_CHOICES, CacheTtl, within
from quire.types.request_model import RequestModel

Dtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "little", "big"]


class TextObject(RequestModel):
    """A text as an object, the form of queries, documents and inputs in Jina's API."""

    model_config = ConfigDict(extra="ignore")

    text: str


def _plain(value: Any) -> Any:
    """Replace objects that contain only a text by the text."""
    if isinstance(value, list):
        return list(map(_plain, value)) if any(isinstance(one, dict) for one in value) else value
    alone = isinstance(value, dict) and value.keys() == {"text"} and isinstance(value["text"], str)
    return value["text"] if alone else value


_SOME: Any = Field(min_length=1, max_length=MAX_POOLING_INPUTS)
_Texts = Annotated[list[str], _SOME]
_ANY_INPUT = str | TokenPrompt | _Texts | Annotated[list[TokenPrompt], _SOME]


def _one_error(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Replace the errors of all alternatives of a union by one sentence."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            "should be a string, a non-empty list of token ids, or a non-empty list of strings or of such lists, with"
            f" at most {MAX_POOLING_INPUTS} items"
        ) from None


def _one_error_of_texts(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(f"should be a string or a non-empty list of strings, at most {MAX_POOLING_INPUTS}") from None


_JINA = Annotated[list[TextObject], _SOME]
Inputs = Annotated[
    _ANY_INPUT,
    WrapValidator(_one_error, json_schema_input_type=_ANY_INPUT | _JINA),
    BeforeValidator(_plain, json_schema_input_type=_ANY_INPUT | _JINA),
]
ScoreTexts = Annotated[str | _Texts, WrapValidator(_one_error_of_texts)]


class CommonFields(RequestModel):
    """The fields of all requests to pooling models; null means the default of the model."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    adapters: Annotated[list[AdapterChoice], Field(max_length=MAX_CHOICES)] | None = None
    user: str | None = None
    priority: Annotated[int, Field(ge=-(2**63), le=INT64)] = 0
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    cache_ttl: CacheTtl | None = None


class PoolingFields(CommonFields):
    """How prompts are truncated, and whether outputs are normalized or passed through an activation."""

    use_activation: bool | None = None
    truncate_prompt_tokens: Annotated[int, within(-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["do_not_pad"] | None = None


class InputFields(PoolingFields, TemplateFields):
    """The inputs: `input`, or a conversation. `add_special_tokens` is true for `input` by default."""

    input: Inputs | None = None
    messages: Annotated[list[ChatRequestMessage], _SOME] | None = None
    add_generation_prompt: bool = False
    add_special_tokens: bool | None = None  # type: ignore[assignment]


class EncodingFields(RequestModel):
    """How numbers are encoded: JSON, or base64 or bytes of `embed_dtype`; `bytes_only`: without the metadata header."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Dtype = "float32"
    endianness: Endianness = "native"


class EmbeddingRequest(InputFields, EncodingFields):
    """The body of `POST /v1/embeddings`."""

    dimensions: Annotated[int, within(1)] | None = None
    normalize: Annotated[Any, within(deprecated=True)] = None


class PoolingRequest(InputFields, EncodingFields):
    """The body of `POST /pooling`: raw outputs of a pooler."""

    task: Annotated[str, within(enum=["embed", "classify", "token_embed", "token_classify"])] | None = None
    dimensions: Annotated[Any, within(deprecated=True)] = None


class ClassifyRequest(InputFields):
    """The body of `POST /classify`."""


class ScoreFields(PoolingFields):
    """The maximum number of tokens of each text; 0: no maximum."""

    max_tokens_per_query: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    max_tokens_per_doc: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


class ScoreRequest(ScoreFields):
    """`POST /score`: one text with one or many, or lists of equal length. All pairs of fields have the same meaning."""

    text_1: ScoreTexts | None = None
    text_2: ScoreTexts | None = None
    queries: ScoreTexts | None = None
    documents: ScoreTexts | None = None
    items: ScoreTexts | None = None
    data_1: ScoreTexts | None = None
    data_2: ScoreTexts | None = None


class RerankRequest(ScoreFields):
    """`POST /rerank`: sorts documents by how well they answer the query."""

    query: str | TextObject
    documents: Annotated[list[str | TextObject], _SOME]
    top_n: Annotated[int, Field(ge=0, le=INT64)] = 0
    return_documents: bool = True


class CohereContent(RequestModel):
    """A part of an input; only text is supported."""

    type: Literal["text"]
    text: str


class CohereInput(RequestModel):
    """An input that consists of parts."""

    content: Annotated[list[CohereContent], Field(min_length=1)]


EmbeddingType = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]


class CohereEmbedRequest(CommonFields):
    """`POST /v2/embed` in Cohere's format. `input_type` has no effect: the caller adds prefixes."""

    texts: Annotated[list[str], _SOME] | None = None
    inputs: Annotated[list[CohereInput], _SOME] | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering"] | None = None
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1)] | None = None
    output_dimension: Annotated[int, within(1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
