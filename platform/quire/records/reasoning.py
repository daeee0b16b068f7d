"""Formats in which a model writes its reasoning before the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.records.channels import Channels


@dataclass(frozen=True)
class ReasoningParser:
    """An answer may begin with reasoning between `start` and `end`.

    matches(chat template): whether a model with this template writes the format. A prompt that ends with `start` has
    opened the reasoning, one that ends with `end` has closed it. implicit: after a prompt that has done neither, the
    answer begins inside the reasoning, with or without `start`. special_tokens: special tokens within the delimiters,
    which must stay in the text.
    """

    name: str
    start: str
    end: str
    matches: Callable[[str], bool]
    implicit: bool = False
    special_tokens: tuple[str, ...] = ()
    channels: Channels | None = None
