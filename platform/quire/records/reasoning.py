"""Formats in which a model divides its answer: reasoning before it, or a series of messages in channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

MessageKind: TypeAlias = Literal["thought", "text", "call"]


@dataclass(frozen=True, kw_only=True)
class Channels:
    """How an answer divides into messages: header, `begin`, body, and one of `ends`.

    starts: texts with which a header begins; the prompt may contain the start of the first header. kind(header) says
    what the body is: reasoning, text for the user, or a tool call, which a tool parser reads together with its header.
    separator: the text before the header of every message but the first. answer: header and `begin` of a text that
    ends the answer. special_tokens: further special tokens that must stay in the text.
    """

    starts: tuple[str, ...]
    begin: str
    ends: tuple[str, ...]
    kind: Callable[[str], MessageKind]
    separator: str
    answer: str
    special_tokens: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text that must stay in an answer although it may be a special token."""
        return (*self.starts, self.begin, *self.ends, *self.special_tokens)


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
