"""The tokens of a step whose hidden states are needed: to sample after them, to score prompts, to pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from quire.engine.pooling.poolers import Poolers
from quire.engine.runner.input_batch import InputBatch, Int64Array, StepInputs
from quire.types import Chunk


@dataclass(frozen=True, slots=True)
class SelectedTokens:
    """The tokens whose hidden states a step returns.

    index: int64, tokens of the step: one for each of `sampled` and of its drafts, then those of each of `scored`, then
    of `pooled`. sampled: seq ids. drafts, probs: by seq id, the latter of drafts that have some. scored: seq id, the
    prompt tokens that follow the selected ones, how many alternatives to report for each. pooled: seq id, number of
    tokens.
    """

    index: Int64Array
    sampled: list[int]
    scored: list[tuple[int, Sequence[int], int]]
    pooled: list[tuple[int, int]]
    drafts: dict[int, Sequence[int]]
    probs: dict[int, Tensor]

    @classmethod
    def from_chunks(
        cls, chunks: Sequence[Chunk], inputs: StepInputs, batch: InputBatch, poolers: Poolers
    ) -> SelectedTokens:
        drafts = {chunk.seq_id: chunk.drafts for chunk in chunks if chunk.num_drafts}
        if drafts and len(chunks) == 1:  # one sequence with drafts: the last tokens
            count = len(inputs.tokens)
            parts = [np.arange(count - 1 - chunks[0].num_drafts, count)]
        else:
            samples = np.fromiter((chunk.samples for chunk in chunks), np.bool_, len(chunks))
            parts = [inputs.starts[1:][samples] - 1]
        if drafts and len(chunks) > 1:
            counts = np.fromiter((1 + chunk.num_drafts for chunk in chunks), np.int64, len(chunks))[samples]
            ends = counts.cumsum()
            parts = [(parts[0] + 1 - ends).repeat(counts) + np.arange(ends[-1])]
        scored: list[tuple[int, Sequence[int], int]] = []
        pooled: list[tuple[int, int]] = []
        for i, chunk in enumerate(chunks):
            row = batch[chunk.seq_id]
            if row.num_prompt_logprobs is None:
                continue
            following = row.prompt_ids[chunk.start + 1 : chunk.start + len(chunk.token_ids) + 1]
            if following:
                scored.append((chunk.seq_id, following, row.num_prompt_logprobs))
                parts.append(np.arange(inputs.starts[i], inputs.starts[i] + len(following), dtype=np.int64))
        for i, chunk in enumerate(chunks) if batch.num_pooled else ():
            tokens = poolers.token_range(chunk)
            if tokens is not None:
                pooled.append((chunk.seq_id, len(tokens)))
                parts.append(np.arange(tokens.start, tokens.stop, dtype=np.int64) + inputs.starts[i])
        sampled = [chunk.seq_id for chunk in chunks if chunk.samples]
        probs = {chunk.seq_id: chunk.draft_probs for chunk in chunks if chunk.draft_probs is not None} if drafts else {}
        return cls(parts[0] if len(parts) == 1 else np.concatenate(parts), sampled, scored, pooled, drafts, probs)

    @property
    def is_plain(self) -> bool:
        """Whether hidden states are only needed to sample one token of each sequence."""
        return not (self.drafts or self.scored or self.pooled)

    @property
    def rows(self) -> list[int]:
        """The seq id of each token to sample after."""
        drafts = self.drafts
        return [each for each in self.sampled for _ in range(1 + len(drafts.get(each, ())))] if drafts else self.sampled
