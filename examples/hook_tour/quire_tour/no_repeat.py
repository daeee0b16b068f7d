"""`no_repeat_ngram_size: n`: no run of n tokens occurs twice in the answer (arXiv 1705.04304)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire import LogitsProcessor, SamplingParams, hookimpl
from quire.errors import BadRequest
from quire.records import Context, ProcessorRow

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "no_repeat_ngram_size"


class NoRepeat:
    """The state of a seq is its n; all else is in the output so far."""

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def start(self, params: SamplingParams) -> int | None:
        """n, or None for requests that don't ask."""
        size: int = params.extra.get(FIELD, 0)
        if size < 0:
            raise BadRequest(f"`{FIELD}` must be at least 1, or 0 for off, got {size}.", FIELD)
        return size or None

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Forbid the tokens that would complete a run that is there already."""
        for i, row in enumerate(rows):
            banned = _completions(list(row.output_ids), row.state)
            if banned and len(banned) < logits.shape[1]:
                logits[i, sorted(banned)] = float("-inf")


def _completions(ids: list[int], size: int) -> set[int]:
    begun = ids[len(ids) - size + 1 :]
    if len(ids) < size - 1:
        return set()
    return {ids[i + size - 1] for i in range(len(ids) - size + 1) if ids[i : i + size - 1] == begun}


@hookimpl
def quire_logits_processors() -> Iterable[LogitsProcessor]:
    """One processor, switched on by one field."""
    yield LogitsProcessor("no-repeat", {FIELD: int}, NoRepeat)
