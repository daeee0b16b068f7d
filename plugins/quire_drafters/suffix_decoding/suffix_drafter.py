"""Drafts what followed the newest tokens before, in the same sequence or in recent outputs of its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from quire.plugin import Draft, DraftQuery
from quire_drafters.alignment.aligned_text import AlignedText
from quire_drafters.lookup import MAX_NEW_TOKENS, TokenArray, Tokens, continuations, find_and_meet
from quire_drafters.suffix_decoding.paths import Path, likeliest_path
from quire_drafters.suffix_decoding.recent_outputs import RecentOutputs

INSERTED_PER_STEP = 4096
"""Tokens of ended outputs that one step makes known."""


@dataclass(frozen=True, slots=True)
class SuffixSettings:
    """Settings with vLLM's names, without their prefix `suffix_decoding_`.

    max_tree_depth: tokens compared and drafted at most. max_cached_requests: recent outputs. max_spec_factor: most
    drafts per token that matches. min_token_prob: drafting stops where all drafts up to there are less likely right
    than that, by the share of places that go on so, or by what was right before (`AlignedText`).
    """

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 4.0
    min_token_prob: float = 0.1


@dataclass(slots=True)
class _Text:
    """A sequence. token_ids: the list that it grows in. prompt_len: of it. begin: of what is kept when it ends."""

    token_ids: Sequence[int]
    prompt_len: int
    begin: int
    scope: int
    aligned: AlignedText
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
            is_whole = len(tokens) == len(query.token_ids)
            drafts.append(self._draft(text, tokens, query.max_drafts) if is_whole else Draft())
        return drafts

    def _begin(self, query: DraftQuery) -> _Text:
        begin = max(0, query.prompt_len - self._settings.max_tree_depth)
        scope = int.from_bytes(blake2b(query.scope, digest_size=8).digest(), "little")
        aligned = AlignedText(query.prompt_len)
        text = self._texts[query.seq_id] = _Text(query.token_ids, query.prompt_len, begin, scope, aligned)
        return text

    def _draft(self, text: _Text, tokens: Tokens, most: int) -> Draft:
        """Of the longest matches of both kinds those that should have more right are a guess of the aligned text."""
        text.aligned.observe(text.token_ids)
        depth, threshold = self._settings.max_tree_depth, self._settings.min_token_prob
        path, match_length = Path([], 0.0), 0
        length, ends = find_and_meet(text.aligned, tokens, text.prompt_len, depth)
        count = self._count(length, most)
        if count:
            path, match_length = likeliest_path(continuations(tokens, ends, count), threshold), length
        length, rows = self._outputs.continuations(tokens[-depth:], text.scope, min(most, depth))
        count = self._count(length, most)
        if count > path.score:
            other = likeliest_path(rows[:, :count], threshold)
            path, match_length = (other, length) if other.score > path.score else (path, match_length)
        most = self._count(max(match_length, text.aligned.num_agreed), most)
        token_ids, chances = text.aligned.draft(path.token_ids, match_length, most, threshold)
        return Draft(token_ids, chances=chances)

    def _count(self, match_length: int, most: int) -> int:
        settings = self._settings
        return min(most, settings.max_tree_depth, int(match_length * settings.max_spec_factor))

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            text = self._texts.pop(seq_id, None)
            if text is not None:
                self._outputs.add(_output(text), text.scope)


def _output(text: _Text) -> Tokens:
    """Its tokens from `begin` on: those that are an array already and the few newest that are not."""
    tokens = text.array.update(text.token_ids)
    return tokens[text.begin :].copy()
