"""Beam search: from the candidates of all beams of a request, which go on and which texts are done.

Each round every beam brings its likeliest next tokens. Of all continuations, those that end the text
become hypotheses, and of the others the `beam_width` most likely live on. score = summed logprob /
generated tokens ** length_penalty, an end-of-text token included, as in transformers' beam search.
It knows no pages: the roster forks and ends seqs.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.engine.roster import Roster
from quire.engine.seq import Group, Hypothesis, Seq, Status


@dataclass(frozen=True, slots=True)
class Continuation:
    """One token more for one beam."""

    parent: Seq
    token_id: int
    cumulative: float


def advance(roster: Roster, group: Group) -> list[Hypothesis] | None:
    """One round, when every beam of the group has candidates; the winners if it was the last."""
    params = group.beams
    assert params is not None
    width, parents = params.beam_width, list(group.seqs.values())
    length = parents[0].num_output + 1
    group.reserve = 0
    ended: list[Continuation] = []
    open_: list[Continuation] = []
    for option in _continuations(parents):
        (ended if option.token_id in option.parent.eos_ids else open_).append(option)
    _keep(group, ended, length, stopped=True)
    live = open_[:width]
    if len(parents[0].tokens) + 1 >= parents[0].max_len:
        _keep(group, live, length, stopped=False)
        return group.hypotheses
    if not live or _settled(group, live[0].cumulative, length, parents[0].max_len - group.prompt_len):
        return group.hypotheses
    _live_on(roster, parents, live)
    return None


def _continuations(parents: list[Seq]) -> list[Continuation]:
    """All candidates of all beams, the most likely first; ties in order of beam and candidate."""
    options = [
        Continuation(seq, token_id, (seq.cumulative or 0.0) + logprob)
        for seq in parents
        for token_id, logprob in seq.candidates or ()
    ]
    return sorted(options, key=lambda option: -option.cumulative)


def _score(cumulative: float, length: int, penalty: float) -> float:
    return cumulative / length**penalty


def _keep(group: Group, options: list[Continuation], length: int, *, stopped: bool) -> None:
    """Add finished texts, and keep the best."""
    params = group.beams
    assert params is not None
    fresh = [
        Hypothesis(
            output_ids=(*option.parent.tokens[group.prompt_len :], option.token_id),
            cumulative=option.cumulative,
            score=_score(option.cumulative, length, params.length_penalty),
            stopped=stopped,
        )
        for option in options[: params.beam_width]
    ]
    ranked = sorted([*group.hypotheses, *fresh], key=lambda hypothesis: -hypothesis.score)
    group.hypotheses = ranked[: params.beam_width]


def _settled(group: Group, best: float, length: int, max_length: int) -> bool:
    """Whether no live beam can still be among the winners: summed logprobs only fall."""
    params = group.beams
    assert params is not None
    if len(group.hypotheses) < params.beam_width:
        return False
    penalty = params.length_penalty
    return group.hypotheses[-1].score > max(_score(best, length, penalty), _score(best, max_length, penalty))


def _live_on(roster: Roster, parents: list[Seq], live: list[Continuation]) -> None:
    """The first continuation of a beam goes on in its seq, the others fork; a beam without any ends."""
    chosen = {option.parent.id for option in live}
    for parent in parents:
        if parent.id in chosen:
            parent.candidates = None
        else:
            roster.end(parent)  # first of all, so that forks may take its place
    first: dict[int, Continuation] = {}
    ranked: list[Seq] = []
    for option in live:
        if first.setdefault(option.parent.id, option) is option:
            ranked.append(option.parent)
        else:
            child = roster.fork(option.parent, extra=(option.token_id,))
            child.cumulative = option.cumulative
            ranked.append(child)
    for option in first.values():
        parent = option.parent
        parent.tokens.append(option.token_id)
        parent.cumulative = option.cumulative
        if parent.status is Status.PAUSED:
            roster.wait(parent)
    ranked[0].group.seqs = {seq.index: seq for seq in ranked}  # equal scores are told apart by rank
