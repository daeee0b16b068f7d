"""A drafter: drafts the prompt again, in order. It suits requests that ask for a text back with few changes.

The output is compared with the prompt from `start` on. Where both differ, nothing is drafted any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.plugin import Draft, Drafter, DrafterContext, DraftQuery, hookimpl


class PromptAgain:
    """Keeps for each sequence how many of its output tokens are those of the prompt, -1 = one is not."""

    def __init__(self, context: DrafterContext) -> None:
        self._start = int(context.settings.get("start", 0))
        self._agreeing: dict[int, int] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        """The tokens that follow in the prompt."""
        return [Draft(self._draft(query)) for query in queries]

    def _draft(self, query: DraftQuery) -> Sequence[int]:
        tokens, begin, end = query.token_ids, self._start, query.prompt_len
        count, length = self._agreeing.get(query.seq_id, 0), len(query.token_ids) - end
        if count >= 0 and list(tokens[begin + count : begin + length]) != list(tokens[end + count :]):
            length = -1
        self._agreeing[query.seq_id] = length if count >= 0 else -1
        if self._agreeing[query.seq_id] < 0:
            return ()
        return tokens[begin + length : min(begin + length + query.max_drafts, end)]

    def end(self, seq_ids: Sequence[int]) -> None:
        """Forget these sequences."""
        for seq_id in seq_ids:
            self._agreeing.pop(seq_id, None)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    """The method `prompt-again`. Its setting `start`: the token of the prompt that is drafted first."""
    yield Drafter("prompt-again", PromptAgain, settings=("start",))
