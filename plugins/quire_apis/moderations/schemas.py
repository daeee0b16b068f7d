"""The request body of `/v1/moderations`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quire.plugin import Identifier, RequestModel


class ModerationText(RequestModel):
    """A text as an object; pictures are not classified."""

    type: Literal["text"]
    text: str


ModerationInputs = Annotated[list[str] | list[ModerationText], Field(min_length=1)]


class ModerationRequest(RequestModel):
    """The body of `POST /v1/moderations`: a text, several, or one input of several parts."""

    input: str | ModerationInputs
    model: Identifier | None = None
