"""The reasoning of a chat answer: its extractor, its effect on constraints and budgets, and its number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest
from quire.records import ToolParser
from quire.server.openai.chat_prompt import RenderedPrompt
from quire.server.schemas.requests import ChatRequest
from quire.server.service.models import ServedModel
from quire.server.service.service import Service
from quire.text.outputs.outputs import Collector
from quire.text.parsing.reasoning import ReasoningExtractor, ReasoningTokenCounter
from quire.text.tokenizer.tokenizer import Tokenizer

BUDGET_FIELD = "reasoning_limit"
"""The extra request field with which a logits processor limits the tokens of the reasoning."""


def make_extractor(
    service: Service, served: ServedModel, fields: ChatRequest, rendered: RenderedPrompt
) -> ReasoningExtractor | None:
    """The extractor of reasoning, None without a reasoning parser. Raises `BadRequest` for a budget without one."""
    parser = served.reasoning_parser
    budget = fields.thinking_token_budget
    if budget is not None and (parser is None or BUDGET_FIELD not in service.request_fields.extra_types):
        raise BadRequest(
            "`thinking_token_budget` needs a server with --reasoning-parser and a plugin that can end the reasoning.",
            "thinking_token_budget",
        )
    if parser is None:
        return None
    if not fields.continue_final_message:
        return ReasoningExtractor.from_prompt(rendered.text, parser)
    opened = rendered.text.rfind(parser.start) > rendered.text.rfind(parser.end)
    return ReasoningExtractor(parser, inside=opened, closed=not opened)


@dataclass(frozen=True, kw_only=True)
class ReasoningBounds:
    """Where constraints begin in an answer that may start with reasoning.

    constraint_start: the text after which a constraint begins; None: at the start of the answer, without optional
    reasoning. calls_start: the same for required tool calls. optional: only the model decides whether it reasons.
    optional_delimiters: the texts around optional reasoning before required tool calls, None if none is allowed.
    """

    constraint_start: str | None = None
    calls_start: str | None = None
    optional: bool = False
    optional_delimiters: tuple[str, str] | None = None


def reasoning_bounds(extractor: ReasoningExtractor | None, calls: ToolParser | None) -> ReasoningBounds:
    """The bounds of an answer. calls: the format of its tool calls, None if it has none."""
    if extractor is None:
        return ReasoningBounds()
    parser, channels = extractor.parser, extractor.parser.channels
    end = parser.end if extractor.inside else None
    optional = not extractor.inside and not extractor.closed
    delimiters = None
    # Calls of a format without channels are no messages, so no message may come before them.
    if optional and calls is not None and (channels is None or calls.channels is not None):
        delimiters = parser.start, parser.end + (channels.separator if channels else "")
    start = end
    if channels is not None:
        start = None if extractor.closed else channels.answer
    return ReasoningBounds(constraint_start=start, calls_start=end, optional=optional, optional_delimiters=delimiters)


def budget_field(extractor: ReasoningExtractor | None, fields: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    """The extra field that limits the tokens of the reasoning; empty without a budget."""
    if extractor is None or extractor.closed or fields.thinking_token_budget is None:
        return {}
    delimiters = extractor.parser.start, extractor.parser.end
    start, end = (tokenizer.encode(text, add_special_tokens=False) for text in delimiters)
    return {
        BUDGET_FIELD: {"tokens": fields.thinking_token_budget, "start": start, "end": end, "inside": extractor.inside}
    }


class ReasoningUsage:
    """Counts the reasoning tokens of all completions of one call, incrementally."""

    def __init__(self, extractor: ReasoningExtractor, tokenizer: Tokenizer, prompt: str) -> None:
        self._extractor, self._tokenizer, self._prompt = extractor, tokenizer, prompt
        self._counters: dict[tuple[int, int], ReasoningTokenCounter] = {}

    def count(self, collectors: Sequence[Collector]) -> int:
        """The number of reasoning tokens generated so far."""
        total = 0
        for number, collector in enumerate(collectors):
            for index, ids in enumerate(collector.token_ids):
                if (number, index) not in self._counters:
                    counter = ReasoningTokenCounter(self._extractor, self._tokenizer, self._prompt)
                    self._counters[number, index] = counter
                total += self._counters[number, index].update(ids)
        return total
