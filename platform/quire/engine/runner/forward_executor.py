"""Hidden states of a step: from one call of the model, or from several where rows must not share a forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.graphs.capture import capture
from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.cross_attention import CrossAttentionInputs
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.engine.runner.sizes import RunnerSizes
from quire.types import Plan
from quire_models import ForwardBatch, ForwardBuffers, KVCache, MediaRows, StateCache


class ForwardExecutor:
    """Calls one model, whose keys and values are in `kv`. batch_invariant, describe_error: see `ModelRunner`.

    find_tokens: replaces negative tokens of a step on the device, if there may be some.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sizes: RunnerSizes,
        kv: KVCache,
        adapters: AdapterMapping,
        batch_invariant: bool,
        describe_error: Callable[[Exception], str] = str,
        state: StateCache | None = None,
    ) -> None:
        decoder = loaded.decoder
        self._model, self._kv, self._state, self._adapters = loaded.module, kv, state, adapters
        self._batch_invariant, self.describe_error = batch_invariant, describe_error
        self._non_causal, self._page_size = decoder.non_causal, sizes.page_size
        self._width, self._dtype, self._device = decoder.width, loaded.dtype, loaded.device
        self._buffers = ForwardBuffers(
            sizes.max_tokens, sizes.max_rows, sizes.max_pages, loaded.device, decoder.position_axes
        )
        self.graphs = capture(loaded, sizes, kv, adapters, state)
        self.heads: Any = self.graphs or loaded.module  # `logits` and `argmax` of hidden states
        self.find_tokens: Callable[[Tensor], Tensor] | None = None
        self._is_exact = getattr(loaded.module, "is_batch_invariant", lambda adapters: False)
        self._cross_attention: CrossAttentionInputs | None = None
        if decoder.encoder_input is not None:
            self._cross_attention = CrossAttentionInputs(
                decoder.encoder_input,
                loaded.module,
                kv,
                adapters,
                max_tokens=sizes.max_tokens,
                max_model_len=sizes.max_model_len,
                batch_invariant=batch_invariant,
            )

    def hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """Hidden states of the tokens in `index`: [len(index), width]. All tokens are computed.

        For a model with cross-attention the encoder inputs of the step are stored first. Adds to `failures`.
        """
        if self._cross_attention is None:
            return self._compute(plan, inputs, index, media, failures)
        self._cross_attention.store(plan, inputs, media, failures)
        text = self._cross_attention.text(plan, inputs, index)
        return torch.empty(0) if text is None else self._compute(*text, None, failures)

    def _compute(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        adapters, graphs = self._bind(plan, failures), None if media else self.graphs
        if not self._batch_invariant or self._is_exact(adapters):
            if graphs is not None and (found := graphs.run(inputs, index, adapters)) is not None:
                return found
            hidden: Tensor = self._model(self._fill(inputs, index, media.all() if media else None, adapters))
            return hidden
        if self._non_causal:
            return self._compute_rows(plan, inputs, index, media, failures)
        every: list[Tensor] = []
        for begin, end in inputs.independent_ranges():
            adapters = self._bind(_plan_of_range(plan, inputs, begin, end), failures)
            rows, indices = media.some(begin, end) if media else None, np.arange(end - begin)
            hidden = self._model(self._fill(inputs.token_range(begin, end, self._page_size), indices, rows, adapters))
            every += hidden.clone().split(1)  # valid until the next call only
        return torch.cat([every[token] for token in index]) if len(index) else every[0][:0]

    def _compute_rows(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """Hidden states of a non-causal model, each prompt in a forward of its own."""
        found = []
        for row, chunk in enumerate(plan.chunks):
            adapters = self._bind(replace(plan, chunks=(chunk,)), failures)
            begin, end = inputs.starts[row], inputs.starts[row + 1]
            in_row = index[(index >= begin) & (index < end)] - begin
            rows = media.some(int(begin), int(end)) if media else None
            found.append(self._model(self._fill(inputs.row(row), in_row, rows, adapters)).clone())
        return torch.cat(found)

    def hidden_states_by_row(
        self,
        plan: Plan,
        inputs: StepInputs,
        index: Int64Array,
        media: StepMedia | None,
        failures: dict[int, str],
        error: Exception | None,
    ) -> Tensor:
        """Like `hidden_states`, after that raised `error`: each row in a forward of its own, in the order of the plan.

        Rows that raise alone, and those that read pages which these should have filled, are added to `failures`; their
        hidden states are 0. Raises the last error if none of several rows can be computed. error: None if an earlier
        step with these seqs raised.
        """
        again = error is None
        if error is not None and (self._cross_attention is not None or len(plan.chunks) == 1):
            raise error
        hidden: Tensor | None = None
        unfilled: set[int] = set()
        for row, chunk in enumerate(plan.chunks):
            begin, end = int(inputs.starts[row]), int(inputs.starts[row + 1])
            pages = inputs.pages[row, : -(-int(inputs.contexts[row]) // self._page_size)]
            in_row = (index >= begin) & (index < end)
            try:
                if error is not None and not unfilled.isdisjoint(pages.tolist()):
                    raise error
                adapters = self._bind(replace(plan, chunks=(chunk,)), failures)
                rows = media.some(begin, end) if media else None
                found = self._model(self._fill(inputs.row(row), index[in_row] - begin, rows, adapters))
            except Exception as raised:
                error = raised
                failures[chunk.seq_id] = self.describe_error(raised)
                unfilled.update(pages[chunk.start // self._page_size :].tolist())
                continue
            if hidden is None:
                hidden = found.new_zeros(len(index), found.shape[-1])
            hidden[torch.from_numpy(in_row).to(hidden.device)] = found
        if hidden is not None:
            return hidden
        if error is not None and not (again and len(plan.chunks) == 1):
            raise error
        return torch.zeros(len(index), self._width, dtype=self._dtype, device=self._device)

    def generate(self, inputs: StepInputs, slots: Int64Array) -> Int64Array | None:
        """The most likely tokens after those of `inputs`, one a row, one after the other: [N, rows]. slots: [N, rows],
        where their keys and values go. None if the model cannot compute several at once."""
        generate = getattr(self._model, "generate", None)
        if generate is None or self._adapters.slots or self._batch_invariant:
            return None
        found = generate(self._fill(inputs, np.arange(len(inputs.tokens)), None, None), torch.from_numpy(slots))
        return None if found is None else found.numpy()

    def _bind(self, plan: Plan, failures: dict[int, str]) -> Any:
        """`ForwardBatch.adapters` for these chunks. Adds to `failures`."""
        if not self._adapters.slots:
            return None
        adapters, failed = self._adapters.bind(plan)
        failures |= failed
        return adapters

    def _fill(self, inputs: StepInputs, logit_rows: Int64Array, media: MediaRows | None, adapters: Any) -> ForwardBatch:
        batch = self._buffers.fill(
            inputs.tokens,
            inputs.positions,
            inputs.slot_mapping,
            inputs.starts,
            inputs.contexts,
            inputs.pages,
            logit_rows,
            self._kv,
            media_rows=media,
            adapters=adapters,
            prompt_lens=inputs.prompt_lens,
            token_types=inputs.token_types,
            rope_positions=inputs.rope_positions,
            visible_ends=inputs.ends,
            cross_attention=None if self._cross_attention is None else self._cross_attention.metadata(inputs),
            state=self._state,
            state_slots=inputs.state_slots,
            batch_invariant=self._batch_invariant,
        )
        if self.find_tokens is not None and (inputs.tokens < 0).any():
            batch.tokens = self.find_tokens(batch.tokens)
        return batch


def _plan_of_range(plan: Plan, inputs: StepInputs, begin: int, end: int) -> Plan:
    """A plan of only the step's tokens begin … end - 1, which belong to one chunk."""
    row = int(np.searchsorted(inputs.starts, begin, side="right")) - 1
    chunk, offset = plan.chunks[row], begin - int(inputs.starts[row])
    token_ids = tuple(chunk.token_ids[offset : offset + end - begin])
    return Plan(chunks=(replace(chunk, start=chunk.start + offset, token_ids=token_ids, new_pages=()),))
