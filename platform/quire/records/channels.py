"""Answers that are a series of messages, each of which says in its header whom it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

MessageKind: TypeAlias = Literal["thought", "text", "call"]


@dataclass(frozen=True, kw_only=True)
class Channels:
    """How messages of an answer are told apart: header, `begin`, body, and one of `ends`.

    starts: texts with which a header begins; the prompt may have begun the first one. kind(header) says what the body
    is: reasoning, text for the user, or a call, which a tool parser reads together with its header. again: what
    stands before the header of every message but the first. answer: header and `begin` of a text that ends the answer.
    marks: further special tokens, which must stay in the text.
    """

    starts: tuple[str, ...]
    begin: str
    ends: tuple[str, ...]
    kind: Callable[[str], MessageKind]
    again: str
    answer: str
    marks: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All that must stay in an answer though it may be special tokens."""
        return (*self.starts, self.begin, *self.ends, *self.marks)
