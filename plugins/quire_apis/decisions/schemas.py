"""The request body of `/v1/systemone`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from quire.plugin import Identifier, RequestModel

MAX_QUESTIONS = 64
MAX_MEDIA = 64


class QuestionSpec(RequestModel):
    """One question. criteria: by its type, what may be answered."""

    model_config = ConfigDict(extra="forbid")

    type: Annotated[str, Field(max_length=64)]
    instructions: str = ""
    criteria: Any = None


MediaLinks = Annotated[list[str], Field(max_length=MAX_MEDIA)]
"""URLs (http:, https:, data:), or the base64 of a file."""


class DecisionRequest(RequestModel):
    """The body of `POST /v1/systemone`.

    state: what the questions are about, a text or JSON. questions: by their ids, asked in this order. instructions:
    ahead of the state. images, videos, audios: before the text, for models that take them.
    """

    state: Any
    questions: Annotated[dict[Identifier, QuestionSpec], Field(min_length=1, max_length=MAX_QUESTIONS)]
    model: Identifier | None = None
    instructions: str | None = None
    images: MediaLinks | None = None
    videos: MediaLinks | None = None
    audios: MediaLinks | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
