"""Applies the result of a step to the sequences and makes the deltas that report it.

It appends tokens, advances `Seq.computed`, and decides which sequences are finished and why. Stop strings are found in
the API process and arrive here as aborts.
"""

from __future__ import annotations

from typing import Any

from quire.engine.sampling.not_finite import NOT_FINITE
from quire.engine.scheduler.beam import BeamSearch
from quire.engine.scheduler.seq import Seq, SeqGroup, Status
from quire.engine.scheduler.state import SchedulerState
from quire.errors import WireError
from quire.types import AcceptedDrafts, Chunk, FinishReason, Plan, Sample, SeqDelta, StepResult


class Committer:
    """Commits steps to `state`, and finishes requests before their time."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._beam_search = BeamSearch(state)

    def commit(self, plan: Plan, result: StepResult, token_s: float) -> list[SeqDelta]:
        """Apply one step. Chunks of sequences that were aborted since `plan` are skipped."""
        state = self._state
        deltas: list[SeqDelta] = []
        for request_id, error in plan.failures.items():
            deltas += self.finish_request(request_id, "error", error)
        beam_groups: dict[str, SeqGroup] = {}
        for chunk in plan.chunks:
            seq = state.seqs.get(chunk.seq_id)
            if seq is None or seq.id in result.lost:
                continue
            if seq.id in result.failures:  # its pages hold nothing that others may find
                if seq.is_infallible:  # some of them were registered when the step was planned
                    state.tables.pool.reset()
                deltas += self._finish_group(seq.group, "error", ("PluginFailed", result.failures[seq.id]))
            else:
                seq.group.cost.add(chunk, result.accepted.get(seq.id), token_s)
                self._advance(seq, chunk, result)
                if chunk.samples:
                    deltas += self._sampled(seq, result.samples[seq.id], beam_groups, result.accepted.get(seq.id))
                elif seq.to_compute == 0 and not seq.in_flight:
                    deltas += self._prompt_computed(seq, result)
        for group in beam_groups.values():
            if group.seqs and all(seq.candidates is not None for seq in group.seqs.values()):
                deltas += self._beam_step(group)
        return deltas

    def finish_request(
        self, request_id: str, reason: FinishReason, error: WireError | None = None, index: int | None = None
    ) -> list[SeqDelta]:
        """End a request, or one of its seqs (`index`); no deltas if it does not exist (any more)."""
        group = self._state.groups.get(request_id)
        if group is None:
            return []
        return self._finish_group(group, reason, error) if index is None else self._finish_one(group, index, reason)

    def _finish_group(self, group: SeqGroup, reason: FinishReason, error: WireError | None = None) -> list[SeqDelta]:
        """End every seq of a request, also those that have not begun, with one delta each."""
        indices = range(group.beams.beam_width) if group.beams else group.live_indices
        deltas = [self._make_delta(group, index, finish_reason=reason, error=error) for index in indices]
        for seq in list(group.seqs.values()):
            self._state.end(seq)
        return deltas

    def _finish_one(self, group: SeqGroup, index: int, reason: FinishReason) -> list[SeqDelta]:
        """End one seq of a request, if it is alive; beams end together."""
        if group.beams is not None or group.live_indices == [index]:
            return self._finish_group(group, reason)
        if index not in group.live_indices:
            return []
        if index in group.pending_forks:
            group.pending_forks.remove(index)
            group.num_reserved -= 1
        elif group.pending_forks:
            group.seqs[index].aborted = True  # the forks still need the prompt that it computes
        else:
            self._state.end(group.seqs[index])
        return [self._make_delta(group, index, finish_reason=reason)]

    def _make_delta(self, group: SeqGroup, index: int, **fields: Any) -> SeqDelta:
        """A delta; the first one of a request also reports on its prompt."""
        if not group.first_delta_sent:
            group.first_delta_sent = True
            self._state.counts.prompt_tokens += group.prompt_len - group.num_virtual
            fields.update(num_cached_tokens=group.num_cached or 0, queue_s=group.queue_s)
            if (logprobs := group.prompt_logprobs) is not None and len(logprobs) == group.prompt_len:
                fields["prompt_logprobs"] = tuple(logprobs[group.num_virtual :])
        return SeqDelta(request_id=group.request.id, index=index, cost=group.cost.so_far(), **fields)

    def _advance(self, seq: Seq, chunk: Chunk, result: StepResult) -> None:
        """Record that the tokens of the chunk have K and V now."""
        seq.computed = chunk.start + len(chunk.token_ids) - chunk.num_drafts
        seq.in_flight -= len(chunk.token_ids)
        seq.num_unknown -= chunk.samples
        self._register(seq)
        if seq.group.prompt_logprobs is not None:
            seq.group.add_prompt_logprobs(chunk.start, result.prompt_logprobs.get(seq.id, ()))

    def _register(self, seq: Seq) -> None:
        tables = self._state.tables
        if seq.computed // tables.pool.page_size > seq.num_registered:
            tables.register(seq, seq.computed)

    def _sampled(
        self, seq: Seq, sample: Sample, beam_groups: dict[str, SeqGroup], accepted: AcceptedDrafts | None
    ) -> list[SeqDelta]:
        """Apply a sample, and those after accepted drafts; groups of beams are added to `beam_groups`."""
        group = seq.group
        if group.beams is None or sample.error is not None:
            return self._append(seq, sample) if accepted is None else self._append_drafted(seq, sample, accepted)
        self._state.counts.generated_tokens += 1
        seq.candidates = sample.candidates
        beam_groups[group.request.id] = group
        return []

    def _append_drafted(self, seq: Seq, sample: Sample, accepted: AcceptedDrafts) -> list[SeqDelta]:
        """Append a sample and those after accepted drafts, and report them together."""
        deltas = self._append(seq, sample, *accepted.samples)
        if seq.status is not Status.FINISHED:
            self._state.tables.settle(seq, accepted.num_drafts)
            self._register(seq)
        return deltas

    def _append(self, seq: Seq, *samples: Sample) -> list[SeqDelta]:
        """Append sampled tokens and what they force; a delta if the seq ends or enough tokens are unreported."""
        group, first, num_before = seq.group, seq.num_output == 0, len(seq.tokens)
        reason, stop = None, None
        for sample in samples:
            if sample.error is not None:
                return self._failed(seq, sample.error)
            if (logprobs := sample.logprobs) is None:
                seq.cumulative = None
            elif seq.cumulative is not None:
                seq.cumulative += logprobs.logprob
            if logprobs is not None and group.wants_logprobs:
                seq.unreported_logprobs.append(logprobs)
            reason, stop = seq.append(sample)
            if reason is not None:
                break
        self._state.counts.generated_tokens += len(seq.tokens) - num_before
        if reason is None:
            is_due = first or seq.num_unreported >= group.interval
            return [self._make_delta(group, seq.index, **seq.drain_unreported())] if is_due else []
        ending = {"finish_reason": reason, "stop_reason": stop, "cumulative_logprob": seq.cumulative}
        delta = self._make_delta(group, seq.index, **seq.drain_unreported(), **ending)
        self._state.end(seq)
        return [delta]

    def _failed(self, seq: Seq, error: WireError) -> list[SeqDelta]:
        """End the request of a seq whose token could not be sampled, after a delta with its tokens before that one."""
        self._state.counts.corrupted += error == NOT_FINITE
        tokens = [self._make_delta(seq.group, seq.index, **seq.drain_unreported())] if seq.num_unreported else []
        return [*tokens, *self._finish_group(seq.group, "error", error)]

    def _prompt_computed(self, seq: Seq, result: StepResult) -> list[SeqDelta]:
        """The prompt is computed: its forks begin, or the seq ends if nothing is to be generated."""
        group = seq.group
        if group.pending_forks:
            self._state.fork_all(seq)
            return []
        pooled = None if group.pooling is None else result.pooled[seq.id]
        delta = self._make_delta(group, seq.index, finish_reason="stop" if pooled else "length", pooled=pooled)
        self._state.end(seq)
        return [delta]

    def _beam_step(self, group: SeqGroup) -> list[SeqDelta]:
        """All beams have candidates: fork them, or report the winners."""
        winners = self._beam_search.step(group)
        if winners is None:
            return []
        deltas = [
            self._make_delta(
                group,
                index,
                token_ids=hypothesis.output_ids,
                finish_reason="stop" if hypothesis.stopped else "length",
                cumulative_logprob=hypothesis.cumulative,
            )
            for index, hypothesis in enumerate(winners)
        ]
        assert group.beams is not None
        for index in range(len(winners), group.beams.beam_width):  # the client expects a delta for each beam
            deltas.append(self._make_delta(group, index, finish_reason="abort"))
        for seq in list(group.seqs.values()):
            self._state.end(seq)
        return deltas
