"""Limits the reasoning of an answer: at the limit, only the tokens of the end delimiter are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from quire.errors import BadRequest
from quire.records import ProcessorRow

if TYPE_CHECKING:
    from torch import Tensor

    from quire.params.sampling import SamplingParams

FIELD = "reasoning_limit"


@dataclass(slots=True)
class BudgetState:
    """State of one seq. begun, ended: number of output tokens at those points, None before. seen: tokens examined."""

    tokens: int
    start: tuple[int, ...]
    end: tuple[int, ...]
    begun: int | None = None
    over: bool = False
    seen: int = 0
    forced: int | None = None

    @classmethod
    def from_request(cls, asked: Mapping[str, Any]) -> BudgetState:
        """Creates the state from the field's value: tokens, the ids of both delimiters, and whether the prompt opened
        the reasoning.
        """
        try:
            tokens, start, end = asked["tokens"], tuple(asked["start"]), tuple(asked["end"])
            ids = all(isinstance(one, int) and one >= 0 for one in (tokens, *start, *end))
            inside = bool(asked["inside"])
        except (KeyError, TypeError) as error:
            raise BadRequest(f"`{FIELD}` needs tokens, start, end and inside: {asked!r:.80}.", FIELD) from error
        if not ids or not end:
            raise BadRequest(f"`{FIELD}` has something else than token ids: {asked!r:.80}.", FIELD)
        return cls(tokens, start, end, begun=0 if inside else None)

    def next_id(self, output: Sequence[int]) -> int | None:
        """The one token that may follow `output`; None if any may."""
        for count in range(self.seen + 1, len(output) + 1):
            self._look(output, count)
        self.seen = len(output)
        if self.over or self.begun is None:
            return None
        if self.forced is None and len(output) - self.begun >= self.tokens:
            self.forced = len(output) - _overlap(output, self.end, self.begun)
        return None if self.forced is None else self.end[len(output) - self.forced]

    def _look(self, output: Sequence[int], count: int) -> None:
        """Whether a delimiter ends at the last of the first `count` tokens."""
        if self.over:
            return
        if self.begun is None:
            if self.start and tuple(output[max(0, count - len(self.start)) : count]) == self.start:
                self.begun = count
        elif tuple(output[max(self.begun, count - len(self.end)) : count]) == self.end:
            self.over = True


def _overlap(output: Sequence[int], end: Sequence[int], begun: int) -> int:
    """Number of last tokens that are a beginning of the delimiter."""
    for count in range(min(len(end) - 1, len(output) - begun), 0, -1):
        if list(output[len(output) - count :]) == list(end[:count]):
            return count
    return 0


class ReasoningBudget:
    """Logits processor of requests with `thinking_token_budget`."""

    def start(self, params: SamplingParams) -> BudgetState | None:
        """The state of a request; None if it has no limit."""
        asked = params.extra.get(FIELD)
        return None if asked is None else BudgetState.from_request(asked)

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Leaves one token where the delimiter must come. logits: [rows, vocab]."""
        for i, row in enumerate(rows):
            token_id = row.state.next_id(row.output_ids)
            if token_id is not None:
                logits[i] = -torch.inf
                logits[i, token_id] = 0.0
