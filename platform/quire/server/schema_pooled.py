"""The bodies of answers with embeddings, classes and scores. They document; answers are plain dicts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from quire.server.schema_responses import Usage

Numbers = list[float] | list[list[float]] | str
"""A vector, one per token, or the base64 of either."""


class _List(BaseModel):
    """What answers have in common."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    usage: Usage


class Embedding(BaseModel):
    """Of one input."""

    index: int
    object: str
    embedding: list[float] | str


class EmbeddingList(_List):
    """The answer of `/v1/embeddings`."""

    data: list[Embedding]


class PooledItem(BaseModel):
    """Of one input."""

    index: int
    object: str
    data: Numbers


class PooledList(_List):
    """The answer of `/pooling`."""

    data: list[PooledItem]


class Classified(BaseModel):
    """Of one input: the likeliest class, and the score of each."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifiedList(_List):
    """The answer of `/classify`."""

    data: list[Classified]


class Score(BaseModel):
    """Of one pair."""

    index: int
    object: str
    score: float


class ScoreList(_List):
    """The answer of `/score`."""

    data: list[Score]


class RankedDocument(BaseModel):
    """The document itself."""

    text: str
    multi_modal: dict[str, object] | None


class Ranked(BaseModel):
    """One document; `index` is its place in the request. Without `document` if `return_documents` was false."""

    index: int
    document: RankedDocument | None = None
    relevance_score: float


class RerankUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class RankedList(BaseModel):
    """The answer of `/rerank`, the best document first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[Ranked]


class CohereEmbeddings(BaseModel):
    """The answer of `/v2/embed`: for each type that was asked for, one entry per text. `/v1/embed`, asked for no type,
    gives those of the type float alone."""

    model_config = ConfigDict(extra="allow")

    id: str
    embeddings: dict[str, list[list[float]] | list[str]] | list[list[float]]
    texts: list[str]
    response_type: str
