"""Adds drafts to the chunks of a plan, within the budget and the pages that other tokens left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.types import Chunk

if TYPE_CHECKING:
    from quire.engine.scheduler.state import SchedulerState

MIN_LOGIT_ROWS = 32
"""Rows of logits that a step may have even if fewer sequences may run."""


def with_drafts(
    chunks: list[Chunk], drafts: Mapping[int, Sequence[int]], budget: int, state: SchedulerState
) -> list[Chunk]:
    """The chunks of a step, those of seqs with drafts prolonged by them; earlier chunks come first.

    budget: tokens left in the step. A draft never takes the page of a token of another seq, and never preempts one.
    """
    num_logits = sum(chunk.samples for chunk in chunks)
    budget = min(budget, max(state.limits.max_num_seqs, MIN_LOGIT_ROWS) - num_logits)
    drafted = []
    for chunk in chunks:
        token_ids = drafts.get(chunk.seq_id, ())[: max(0, budget)] if chunk.samples else ()
        drafted.append(_with_drafts(chunk, token_ids, state) if token_ids else chunk)
        budget -= drafted[-1].num_drafts
    return drafted


def _with_drafts(chunk: Chunk, drafts: Sequence[int], state: SchedulerState) -> Chunk:
    seq, tables = state.seqs[chunk.seq_id], state.tables
    size = tables.pool.page_size
    num_slots = (len(seq.pages) + tables.pool.available) * size - len(seq.tokens)
    drafts = drafts[: min(num_slots, seq.max_len - len(seq.tokens) - 1)]
    if not drafts:
        return chunk
    tables.append_pages(seq, len(seq.tokens) + len(drafts))
    return replace(
        chunk,
        token_ids=[*chunk.token_ids, *drafts],
        new_pages=seq.pages[chunk.first_page :],
        num_drafts=len(drafts),
    )
