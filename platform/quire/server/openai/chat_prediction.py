"""The field `prediction` of a chat request: the text that the client expects, and how much of it was in the answers."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import BadRequest
from quire.server.schemas.requests import ChatRequest
from quire.text.outputs.outputs import Collector
from quire.types.predicted_output import PredictedOutput


def predicted_text(fields: ChatRequest, max_chars: int) -> str | None:
    """The expected text, None without the field. Raises `BadRequest` for long texts and parts that are no text."""
    if fields.prediction is None:
        return None
    content = fields.prediction.content
    if isinstance(content, str):
        text = content
    else:
        if any(part.type != "text" or part.text is None for part in content):
            raise BadRequest("`prediction` takes parts of type text only.", "prediction")
        text = "".join(part.text or "" for part in content)
    if len(text) > max_chars:
        raise BadRequest(
            f"`prediction` has {len(text)} characters; at most {max_chars} are accepted (--max-text-chars).",
            "prediction",
        )
    return text


class PredictionUsage:
    """Counts the tokens of the prediction in all completions of one call, incrementally."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._outputs: dict[tuple[int, int], tuple[PredictedOutput, int]] = {}

    def count(self, collectors: Sequence[Collector]) -> tuple[int, int]:
        """The tokens of the prediction that the completions have, and those that ended completions do not have."""
        accepted = rejected = 0
        for number, collector in enumerate(collectors):
            for index, ids in enumerate(collector.token_ids):
                output, num_seen = self._outputs.get((number, index)) or (PredictedOutput(self._prediction), 0)
                output.advance(ids[num_seen:])
                self._outputs[number, index] = output, len(ids)
                accepted += output.num_found
                rejected += len(self._prediction) - output.num_found if collector.done else 0
        return accepted, rejected
