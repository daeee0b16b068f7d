"""What a chat request may ask of reasoning, what the engine must be told of it, and how many tokens it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.errors import BadRequest
from quire.records import ToolParser
from quire.server.chat_prompt import Rendered
from quire.server.models import Served
from quire.server.schema_requests import ChatRequest
from quire.server.service import Service
from quire.text.outputs import Collector
from quire.text.reasoning import ReasoningReader
from quire.text.thinking_tokens import ThinkingTokens
from quire.text.tokenizer import Tokenizer

LIMIT = "reasoning_limit"
"""The field by which a logits processor is told of the budget."""


def reasoning_reader(
    service: Service, served: Served, fields: ChatRequest, rendered: Rendered
) -> ReasoningReader | None:
    """Who tells reasoning apart, None if the server was not told to. `BadRequest` for a budget without one."""
    parser = served.reasoning_parser
    budget = fields.thinking_token_budget
    if budget is not None and (parser is None or LIMIT not in service.rules.extra_types):
        raise BadRequest(
            "`thinking_token_budget` needs a server with --reasoning-parser and a plugin that can end the reasoning.",
            "thinking_token_budget",
        )
    if parser is None:
        return None
    if not fields.continue_final_message:
        return ReasoningReader.after(rendered.text, parser)
    opened = rendered.text.rfind(parser.start) > rendered.text.rfind(parser.end)
    return ReasoningReader(parser, inside=opened, closed=not opened)


def constraint_begins(reader: ReasoningReader | None) -> str | None:
    """The text after which a constraint begins; None = at once, as reasoning that may or may not come is left out."""
    if reader is None:
        return None
    if reader.parser.channels is not None:
        return None if reader.closed else reader.parser.channels.answer
    return reader.parser.end if reader.inside else None


def calls_begin(reader: ReasoningReader | None) -> str | None:
    """The text after which an answer of demanded calls is held to them; None = at once."""
    return reader.parser.end if reader is not None and reader.inside else None


def lead(reader: ReasoningReader | None, calls: ToolParser) -> tuple[str, str] | None:
    """What stands around reasoning that may come before demanded calls, where only the model knows whether it does."""
    if reader is None or not may_reason(reader):
        return None
    channels = reader.parser.channels
    if channels is not None and calls.channels is None:  # calls in no message, before which none may stand
        return None
    return reader.parser.start, reader.parser.end + (channels.again if channels else "")


def may_reason(reader: ReasoningReader | None) -> bool:
    """Whether only the model knows if it will reason, so that nothing can be said of how its answer begins."""
    return reader is not None and not reader.inside and not reader.closed


def limit(reader: ReasoningReader | None, fields: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    """The extra field for the engine that bounds the reasoning, if there is a budget."""
    if reader is None or reader.closed or fields.thinking_token_budget is None:
        return {}
    start, end = (tokenizer.encode(text, add_special_tokens=False) for text in (reader.parser.start, reader.parser.end))
    return {LIMIT: {"tokens": fields.thinking_token_budget, "start": start, "end": end, "inside": reader.inside}}


class ReasoningUsage:
    """Counts the tokens of reasoning of all completions of one call, as they come."""

    def __init__(self, reader: ReasoningReader, tokenizer: Tokenizer, prompt: str) -> None:
        self._reader, self._tokenizer, self._prompt = reader, tokenizer, prompt
        self._counters: dict[tuple[int, int], ThinkingTokens] = {}

    def count(self, collectors: Sequence[Collector]) -> int:
        """All so far."""
        total = 0
        for number, collector in enumerate(collectors):
            for index, ids in enumerate(collector.token_ids):
                if (number, index) not in self._counters:
                    self._counters[number, index] = ThinkingTokens(self._reader, self._tokenizer, self._prompt)
                total += self._counters[number, index].upto(ids)
        return total
