"""Computes plans with one model on one device: it owns the model, the KV caches and the input batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.embeddings import MultimodalEmbeddings, StepMedia
from quire.engine.pooling.poolers import Poolers
from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.recurrent.state_runner import StateLost, StateRunner
from quire.engine.runner.forward_executor import ForwardExecutor
from quire.engine.runner.input_batch import InputBatch, Int64Array, StepInputs
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.engine.runner.selected_tokens import SelectedTokens
from quire.engine.runner.sizes import RunnerSizes
from quire.engine.sampling.logprobs import PROMPT_LOGPROBS_BATCH, no_logits, token_logprobs
from quire.engine.sampling.sampler import Sampler, SamplingState
from quire.engine.sampling.sampling_states import SamplingStates
from quire.engine.speculation.acceptance import Acceptance
from quire.engine.speculation.grammar_drafts import follow_grammars
from quire.engine.speculation.hidden_tap import HiddenTap
from quire.engine.speculation.verification import verify, verify_argmax
from quire.engine.structured.constraint_tracker import PendingBitmask
from quire.engine.structured.grammars import Grammars
from quire.params.pooling import PoolingParams, PoolingResult
from quire.params.sampling import SamplingParams
from quire.records import Draft
from quire.types import AcceptedDrafts, NewSeq, Plan, Sample, StepResult, TokenLogprobs
from quire_models import KVCache

log = logging.getLogger(__name__)


class ModelRunner:
    """Runs the steps of one model.

    batch_invariant: every bit of a result depends only on its own sequence. Where operations may sum in an order that
    depends on shapes (`is_batch_invariant` of the module), each token has a forward of its own, or all tokens of a
    medium that see each other. describe_error: the error message of a request whose forward raised. tap: takes hidden
    states for a drafter. acceptance: of drafts, None = exact. max_in_flight: plans that are launched before the oldest
    of them is finished. knows_samples: whether these may need tokens that the ones before them sample (`UNKNOWN`).
    """

    max_in_flight, knows_samples = 1, False

    def __init__(
        self,
        loaded: LoadedModel,
        sizes: RunnerSizes,
        processors: LogitsProcessors,
        grammars: Grammars,
        adapters: AdapterMapping,
        towers: MultimodalEmbeddings,
        poolers: Poolers,
        batch_invariant: bool = False,
        describe_error: Callable[[Exception], str] = str,
        tap: HiddenTap | None = None,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._sampling = SamplingStates(loaded.eos_ids, processors, grammars)
        self._grammars = grammars
        self._adapters = adapters
        self._towers = towers
        self._poolers = poolers
        self._ops = loaded.ops
        self._sampler = Sampler(processors, grammars.constraints, loaded.ops)
        self._batch_invariant, self._tap, self._acceptance = batch_invariant, tap, acceptance
        self._has_exact_head = getattr(loaded.module, "has_invariant_logits", lambda adapters: False)
        shapes, dtype, device = loaded.decoder.kv_shapes, loaded.kv_dtype, loaded.device
        self.kv = KVCache.allocate(shapes, sizes.num_pages, sizes.page_size, dtype, device)
        self.host_kv = KVCache.allocate(
            shapes, sizes.num_host_pages, sizes.page_size, dtype, "cpu", pin_memory=device.type == "cuda"
        )
        axes, bidirectional = loaded.decoder.position_axes, loaded.decoder.bidirectional_media
        self._batch = InputBatch(sizes.max_rows + 8, sizes.max_pages, sizes.page_size, axes, bidirectional)
        self._state = StateRunner(loaded, sizes) if sizes.num_state_slots else None
        cache = self._state.cache if self._state is not None else None
        self._executor = ForwardExecutor(loaded, sizes, self.kv, adapters, batch_invariant, describe_error, cache)
        has_lm_head, heads = loaded.decoder.has_lm_head, self._executor.heads
        self._head: Callable[..., Tensor] = heads.logits if has_lm_head else no_logits
        self._argmax: Callable[..., list[int]] | None = heads.argmax if has_lm_head else None

    def reset(self) -> None:
        """Drop every sequence. The contents of pages stay."""
        self._batch.clear()
        self._adapters.clear()
        self._towers.clear()
        self._poolers.clear()

    def follow_grammars(self, drafts: Mapping[int, Draft]) -> Mapping[int, Draft]:
        """The drafts as far as the grammars of their sequences allow them, with the tokens that these force."""
        if not drafts or not self._batch.num_constrained:
            return drafts
        return follow_grammars(self._grammars.constraints, self._batch.sampling_states(drafts), drafts)

    def launch(self, plan: Plan) -> LaunchedPlan:
        """Begin to compute a plan, after those that were launched before. Raises what `finish` may raise."""
        launched = LaunchedPlan(plan=plan)
        launched.result = self._compute(plan)
        return launched

    def finish(self, launched: LaunchedPlan) -> StepResult:
        """The result of the oldest plan that is not finished; failures of single sequences are in it.

        Any other exception is raised; then the results of later plans are not valid either.
        """
        assert launched.result is not None, "it is computed at once"
        return launched.result

    @torch.inference_mode()
    def _compute(self, plan: Plan) -> StepResult:
        self._update_batch(plan)
        if not plan.chunks:
            return StepResult({})
        return self._result(plan, *self._step(plan))

    def _step(self, plan: Plan) -> tuple[StepInputs, SelectedTokens, list[SamplingState]]:
        """The arrays of a step, which of its tokens count, and the states of those to sample after."""
        inputs = self._batch.build_inputs(plan.chunks)
        selected = SelectedTokens.from_chunks(plan.chunks, inputs, self._batch, self._poolers)
        states = [state for seq_id in selected.sampled if (state := self._batch[seq_id].sampling) is not None]
        return inputs, selected, states

    def _media(self, plan: Plan, inputs: StepInputs) -> tuple[StepMedia | None, dict[int, str]]:
        """Embeddings of media, and failures; keys and values of virtual tokens are stored."""
        media, failures = None, dict[int, str]()
        if self._batch.num_with_media:
            media, failures = self._towers.rows(plan.chunks, inputs.starts)
        if self._adapters.to_store:
            failures |= self._adapters.store_virtual(plan.chunks, self.kv)
        return media, failures

    def _result(
        self, plan: Plan, inputs: StepInputs, selected: SelectedTokens, states: Sequence[SamplingState]
    ) -> StepResult:
        masks = self._start_masks(plan, states) if self._batch.num_constrained else None
        media, failures = self._media(plan, inputs)
        index = selected.index if self._tap is None else self._tap.index(selected, plan)
        try:
            hidden = every = self._hidden_states(plan, inputs, index, media, failures)
        except StateLost:
            return StepResult({}, lost=frozenset(chunk.seq_id for chunk in plan.chunks))
        if self._state is not None and plan.state is not None:
            self._state.after(plan.state)
        if self._tap is not None:
            hidden = self._tap.selected(every, selected)
        samples, accepted = self._sample(hidden, selected, states, masks, failures)
        prompt_logprobs = self._prompt_logprobs(hidden, selected, failures)
        pooled = self._pool(plan, hidden, selected, failures)
        read = self._tap.read(every, plan, accepted, failures) if self._tap is not None else ()
        return StepResult(samples, prompt_logprobs, failures, pooled, accepted=accepted, hidden=read)

    def _update_batch(self, plan: Plan) -> None:
        """Drop ended rows, move pages, add new rows: in this order, as `Plan` says."""
        for seq_id in plan.ended:
            self._batch.end(seq_id)
            self._towers.end(seq_id)
            self._poolers.end(seq_id)
            self._adapters.end(seq_id)
        if plan.swaps_out or plan.swaps_in or plan.copies:
            KVCache.swap(self.kv, self.host_kv, plan.swaps_out)
            KVCache.swap(self.host_kv, self.kv, plan.swaps_in)
            self.kv.copy(plan.copies)
        if self._state is not None and plan.state is not None:
            self._state.before(plan.state)
        for new_seq in plan.started:
            self._start(new_seq)
            if new_seq.media:
                self._towers.start(new_seq)
            if new_seq.adapters:
                self._adapters.start(new_seq)

    def _start(self, new_seq: NewSeq) -> None:
        params, state = new_seq.params, None
        if isinstance(params, PoolingParams):
            self._poolers.start(new_seq, params)
        else:
            state = self._sampling_state(new_seq)
        num_prompt_logprobs = params.prompt_logprobs if isinstance(params, SamplingParams) else None
        self._batch.start(
            new_seq.seq_id, state, new_seq.prompt_ids, num_prompt_logprobs, new_seq.token_types, new_seq.media
        )

    def _sampling_state(self, new_seq: NewSeq) -> SamplingState:
        return self._sampling.start(new_seq)

    def _hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        """Hidden states of the tokens in `index`. If the model raises, rows are computed one by one and only those that
        raise fail; raises if all do. Rows with state are computed one by one in later steps: raises StateLost."""
        if self._state is not None and self._state.has_suspects(plan.chunks):
            return self._executor.hidden_states_by_row(plan, inputs, index, media, failures, None)
        try:
            return self._executor.hidden_states(plan, inputs, index, media, failures)
        except Exception as error:
            if getattr(error, "lasting", False):  # a rank is lost
                raise
            log.exception("A step of %d tokens failed; its rows are computed one by one", plan.num_tokens)
            if self._state is not None:
                self._state.suspect(plan.chunks)
                raise StateLost from error
            return self._executor.hidden_states_by_row(plan, inputs, index, media, failures, error)

    def _start_masks(self, plan: Plan, states: Sequence[SamplingState]) -> PendingBitmask | None:
        """Start to fill the grammar masks of the rows to sample; beams first accept the tokens chosen for them."""
        for chunk in plan.chunks:
            row = self._batch[chunk.seq_id]
            if chunk.samples and row.sampling is not None and row.sampling.is_beam:
                num_known = len(row.prompt_ids) + len(row.sampling.output_ids)
                self._sampler.sync(row.sampling, chunk.token_ids[num_known - chunk.start :])
        return self._sampler.start_masks(states)

    def _logits(self, hidden: Tensor, seq_ids: Sequence[int], failures: dict[int, str]) -> Tensor:
        """hidden [rows, width], row i of seq_ids[i] -> float32 [rows, vocab]. Adds to `failures`."""
        parts = [
            self._head(rows) if adapters is None else self._head(rows, adapters)
            for rows, adapters in self._with_adapters(hidden, seq_ids, failures)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _with_adapters(
        self, hidden: Tensor, seq_ids: Sequence[int], failures: dict[int, str]
    ) -> Iterator[tuple[Tensor, Any | None]]:
        """Groups of rows that go through the head together, each with the adapters bound for it."""
        adapters = self._bind_logits(seq_ids, failures)
        if not self._batch_invariant or self._has_exact_head(adapters):
            yield hidden, adapters
            return
        for i in range(len(hidden)):
            yield hidden[i : i + 1], self._bind_logits(seq_ids[i : i + 1], failures)

    def _bind_logits(self, seq_ids: Sequence[int], failures: dict[int, str]) -> Any | None:
        """The adapters argument of a head for one row of each of these seqs. Adds to `failures`."""
        if not self._adapters.slots:
            return None
        adapters, failed = self._adapters.bind_logits(seq_ids)
        failures |= failed
        return adapters

    def _sample(
        self,
        hidden: Tensor,
        selected: SelectedTokens,
        states: Sequence[SamplingState],
        masks: PendingBitmask | None,
        failures: dict[int, str],
    ) -> tuple[Mapping[int, Sample], Mapping[int, AcceptedDrafts]]:
        """The first sample of each seq, and what drafts add to it."""
        if not states:
            return {}, {}
        rows = selected.rows
        if len(hidden) > len(rows):
            hidden = hidden[: len(rows)]
        drafts = [selected.drafts.get(seq_id, ()) for seq_id in selected.sampled] if selected.drafts else ()
        if self._argmax is not None and all(state.is_plain_greedy for state in states):
            parts = [self._argmax(*bound) for bound in self._with_adapters(hidden, rows, failures)]
            tokens = list(chain.from_iterable(parts))
            verified = verify_argmax(self._sampler, tokens, states, drafts)
        else:
            logits, probs = self._logits(hidden, rows, failures), [selected.probs.get(i) for i in selected.sampled]
            verified = verify(self._sampler, logits, states, masks, drafts, probs if drafts else (), self._acceptance)
        samples, accepted = verified
        return dict(zip(selected.sampled, samples, strict=True)), {
            seq_id: each for seq_id, each in zip(selected.sampled, accepted, strict=False) if each is not None
        }

    def _prompt_logprobs(
        self, hidden: Tensor, selected: SelectedTokens, failures: dict[int, str]
    ) -> Mapping[int, Sequence[TokenLogprobs]]:
        found: dict[int, Sequence[TokenLogprobs]] = {}
        first = len(selected.rows)
        for seq_id, token_ids, num_top in selected.scored:
            entries: list[TokenLogprobs] = []
            for i in range(0, len(token_ids), PROMPT_LOGPROBS_BATCH):
                batch = token_ids[i : i + PROMPT_LOGPROBS_BATCH]
                rows = hidden[first + i : first + i + len(batch)]
                logits = self._logits(rows, [seq_id] * len(batch), failures)
                entries += token_logprobs(self._ops.logprobs, logits, batch, [num_top] * len(batch))
            first += len(token_ids)
            found[seq_id] = entries
        return found

    def _pool(
        self, plan: Plan, hidden: Tensor, selected: SelectedTokens, failures: dict[int, str]
    ) -> Mapping[int, PoolingResult]:
        if not self._batch.num_pooled:
            return {}
        rows = hidden[len(hidden) - sum(count for _, count in selected.pooled) :]
        return self._poolers.pool(rows, selected.pooled, plan.chunks, partial(self._bind_logits, failures=failures))
