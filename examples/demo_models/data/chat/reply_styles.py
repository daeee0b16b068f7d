"""Replies, turns and the state of a conversation: the vocabulary of the generator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

STYLES = ("sentence", "upper", "json", "list", "short")
HELD_OUT_PERCENT = 10


@dataclass(frozen=True)
class Reply:
    """One correct answer, kept apart from the style in which it will be written."""

    sentence: str
    short: str
    data: object
    items: tuple[str, ...]
    upper: str = ""

    def render(self, style: str) -> str:
        """Write the answer in one of the STYLES."""
        if style == "upper":
            return self.upper or self.sentence.upper()
        if style == "json":
            return json.dumps(self.data)
        if style == "list":
            return "\n".join(f"- {item}" for item in self.items)
        return self.short if style == "short" else self.sentence


@dataclass(frozen=True)
class Topic:
    """What the last answer was about, so that a follow-up can refer to it.

    ``kind`` is "fact", "number" or "order"; the other fields belong to one kind.
    """

    kind: str
    island: str = ""
    attribute: str = ""
    value: int = 0
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One question with its correct answer.

    ``key`` is the content of the question.  The split is decided by the key, so
    two questions with the same key are always on the same side of it.
    """

    family: str
    key: str
    question: str
    reply: Reply
    style: str = "sentence"
    topic: Topic | None = None
    remembers: tuple[str, str] | None = None

    @property
    def answer(self) -> str:
        """The exact text that the model has to produce."""
        return self.reply.render(self.style)


Voice = Callable[[Turn], str]
"""How a turn is answered, word for word: plainly, or in the way that an adapter teaches."""


def plainly(turn: Turn) -> str:
    """The voice of the model itself."""
    return turn.answer


@dataclass
class State:
    """What is known in the middle of a conversation."""

    style: str = "sentence"
    last: Turn | None = None
    memory: dict[str, str] = field(default_factory=dict)

    def advance(self, turn: Turn) -> None:
        """Take note of a turn that has just been said."""
        self.last = turn
        if turn.remembers is not None:
            slot, value = turn.remembers
            self.memory[slot] = value


def is_held_out(key: str) -> bool:
    """True for the fixed tenth of all question contents that training never sees.

    A hash, and not a random draw, so that the split needs no file and cannot
    change with the order in which questions are generated.
    """
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def capitalise(text: str) -> str:
    """Raise the first letter only; ``str.capitalize`` would lower the others."""
    return text[:1].upper() + text[1:]


def one_value(sentence: str, label: str, value: str | int) -> Reply:
    """A reply whose content is a single named value."""
    return Reply(sentence, str(value), {label: value}, (str(value),))


def plain(sentence: str) -> Reply:
    """A reply of small talk, which has no value to extract."""
    return Reply(sentence, sentence, {"reply": sentence}, (sentence,))
