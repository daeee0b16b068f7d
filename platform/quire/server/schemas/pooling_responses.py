"""Response models of pooling endpoints, for the OpenAPI document only; responses are built as plain dicts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from quire.server.schemas.responses import Usage

Numbers = list[float] | list[list[float]] | str
"""A vector, one vector per token, or the base64 of either."""


class _List(BaseModel):
    """The fields that all answers have."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    usage: Usage


class EmbeddingObject(BaseModel):
    """The embedding of one input."""

    index: int
    object: str
    embedding: list[float] | str


class EmbeddingList(_List):
    """The answer of `/v1/embeddings`."""

    data: list[EmbeddingObject]


class PooledItem(BaseModel):
    """The pooler output of one input."""

    index: int
    object: str
    data: Numbers


class PooledList(_List):
    """The answer of `/pooling`."""

    data: list[PooledItem]


class Classified(BaseModel):
    """The classes of one input: the most likely label, and the score of each class."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifiedList(_List):
    """The answer of `/classify`."""

    data: list[Classified]


class Score(BaseModel):
    """The score of one pair of texts."""

    index: int
    object: str
    score: float


class ScoreList(_List):
    """The answer of `/score`."""

    data: list[Score]


class RankedDocument(BaseModel):
    """The text of a ranked document."""

    text: str
    multi_modal: dict[str, object] | None


class Ranked(BaseModel):
    """One document; `index`: its position in the request. `document` is absent if `return_documents` was false."""

    index: int
    document: RankedDocument | None = None
    relevance_score: float


class RerankUsage(BaseModel):
    """The number of prompt tokens."""

    prompt_tokens: int
    total_tokens: int


class RankedList(BaseModel):
    """The answer of `/rerank`, the best document first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Ranked]


class CohereEmbeddings(BaseModel):
    """The answer of `/v2/embed`: for each requested type, one entry per text. Without requested types, `embeddings` of
    `/v1/embed` is the list of type float."""

    model_config = ConfigDict(extra="allow")

    id: str
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    response_type: str
