"""Outcome: what a step's result does to the seqs, and the deltas that tell of it.

It appends tokens, advances `computed`, finds out who has finished and why. It knows no text: stop
strings are found elsewhere and arrive as aborts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.engine.beam import advance
from quire.engine.not_finite import NOT_FINITE
from quire.engine.roster import Roster
from quire.engine.seq import Group, Seq
from quire.errors import Told
from quire.types import Chunk, Delta, FinishReason, Plan, Sample, StepResult, TokenLogprobs

Ending = tuple[FinishReason | None, int | None]


def apply(roster: Roster, plan: Plan, result: StepResult) -> list[Delta]:
    """Take in one step; seqs that were aborted since `plan` are passed over."""
    deltas: list[Delta] = []
    rounds: dict[str, Group] = {}
    for chunk in plan.chunks:
        seq = roster.seqs.get(chunk.seq_id)
        if seq is None:
            continue
        if seq.id in result.failures:  # its pages hold nothing that others may find
            if seq.cannot_fail:  # some were offered when the plan was drawn
                roster.tables.pool.forget()
            deltas += end_group(roster, seq.group, "error", ("PluginFailed", result.failures[seq.id]))
        else:
            _advance(roster, seq, chunk, result)
            if chunk.samples:
                deltas += _sampled(roster, seq, result.samples[seq.id], rounds)
            elif seq.to_compute == 0:
                deltas += _prompt_computed(roster, seq, result)
    for group in rounds.values():
        if group.seqs and all(seq.candidates is not None for seq in group.seqs.values()):
            deltas += _beam_round(roster, group)
    return deltas


def _advance(roster: Roster, seq: Seq, chunk: Chunk, result: StepResult) -> None:
    """The chunk's tokens have K and V now."""
    seq.computed = chunk.start + len(chunk.token_ids)
    tables = roster.tables
    if seq.computed // tables.pool.page_size > seq.num_keyed:
        tables.publish(seq, seq.computed)
    if seq.group.prompt_logprobs is not None:
        _collect(seq.group, chunk, result.prompt_logprobs.get(seq.id, ()))


def _sampled(roster: Roster, seq: Seq, sample: Sample, rounds: dict[str, Group]) -> list[Delta]:
    """Take in what a sampling row gave; groups of beams go to `rounds`."""
    group = seq.group
    if sample.error is not None:
        roster.counts.corrupted += sample.error == NOT_FINITE
        return end_group(roster, group, "error", sample.error)
    if group.beams is None:
        return _append(roster, seq, sample)
    roster.counts.generated_tokens += 1
    seq.candidates = sample.candidates
    rounds[group.request.id] = group
    return []


def tell(roster: Roster, group: Group, index: int, **what: Any) -> Delta:
    """A delta; the first of a request also says what is known of its prompt."""
    if not group.told:
        group.told = True
        roster.counts.prompt_tokens += group.prompt_len
        what["num_cached_tokens"] = group.num_cached or 0
        what["queue_s"] = group.queue_s
        logprobs = group.prompt_logprobs
        if logprobs is not None and len(logprobs) == group.prompt_len:
            what["prompt_logprobs"] = tuple(logprobs)
    return Delta(request_id=group.request.id, index=index, **what)


def end_group(roster: Roster, group: Group, reason: FinishReason, error: Told | None = None) -> list[Delta]:
    """End every seq of a request, also those that have not begun, with one delta for each."""
    indices = range(group.beams.beam_width) if group.beams else [*_heard(group), *group.to_fork]
    deltas = [tell(roster, group, index, finish_reason=reason, error=error) for index in indices]
    for seq in list(group.seqs.values()):
        roster.end(seq)
    return deltas


def end_one(roster: Roster, group: Group, index: int, reason: FinishReason) -> list[Delta]:
    """End one seq of a request, if it is still there; beams end together."""
    if group.beams is not None or [*_heard(group), *group.to_fork] == [index]:
        return end_group(roster, group, reason)
    if index in group.to_fork:
        group.to_fork.remove(index)
        group.reserve -= 1
    elif index in _heard(group):
        seq = group.seqs[index]
        if group.to_fork:
            seq.aborted = True  # the others still need the prompt that it computes
        else:
            roster.end(seq)
    else:
        return []
    return [tell(roster, group, index, finish_reason=reason)]


