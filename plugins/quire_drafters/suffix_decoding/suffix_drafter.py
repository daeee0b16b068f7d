"""Drafts what followed the newest tokens before, in the same sequence or in recent outputs of its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from quire.plugin import Draft, DraftQuery
from quire_drafters.lookup import MAX_NEW_TOKENS, TokenArray, Tokens, continuations, longest_matches
from quire_drafters.suffix_decoding.paths import Path, likeliest_path
from quire_drafters.suffix_decoding.recent_outputs import RecentOutputs

INSERTED_PER_STEP = 4096
"""Tokens of ended outputs that one step makes known."""


@dataclass(frozen=True, slots=True)
class SuffixSettings:
    """Settings with vLLM's names, without their prefix `suffix_decoding_`.

    max_tree_depth: tokens compared and drafted at most. max_cached_requests: recent outputs. max_spec_factor: drafts
    per token that matches. min_token_prob: a draft is less likely than that, by estimate, where drafting stops.
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


@dataclass(slots=True)
class _Text:
    """A sequence. token_ids: the list that it grows in; begin: of what is kept when it ends."""

    token_ids: Sequence[int]
    begin: int
    scope: int
    array: TokenArray = field(default_factory=TokenArray)


class SuffixDrafter:
    """Drafts of sequences; an output is known to others when it has ended, with the end of its prompt before it."""

    def __init__(self, settings: SuffixSettings, outputs: RecentOutputs) -> None:
        self._settings, self._outputs = settings, outputs
        self._texts: dict[int, _Text] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        self._outputs.insert(INSERTED_PER_STEP)
        left, drafts = MAX_NEW_TOKENS, []
        for query in queries:
            text = self._texts.get(query.seq_id) or self._begin(query)
            before = text.array.size
            tokens = text.array.update(query.token_ids, left)
            left -= len(tokens) - before
            is_complete = len(tokens) == len(query.token_ids)
            drafts.append(Draft(self._path(tokens, text.scope, query.max_drafts).token_ids) if is_complete else Draft())
        return drafts

    def _begin(self, query: DraftQuery) -> _Text:
        begin = max(0, query.prompt_len - self._settings.max_tree_depth)
        scope = int.from_bytes(blake2b(query.scope, digest_size=8).digest(), "little")
        text = self._texts[query.seq_id] = _Text(query.token_ids, begin, scope)
        return text

    def _path(self, tokens: Tokens, scope: int, most: int) -> Path:
        """The continuation of which the most tokens are right by estimate."""
        depth, factor = self._settings.max_tree_depth, self._settings.max_spec_factor
        best = Path([], 0.0)
        length, ends = longest_matches(tokens, depth)
        count = min(most, depth, int(length * factor))
        if count:
            best = likeliest_path(continuations(tokens, ends, count), self._settings.min_token_prob)
        length, rows = self._outputs.continuations(tokens[-depth:], scope, min(most, depth))
        count = min(most, depth, int(length * factor))
        if count > best.score:
            other = likeliest_path(rows[:, :count], self._settings.min_token_prob)
            best = other if other.score > best.score else best
        return best

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            text = self._texts.pop(seq_id, None)
            if text is not None:
                self._outputs.add(_output(text), text.scope)


def _output(text: _Text) -> Tokens:
    """Its tokens from `begin` on: those that are an array already and the few newest that are not."""
    tokens = text.array.update(text.token_ids)
    return tokens[text.begin :].copy()
