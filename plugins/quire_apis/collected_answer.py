"""An answer as it is put together from its parts, for APIs that send calls, or everything, whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.plugin import AnswerDelta


@dataclass
class CollectedCall:
    """A tool call. arguments: JSON text, cut where the answer was cut."""

    id: str
    name: str
    arguments: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments as an object; empty for a call that was cut within them."""
        return parsed_arguments(self.arguments)


@dataclass
class CollectedAnswer:
    """The parts so far. finish_reason, stop_reason: as in `AnswerDelta`, None before the end."""

    text: str = ""
    reasoning: str = ""
    calls: list[CollectedCall] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, delta: AnswerDelta) -> None:
        """Add the next part."""
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.logprobs += delta.logprobs
        part = delta.tool_call
        if part is not None and part.id is not None:
            self.calls.append(CollectedCall(part.id, part.name or ""))
        if part is not None:
            self.calls[-1].arguments += part.arguments
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def finished_calls(self, begin: int) -> Sequence[CollectedCall]:
        """The calls from number `begin` on to which nothing will be added."""
        return self.calls[begin:] if self.finish_reason is not None else self.calls[begin:-1]


def parsed_arguments(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; empty if they are not one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
