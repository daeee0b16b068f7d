"""Adds drafts to the chunks of a plan, within the budget and the pages that other tokens left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quire.records import Draft
from quire.types import Chunk, in_background

if TYPE_CHECKING:
    from quire.engine.scheduler.state import SchedulerState

MIN_LOGIT_ROWS = 32
"""Rows of logits that a step may have even if fewer sequences may run."""


def with_drafts(chunks: list[Chunk], drafts: Mapping[int, Draft], budget: int, state: SchedulerState) -> list[Chunk]:
    """The chunks of a step, those of seqs with drafts prolonged by them; earlier chunks come first.

    budget: tokens left in the step. A draft never takes the page of a token of another seq, and never preempts one.
    Clients in the background have none while others have requests. Drafts are computed whether they are right or not,
    so they count as tokens of their client.
    """
    num_logits = sum(chunk.samples for chunk in chunks)
    budget = min(budget, max(state.limits.max_num_seqs, MIN_LOGIT_ROWS) - num_logits)
    drafted, is_shared = [], state.clients.num_clients > 1
    for chunk in chunks:
        may_draft = chunk.samples and not (is_shared and in_background(state.seqs[chunk.seq_id].client))
        draft = drafts.get(chunk.seq_id) if may_draft and budget > 0 else None
        drafted.append(chunk if draft is None else _with_drafts(chunk, draft, budget, state))
        if num_drafts := drafted[-1].num_drafts:
            budget -= num_drafts
            if is_shared:
                state.clients.add_tokens(state.seqs[chunk.seq_id].queue_key, num_drafts)
    return drafted


def _with_drafts(chunk: Chunk, draft: Draft, budget: int, state: SchedulerState) -> Chunk:
    seq, tables = state.seqs[chunk.seq_id], state.tables
    size = tables.pool.page_size
    num_slots = (len(seq.pages) + tables.pool.available) * size - len(seq.tokens)
    drafts = draft.token_ids[: min(budget, num_slots, seq.max_len - len(seq.tokens) - 1)]
    if tables.states is not None:
        drafts = drafts[: tables.states.max_drafts(seq)]
    if not drafts:
        return chunk
    tables.append_pages(seq, len(seq.tokens) + len(drafts))
    seq.in_flight += len(drafts)
    if tables.states is not None:
        tables.states.keep(seq, len(drafts))
    probs = None if draft.probs is None else draft.probs[: len(drafts)]
    token_ids, pages, first_page = [*chunk.token_ids, *drafts], seq.pages[chunk.first_page :], chunk.first_page
    return Chunk(seq.id, chunk.start, token_ids, pages, chunk.samples, first_page, chunk.state_slot, len(drafts), probs)