def _heard(group: Group) -> list[int]:
    return [index for index, seq in group.seqs.items() if not seq.aborted]


def _collect(group: Group, chunk: Chunk, entries: Sequence[TokenLogprobs]) -> None:
    """Keep log-probabilities of prompt tokens; the first entry is of the token after `chunk.start`."""
    known = group.prompt_logprobs
    assert known is not None
    if entries and len(known) < group.prompt_len:
        # after a preemption some come again
        known.extend(entries[max(0, len(known) - chunk.start - 1) : group.prompt_len - chunk.start - 1])


def _append(roster: Roster, seq: Seq, sample: Sample) -> list[Delta]:
    """Take in a sampled token and what it forces. Nothing is told of them while others are to be told of with them."""
    group, logprobs, first = seq.group, sample.logprobs, seq.num_output == 0
    if logprobs is None:
        seq.cumulative = None
    elif seq.cumulative is not None:
        seq.cumulative += logprobs.logprob
    if logprobs is not None and group.wants_logprobs:
        seq.untold_logprobs.append(logprobs)
    reason, stop = _write(roster, seq, sample)
    if reason is None:
        due = first or seq.untold >= group.interval
        return [tell(roster, group, seq.index, **_untold(seq))] if due else []
    ending = {"finish_reason": reason, "stop_reason": stop, "cumulative_logprob": seq.cumulative}
    delta = tell(roster, group, seq.index, **_untold(seq), **ending)
    roster.end(seq)
    return [delta]


def _untold(seq: Seq) -> dict[str, Any]:
    """The tokens that no delta has told of; now one does."""
    what: dict[str, Any] = {"token_ids": tuple(seq.tokens[-seq.untold :])}
    if seq.untold_logprobs:
        what["logprobs"] = tuple(seq.untold_logprobs)
        seq.untold_logprobs.clear()
    seq.untold = 0
    return what


def _write(roster: Roster, seq: Seq, sample: Sample) -> Ending:
    """Add the token and what it forces until one ends the seq: why it is over, if so, and the stop id that did it."""
    tokens = (sample.token_id, *sample.forced)
    room = seq.max_len - len(seq.tokens)
    for token in tokens[:room]:
        seq.tokens.append(token)
        seq.untold += 1
        roster.counts.generated_tokens += 1
        if len(seq.tokens) >= seq.min_len:
            if token in seq.eos_ids:
                return "stop", None
            if token in seq.stop_ids:
                return "stop", token
    if sample.done and len(tokens) <= room:
        return "stop", None
    return ("length" if len(tokens) >= room else None), None


def _prompt_computed(roster: Roster, seq: Seq, result: StepResult) -> list[Delta]:
    """The prompt is done: its forks begin, or, when nothing is to be generated, the seq is over."""
    group = seq.group
    if group.to_fork:
        roster.fork_all(seq)
        return []
    if group.pooling is not None:
        delta = tell(roster, group, seq.index, finish_reason="stop", pooled=result.pooled[seq.id])
    else:
        delta = tell(roster, group, seq.index, finish_reason="length")
    roster.end(seq)
    return [delta]


def _beam_round(roster: Roster, group: Group) -> list[Delta]:
    """All beams have their candidates: choose, or say which texts won."""
    won = advance(roster, group)
    if won is None:
        return []
    deltas = [
        tell(
            roster,
            group,
            index,
            token_ids=hypothesis.output_ids,
            finish_reason="stop" if hypothesis.stopped else "length",
            cumulative_logprob=hypothesis.cumulative,
        )
        for index, hypothesis in enumerate(won)
    ]
    assert group.beams is not None
    for index in range(len(won), group.beams.beam_width):  # fewer candidates than beams: nobody waits in vain
        deltas.append(tell(roster, group, index, finish_reason="abort"))
    for seq in list(group.seqs.values()):
        roster.end(seq)
    return deltas
