"""The request field `no_repeat_ngram_size: n`: no n-gram of tokens occurs twice (arXiv 1705.04304)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.plugin import BadRequest, Context, LogitsProcessor, ProcessorRow, SamplingParams, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "no_repeat_ngram_size"


class NoRepeat:
    """The processor. The state of a sequence is its n; the generated ids have everything else."""

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def start(self, params: SamplingParams) -> int | None:
        """The n of the request, None if it does not use the field."""
        size: int = params.extra.get(FIELD, 0)
        if size < 0:
            raise BadRequest(f"`{FIELD}` must be at least 1, or 0 for off, got {size}.", FIELD)
        return size or None

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Mask the tokens that would complete an n-gram that already occurred."""
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
    """A processor that one request field switches on."""
    yield LogitsProcessor("no-repeat", {FIELD: int}, NoRepeat)
