"""How a model writes down what it thinks before it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.records.channels import Channels


@dataclass(frozen=True)
class ReasoningParser:
    """An answer may begin with reasoning between `start` and `end`.

    matches(chat template) says whether a model with this template writes so. A prompt that ends with `start` has
    opened the reasoning, one that ends with `end` has closed it. implicit: without either, the answer begins
    inside the reasoning, with `start` or without. marks: special tokens within the delimiters, which must stay in
    the text.
    """

    name: str
    start: str
    end: str
    matches: Callable[[str], bool]
    implicit: bool = False
    marks: tuple[str, ...] = ()
    channels: Channels | None = None
