"""Greedy answers of a model that may call tools, and how many of them are exactly right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data.tools.tool_dialogues import Message, Question
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from evaluation.chat_answers import complete
from evaluation.reports import shares

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model said: text, and calls as names and arguments."""

    content: str
    calls: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_message(cls, message: Message) -> Answer:
        """Of an assistant message whose arguments are objects or JSON text."""
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        return cls(
            content=(message.get("content") or "").strip(),
            calls=tuple((f["name"], _loaded(f["arguments"])) for f in functions),
        )

    @classmethod
    def read(cls, text: str) -> Answer:
        """Of the text that the model wrote; what cannot be read as a call stays text."""
        calls = [_loaded(written) for written in _CALL.findall(text)]
        if not calls or not all(isinstance(call, dict) and call.keys() == {"name", "arguments"} for call in calls):
            return cls(content=text.strip())
        return cls(content=_CALL.sub("", text).strip(), calls=tuple((c["name"], c["arguments"]) for c in calls))


def _loaded(written: Any) -> Any:
    """JSON text as what it says; anything else as it is."""
    try:
        return json.loads(written) if isinstance(written, str) else written
    except ValueError:
        return written


def answer(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], batch_size: int = 32
) -> list[Answer]:
    """Answer every question greedily."""
    prompts = [
        tokenizer.apply_chat_template(q.messages, tools=q.tools or None, tokenize=False, add_generation_prompt=True)
        for q in questions
    ]
    return [Answer.read(text) for text in complete(model, tokenizer, prompts, batch_size)]


def is_right(question: Question, given: Answer) -> bool:
    """Whether names, arguments and text are those expected; filled schemas are compared as JSON."""
    wanted = Answer.from_message(question.answer)
    if question.family == "json":
        return bool(_loaded(given.content) == _loaded(wanted.content))
    return given == wanted


def score(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, float]:
    """Share of right answers per family, and over all questions as ``overall``."""
    return shares((q.family, is_right(q, given)) for q, given in zip(questions, answers, strict=True))
