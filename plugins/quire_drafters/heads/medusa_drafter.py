"""Drafts with Medusa heads: a chain of one token per head, all from one hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quire.plugin import Draft, DraftQuery, HiddenStates, Projection, ReadsHidden
from quire_drafters.heads.drawing import TokenDraws, until_impossible
from quire_drafters.heads.medusa_heads import MedusaHeads


class MedusaDrafter:
    """Keeps the hidden state of the last computed token of each sequence.

    target: the loaded model. wants_probs: whether drafts have probabilities. memory_bytes: of the heads.
    """

    reads_hidden = ReadsHidden()

    def __init__(self, heads: MedusaHeads, target: Any, wants_probs: bool) -> None:
        self._heads, self._wants_probs = heads, wants_probs
        self._ops, self._vocab, self._module = target.ops, target.decoder.vocab, target.module
        self._uses_model_head = all(head is None for head in heads.heads)
        self.memory_bytes = heads.num_weights * target.dtype.itemsize
        self._last: dict[int, tuple[int, Tensor]] = {}  # position and hidden state, by seq id

    @property
    def num_seqs(self) -> int:
        """Sequences with a state."""
        return len(self._last)

    def observe(self, states: Sequence[HiddenStates]) -> None:
        for each in states:
            self._last[each.seq_id] = each.start, each.rows.clone()

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        known = [(i, query) for i, query in enumerate(queries) if self._is_known(query)]
        drafts = [Draft()] * len(queries)
        if known:
            draws = TokenDraws([query for _, query in known], self._wants_probs)
            chains = self._chains([query for _, query in known], draws)
            for row, ((i, query), tokens) in enumerate(zip(known, chains, strict=True)):
                token_ids = until_impossible(tokens[: query.max_drafts], self._vocab)
                drafts[i] = Draft(token_ids, draws.probs(row, len(token_ids)))
        return drafts

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self._last.pop(seq_id, None)

    def _is_known(self, query: DraftQuery) -> bool:
        """Whether the hidden state is that of the token before the newest."""
        position, _ = self._last.get(query.seq_id, (-1, None))
        return position == len(query.token_ids) - 2

    @torch.inference_mode()
    def _chains(self, queries: Sequence[DraftQuery], draws: TokenDraws) -> Sequence[Sequence[int]]:
        """The tokens of all heads, for each query."""
        states = [self._last[query.seq_id][1] for query in queries]
        rows = states[0] if len(states) == 1 else torch.cat(states)
        count = min(len(self._heads.heads), max(query.max_drafts for query in queries))
        inputs = self._heads.inputs(rows, count)
        if self._uses_model_head and draws.all_greedy:  # one product for all heads
            tokens: list[int] = self._module.argmax(inputs.view(-1, inputs.shape[-1]))
            return [tokens[i : i + count] for i in range(0, len(tokens), count)]
        chains = [
            self._drawn(head, inputs[:, ahead].contiguous(), draws, ahead)
            for ahead, head in enumerate(self._heads.heads[:count])
        ]
        return list(zip(*chains, strict=True))

    def _drawn(self, head: Projection | None, x: Tensor, draws: TokenDraws, ahead: int) -> list[int]:
        """The tokens of one head; x: what its projection gets."""
        if head is None:
            return draws.draw(self._ops, self._module.logits(x), ahead)
        argmax = getattr(head.multiply, "argmax", None)
        if draws.all_greedy and argmax is not None:
            greedy: list[int] = argmax(x)
            return greedy
        return draws.draw(self._ops, head.multiply(x, True), ahead)
