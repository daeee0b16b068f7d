"""Beam search: from the candidates of all beams of a request, the beams that go on and the finished texts.

In each round every beam brings its most likely next tokens. Continuations that end the text become hypotheses; of the
others the `beam_width` most likely go on. score = summed logprob / generated tokens ** length_penalty, an end-of-text
token included, as in transformers' beam search.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.engine.scheduler.seq import Hypothesis, Seq, SeqGroup, Status
from quire.engine.scheduler.state import SchedulerState


@dataclass(frozen=True, slots=True)
class BeamCandidate:
    """One more token for one beam. cumulative: summed logprob with it."""

    parent: Seq
    token_id: int
    cumulative: float


class BeamSearch:
    """Forks and ends the beams of a request in `state`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def step(self, group: SeqGroup) -> list[Hypothesis] | None:
        """One round, when every beam of the group has candidates. Returns the winners if it was the last round."""
        params = group.beams
        assert params is not None
        width, parents = params.beam_width, list(group.seqs.values())
        length = parents[0].num_output + 1
        group.num_reserved = 0
        ended: list[BeamCandidate] = []
        unfinished: list[BeamCandidate] = []
        for candidate in _ranked_candidates(parents):
            (ended if candidate.token_id in candidate.parent.eos_ids else unfinished).append(candidate)
        _keep_best(group, ended, length, stopped=True)
        live = unfinished[:width]
        if len(parents[0].tokens) + 1 >= parents[0].max_len:
            _keep_best(group, live, length, stopped=False)
            return group.hypotheses
        if not live or _is_done(group, live[0].cumulative, length, parents[0].max_len - group.prompt_len):
            return group.hypotheses
        self._fork_survivors(parents, live)
        return None

    def _fork_survivors(self, parents: list[Seq], live: list[BeamCandidate]) -> None:
        """The first continuation of a beam goes on in its seq, the others fork; a beam without continuation ends."""
        state, survivors = self._state, {candidate.parent.id for candidate in live}
        for parent in parents:
            if parent.id in survivors:
                parent.candidates = None
            else:
                state.end(parent)  # before the forks, which may then run in its stead
        first: dict[int, BeamCandidate] = {}
        ranked: list[Seq] = []
        for candidate in live:
            if first.setdefault(candidate.parent.id, candidate) is candidate:
                ranked.append(candidate.parent)
            else:
                child = state.fork(candidate.parent, extra=(candidate.token_id,))
                child.cumulative = candidate.cumulative
                ranked.append(child)
        for candidate in first.values():
            parent = candidate.parent
            parent.tokens.append(candidate.token_id)
            parent.cumulative = candidate.cumulative
            if parent.status is Status.PAUSED:
                state.wait(parent)
        ranked[0].group.seqs = {seq.index: seq for seq in ranked}  # rank decides between equal scores


def _ranked_candidates(parents: list[Seq]) -> list[BeamCandidate]:
    """All candidates of all beams, the most likely first; ties in order of beam and candidate."""
    candidates = [
        BeamCandidate(seq, token_id, (seq.cumulative or 0.0) + logprob)
        for seq in parents
        for token_id, logprob in seq.candidates or ()
    ]
    return sorted(candidates, key=lambda candidate: -candidate.cumulative)


def _score(cumulative: float, length: int, penalty: float) -> float:
    return cumulative / length**penalty


def _keep_best(group: SeqGroup, candidates: list[BeamCandidate], length: int, *, stopped: bool) -> None:
    """Add finished texts to the hypotheses and keep the `beam_width` best."""
    params = group.beams
    assert params is not None
    fresh = [
        Hypothesis(
            output_ids=(*candidate.parent.tokens[group.prompt_len :], candidate.token_id),
            cumulative=candidate.cumulative,
            score=_score(candidate.cumulative, length, params.length_penalty),
            stopped=stopped,
        )
        for candidate in candidates[: params.beam_width]
    ]
    ranked = sorted([*group.hypotheses, *fresh], key=lambda hypothesis: -hypothesis.score)
    group.hypotheses = ranked[: params.beam_width]


def _is_done(group: SeqGroup, best: float, length: int, max_length: int) -> bool:
    """Whether no live beam can still become a winner: summed logprobs only fall."""
    params = group.beams
    assert params is not None
    if len(group.hypotheses) < params.beam_width:
        return False
    penalty = params.length_penalty
    return group.hypotheses[-1].score > max(_score(best, length, penalty), _score(best, max_length, penalty))
