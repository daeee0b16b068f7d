"""Drafts of sequences with grammars: they end where the grammar forbids them, and go on with tokens that it forces."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from quire.engine.sampling.sampler import SamplingState
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker
from quire.errors import QuireError
from quire.records import Draft

log = logging.getLogger(__name__)

MAX_FORCED = 16
"""Most tokens by which the forced ones prolong a draft."""


def follow_grammars(
    tracker: ConstraintTracker, states: Mapping[int, SamplingState], drafts: Mapping[int, Draft]
) -> Mapping[int, Draft]:
    """The drafts, those of constrained sequences as far as their grammars go along. states: by seq id.

    Called between steps, when no masks are being filled. A matcher that raises is replaced by a new one; if that fails,
    its sequence ends with an error in the next step.
    """
    found = dict(drafts)
    for seq_id, draft in drafts.items():
        state = states.get(seq_id)
        if state is None or state.constraint is None or state.error is not None:
            continue
        try:
            found[seq_id] = _follow(tracker, state.constraint, draft)
        except QuireError as error:
            log.warning("A sequence has no drafts in this step. %s", error)
            del found[seq_id]
            try:
                tracker.restart(state.constraint, state.output_ids)
            except QuireError as failure:
                state.error = failure.wire
    return found


def _follow(tracker: ConstraintTracker, constraint: Constraint, draft: Draft) -> Draft:
    count, forced = tracker.probe(constraint, draft.token_ids, MAX_FORCED)
    if draft.probs is not None and count < len(draft.token_ids):
        # kept, to be rejected: whether it was drawn must not decide how the token in its place is drawn
        return Draft(draft.token_ids[: count + 1], draft.probs[: count + 1])
    return Draft([*draft.token_ids[:count], *forced], None if draft.probs is None else draft.probs[:count])
