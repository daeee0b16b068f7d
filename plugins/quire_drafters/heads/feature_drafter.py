"""Drafts one token after another with a small model that reads the features of the big one: EAGLE and MTP.

For each pair of a hidden state and the token after it the draft model predicts the next feature, from which an LM head
predicts the token after that. The first pairs have hidden states of the model, those of drafts have predicted features.
The draft model attends to the pairs before, whose keys and values are in pages of its own.

Positions are counted from the first known hidden state: those of a prefix found in the cache are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.errors import ConfigError
from quire.plugin import Draft, DrafterContext, DraftQuery, HiddenStates, ReadsHidden
from quire_drafters.heads.draft_pages import DraftPages, SeqState
from quire_drafters.heads.drawing import TokenDraws, until_impossible
from quire_drafters.heads.feature_model import FeatureModel
from quire_models import ForwardBuffers, KVCache

MAX_WAITING = 32
"""Pairs of a sequence that wait for its next draft; more are computed at once, as those of a prompt."""
MAX_TOKENS = 512
"""Pairs in a call of the draft model."""
MAX_PAIRS = 65536
"""Pairs that the pages of all sequences hold, unless one sequence may be longer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """page_size: of the draft model's KV cache. max_seqs, max_model_len, max_drafts: of queries."""

    page_size: int
    max_seqs: int
    max_model_len: int
    max_drafts: int

    @property
    def max_pages(self) -> int:
        """Most pages of one sequence."""
        return -(-(self.max_model_len + self.max_drafts) // self.page_size)

    @property
    def num_pages(self) -> int:
        return min(self.max_seqs * self.max_pages, max(self.max_pages, MAX_PAIRS // self.page_size))


@dataclass(frozen=True, slots=True)
class _Row:
    """Neighboring pairs of one sequence, the first at `start`: the tokens, and the features before them [n, width]."""

    state: SeqState
    start: int
    token_ids: Sequence[int]
    features: Tensor


class FeatureDrafter:
    """vocab: of the model that is drafted for. wants_probs: whether drafts have probabilities. memory_bytes: of the
    draft model's weights and pages.
    """

    def __init__(self, model: FeatureModel, sizes: Sizes, vocab: int, wants_probs: bool = False) -> None:
        self._model, self._vocab, self._wants_probs = model, vocab, wants_probs
        self.reads_hidden: ReadsHidden = model.reads_hidden
        self.pages = DraftPages(sizes.num_pages, sizes.page_size)
        shapes, dtype, device = model.kv_shapes, model.dtype, model.device
        self._kv = KVCache.allocate(shapes, sizes.num_pages, sizes.page_size, dtype, device)
        self.memory_bytes = model.weight_bytes + sizes.num_pages * KVCache.page_bytes(shapes, sizes.page_size, dtype)
        self._max_rows = min(sizes.max_seqs, MAX_TOKENS)
        self._buffers = ForwardBuffers(MAX_TOKENS, self._max_rows, sizes.max_pages, device)

    @property
    def num_pages(self) -> int:
        """Pages of the cache."""
        return self._kv.num_pages

    @property
    def num_seqs(self) -> int:
        """Sequences with a state."""
        return self.pages.num_seqs

    @torch.inference_mode()
    def try_out(self) -> None:
        """Compute one pair, for which the blocks are compiled."""
        state = SeqState(0, pages=[0])
        self._model.argmax(self._run([_Row(state, 0, [0], self._model.no_feature())]))

    @torch.inference_mode()
    def observe(self, states: Sequence[HiddenStates]) -> None:
        many = []
        for each in states:
            state = self.pages.get(each.seq_id)
            if state is None or state.end != each.start:
                state = self.pages.start(each.seq_id, each.start)
            state.append(each.token_ids, self._model.read(each.rows))
            if len(state.token_ids) > MAX_WAITING:
                many.append((each.seq_id, state))
        self._compute([state for seq_id, state in many if self.pages.reserve(seq_id, state.end - state.base)], None)

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self.pages.end(seq_id)

    @torch.inference_mode()
    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        drafts = [Draft()] * len(queries)
        ready = [(i, query, state) for i, query in enumerate(queries) if (state := self._state(query)) is not None]
        if ready:
            known = [query for _, query, _ in ready]
            states = [state for *_, state in ready]
            self._compute(states, [query.token_ids[-1] for query in known])
            draws = TokenDraws(known, self._wants_probs)
            for row, ((i, query, _), *tokens) in enumerate(
                zip(ready, *self._chains(known, states, draws), strict=True)
            ):
                token_ids = until_impossible(tokens[: query.max_drafts], self._vocab)
                drafts[i] = Draft(token_ids, draws.probs(row, len(token_ids)))
        return drafts

    def _state(self, query: DraftQuery) -> SeqState | None:
        """Of a sequence whose hidden states are known up to that of the token before the newest, and that has pages."""
        state = self.pages.get(query.seq_id)
        if state is None or state.end != len(query.token_ids) - 1:
            return None
        return state if self.pages.reserve(query.seq_id, state.end - state.base + query.max_drafts - 1) else None

    def _compute(self, states: Sequence[SeqState], newest: Sequence[int] | None) -> None:
        """Compute the waiting pairs. newest: the token after each sequence's last hidden state; None = not known yet,
        so the last pair goes on waiting.
        """
        rows = []
        for i, state in enumerate(states):
            following = state.token_ids[1:] if newest is None else [*state.token_ids[1:], newest[i]]
            if state.token_ids and following:
                rows.append(_Row(state, state.computed, following, state.take(len(following))))
        for part in _parts(rows, self._max_rows):
            features = self._run(part)
            for i, row in enumerate(part):
                row.state.feature = features[i : i + 1].clone()
                row.state.computed = row.start + len(row.token_ids)

    def _chains(self, queries: Sequence[DraftQuery], states: Sequence[SeqState], draws: TokenDraws) -> list[list[int]]:
        """The first draft of each query, the second of each, and so on."""
        found: list[list[int]] = []
        features = torch.cat([state.feature for state in states if state.feature is not None])
        count = max(query.max_drafts for query in queries)
        while True:
            found.append(self._draw(features, draws, len(found)))
            if len(found) == count:
                return found
            features = torch.cat(list(self._next(queries, states, features, found)))

    def _next(
        self, queries: Sequence[DraftQuery], states: Sequence[SeqState], features: Tensor, found: list[list[int]]
    ) -> Iterator[Tensor]:
        """Features after the latest drafts; those of sequences that need no more drafts stay."""
        ahead = len(found) - 1
        rows = [
            _Row(state, state.computed + ahead, [max(found[-1][i], 0)], features[i : i + 1])
            for i, (query, state) in enumerate(zip(queries, states, strict=True))
            if query.max_drafts > len(found)
        ]
        results = iter(torch.cat([self._run(part).clone() for part in _parts(rows, self._max_rows)]).split(1))
        for i, query in enumerate(queries):
            yield next(results) if query.max_drafts > len(found) else features[i : i + 1]

    def _draw(self, features: Tensor, draws: TokenDraws, ahead: int) -> list[int]:
        if draws.all_greedy:
            return self._model.argmax(features)
        model = self._model
        return model.token_ids(draws.draw(model.ops, model.logits(features), ahead, model.columns, self._vocab))

    def _run(self, rows: Sequence[_Row]) -> Tensor:
        """Features after the last pair of each row, [rows, width]; valid until the next call."""
        size = self.pages.page_size
        lens = np.array([len(row.token_ids) for row in rows])
        starts = np.concatenate([[0], lens.cumsum()])
        contexts = np.array([row.start for row in rows]) + lens
        table = np.zeros((len(rows), max(-(-contexts.max() // size), 1)), np.int32)
        for i, row in enumerate(rows):
            used = row.state.pages[: table.shape[1]]
            table[i, : len(used)] = used
        owners = np.repeat(np.arange(len(rows)), lens)
        positions = np.arange(starts[-1]) - starts[owners] + (contexts - lens)[owners]
        forward = self._buffers.fill(
            np.concatenate([np.array(row.token_ids, np.int64) for row in rows]),
            positions,
            table[owners, positions // size].astype(np.int64) * size + positions % size,
            starts,
            contexts,
            table,
            starts[1:] - 1,
            self._kv,
        )
        return self._model(forward, torch.cat([row.features for row in rows]))


def feature_drafter(model: FeatureModel, context: DrafterContext) -> FeatureDrafter:
    """A drafter for sequences of the model. Raises ConfigError if the draft model cannot run."""
    info = context.target.info
    sizes = Sizes(
        page_size=info.page_size,
        max_seqs=context.max_num_seqs,
        max_model_len=context.max_model_len,
        max_drafts=context.max_drafts,
    )
    drafter = FeatureDrafter(
        model.eval().requires_grad_(False), sizes, context.target.decoder.vocab, context.wants_probs
    )
    try:
        drafter.try_out()
    except Exception as error:  # an op may refuse the sizes of the block in any way
        raise ConfigError(f"The draft model cannot run on {info.device}: {error!r:.200}") from error
    return drafter


def _parts(rows: Sequence[_Row], max_rows: int) -> Iterator[list[_Row]]:
    """The rows in groups of at most `MAX_TOKENS` pairs; longer rows are cut, and computed one part after another."""
    part: list[_Row] = []
    space = MAX_TOKENS
    for row in rows:
        begin = 0
        while begin < len(row.token_ids):
            if not space or len(part) == max_rows:
                yield part
                part, space = [], MAX_TOKENS
            end = min(len(row.token_ids), begin + space)
            part.append(_Row(row.state, row.start + begin, row.token_ids[begin:end], row.features[begin:end]))
            space -= end - begin
            begin = end
    if part:
        yield part
