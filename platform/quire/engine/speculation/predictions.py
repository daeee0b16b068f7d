"""Drafts from predictions: a client may send the text that it expects (`SamplingParams.prediction`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.records import DraftQuery
from quire.types.predicted_output import PredictedOutput

MAX_PREDICTED = 16
"""Most drafts from a prediction per sequence and step: more of them are right than those of a drafter."""


class Predictions:
    """Continues the output of each sequence as its prediction does."""

    def __init__(self) -> None:
        self._outputs: dict[int, tuple[PredictedOutput, int]] = {}

    def draft(self, query: DraftQuery) -> Sequence[int]:
        """At most `max_drafts` tokens; none without a prediction, or where the output has left it."""
        prediction = query.params.prediction_ids
        if not prediction:
            return ()
        output, num_seen = self._outputs.get(query.seq_id) or (PredictedOutput(prediction), query.prompt_len)
        output.advance(query.token_ids[num_seen:])
        self._outputs[query.seq_id] = output, len(query.token_ids)
        return output.following(query.max_drafts)

    def end(self, seq_ids: Iterable[int]) -> None:
        """Forget the places of sequences."""
        for seq_id in seq_ids:
            self._outputs.pop(seq_id, None)
