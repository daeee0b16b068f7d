"""Drafts with a model: feeds it what it has not seen, then lets it generate a few tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.engine.runner.forward_executor import ForwardExecutor
from quire.engine.runner.input_batch import InputBatch, Int64Array, StepInputs
from quire.engine.speculation.draft_model.draft_adapters import EVERY, DraftAdapters
from quire.engine.speculation.draft_model.draft_cache import DraftCache, DraftSeq
from quire.engine.speculation.draft_model.draft_inputs import DraftInputs
from quire.engine.speculation.draft_model.draft_sampler import DraftDraws, DraftSampler
from quire.records import Draft, DraftQuery
from quire.types import Chunk, Plan

NO_DRAFT = Draft()


class ModelDrafter:
    """A drafter (`quire.records.DrafterImpl`). vocab_size, memory_bytes (weights and pages): of the draft
    model; ids beyond its vocabulary, which are padding, are computed as its last. adapters: of the draft model.

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
        adapters: DraftAdapters,
    ) -> None:
        self._executor, self._batch, self._cache, self._sampler = executor, batch, cache, sampler
        self._max_num_seqs, self._last_id = max_num_seqs, vocab_size - 1
        self.memory_bytes = memory_bytes
        self._adapters = adapters.mapping
        self.adapter_names = frozenset(adapters.uses) - {EVERY}

    @torch.inference_mode()
    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        try:
            drafts = self._drafts(queries[: self._max_num_seqs])
        except BaseException:
            self._cache.clear()  # it is unknown which K and V were written
            raise
        return [drafts.get(query.seq_id, NO_DRAFT) for query in queries]

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self._cache.end(seq_id)

    def _drafts(self, queries: Sequence[DraftQuery]) -> dict[int, Draft]:
        planned = self._cache.plan(queries)
        if not planned:
            return {}
        seqs = [seq for seq, chunk in planned if chunk.samples]
        hidden = self._feed([chunk for _, chunk in planned])
        if seqs:
            self._generate(seqs, hidden)
        return {seq.id: Draft(seq.drafts, torch.stack(seq.probs) if seq.probs else None) for seq in seqs}

    def _feed(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute the chunks. Hidden states of the last tokens of those that sample: [chunks, width]"""
        inputs = self._batch.build_inputs(chunks)
        samples = np.fromiter((chunk.samples for chunk in chunks), np.bool_, len(chunks))
        return self._compute(chunks, inputs, inputs.starts[1:][samples] - 1)

    def _generate(self, seqs: Sequence[DraftSeq], hidden: Tensor) -> None:
        """Draft for sequences whose last hidden states are given."""
        draws = self._sampler.start(seqs)
        inputs = DraftInputs(self._batch.build_inputs([seq.draft_chunk() for seq in seqs]))
        drawn = [draws.draw(hidden, self._bound_logits(seqs))]
        while True:
            rows = [i for i, seq in enumerate(seqs) if seq.extend(tokens[i] for tokens in drawn)]
            if not rows:
                return
            tokens = drawn[-1]
            if len(rows) < len(seqs):
                seqs, tokens = [seqs[i] for i in rows], [tokens[i] for i in rows]
                draws.keep(rows)
                inputs.keep(rows)
            drawn = self._continue(seqs, tokens, inputs, draws)

    def _continue(
        self, seqs: Sequence[DraftSeq], tokens: list[int], inputs: DraftInputs, draws: DraftDraws
    ) -> list[list[int]]:
        """The next drafts of each sequence: one, or as many as each needs if the model can compute them in one call."""
        step = inputs.next(tokens)
        if draws.are_greedy:
            count = min(seq.num_drafts - len(seq.drafts) for seq in seqs)
            found = self._executor.generate(self._checked(step), inputs.slots(count))
            if found is not None:
                inputs.skip(count)
                return [draws.known(drafts) for drafts in found.tolist()]
        inputs.skip(1)
        chunks = [Chunk(seq.id, seq.length, (0,), (), samples=True) for seq in seqs] if self._adapters.slots else ()
        return [draws.draw(self._compute(chunks, step, step.starts[:-1]), self._bound_logits(seqs))]

    def _bound_logits(self, seqs: Sequence[DraftSeq]) -> Any:
        """The adapters argument of the head for a row of each sequence."""
        if not self._adapters.slots:
            return None
        bound, failures = self._adapters.bind_logits([seq.id for seq in seqs])
        _check(failures)
        return bound

    def _compute(self, chunks: Sequence[Chunk], inputs: StepInputs, index: Int64Array) -> Tensor:
        """chunks: those of the inputs, by which adapters are bound."""
        failures = dict[int, str]()
        plan = Plan(chunks=tuple(chunks))
        hidden = self._executor.hidden_states(plan, self._checked(inputs), index, None, failures)
        _check(failures)
        return hidden

    def _checked(self, inputs: StepInputs) -> StepInputs:
        """The inputs with tokens of the draft model only."""
        np.minimum(inputs.tokens, self._last_id, out=inputs.tokens)
        return inputs


def _check(failures: Mapping[int, str]) -> None:
    """Raise RuntimeError if an adapter could not be bound."""
    for message in failures.values():
        raise RuntimeError(message)
