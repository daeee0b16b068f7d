"""Drafts with a model: feeds it what it has not seen, then lets it generate a few tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.engine.runner.forward_executor import ForwardExecutor
from quire.engine.runner.input_batch import InputBatch
from quire.engine.speculation.draft_model.draft_cache import DraftCache, DraftSeq
from quire.engine.speculation.draft_model.draft_sampler import DraftSampler
from quire.records import Draft, DraftQuery
from quire.types import Chunk, Plan


class ModelDrafter:
    """A drafter (`quire.records.DrafterImpl`). vocab_size, memory_bytes (weights and pages): of the draft
    model; ids beyond its vocabulary, which are padding, are computed as its last.

    A prompt is computed over several steps, beside the drafts of other sequences; its drafts begin when it is done.
    """

    def __init__(
        self,
        executor: ForwardExecutor,
        batch: InputBatch,
        cache: DraftCache,
        sampler: DraftSampler,
        max_num_seqs: int,
        vocab_size: int,
        memory_bytes: int,
    ) -> None:
        self._executor, self._batch, self._cache, self._sampler = executor, batch, cache, sampler
        self._max_num_seqs, self._last_id = max_num_seqs, vocab_size - 1
        self.memory_bytes = memory_bytes

    @torch.inference_mode()
    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        try:
            drafts = self._drafts(queries[: self._max_num_seqs])
        except BaseException:
            self._cache.clear()  # it is unknown which K and V were written
            raise
        return [Draft(drafts.get(query.seq_id, ())) for query in queries]

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self._cache.end(seq_id)

    def _drafts(self, queries: Sequence[DraftQuery]) -> dict[int, Sequence[int]]:
        planned = self._cache.plan(queries)
        if not planned:
            return {}
        seqs = drafting = [seq for seq, chunk in planned if chunk.samples]
        hidden = self._compute([chunk for _, chunk in planned])
        while drafting:
            tokens = self._sampler.draw(hidden, drafting)
            drafting = [seq for seq, token in zip(drafting, tokens, strict=True) if _append(seq, token)]
            if drafting:
                hidden = self._compute([seq.next_chunk() for seq in drafting])
        return {seq.id: seq.drafts for seq in seqs}

    def _compute(self, chunks: list[Chunk]) -> Tensor:
        """Hidden states of the last tokens of the chunks that sample: [chunks, width]."""
        inputs = self._batch.build_inputs(chunks)
        np.minimum(inputs.tokens, self._last_id, out=inputs.tokens)
        samples = np.fromiter((chunk.samples for chunk in chunks), np.bool_, len(chunks))
        index = inputs.starts[1:][samples] - 1
        return self._executor.hidden_states(Plan(chunks=tuple(chunks)), inputs, index, None, {})


def _append(seq: DraftSeq, token: int) -> bool:
    """Whether to draft another token after this one."""
    if token < 0:
        return False
    seq.drafts.append(token)
    return len(seq.drafts) < seq.num_drafts
