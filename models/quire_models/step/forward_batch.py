"""ForwardBatch: one step as the layers see it. ForwardBuffers: the device tensors that it consists of.

A row is one chunk of one seq: its tokens, and the pages that hold its context. Rows with one token and rows with a
thousand are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire_kernels.ops import AttentionMetadata
from quire_models.parts.decoder import KvShape
from quire_models.step.kv_cache import KVCache
from quire_models.step.state_cache import StateCache
from quire_models.step.upload import step_arrays

__all__ = ["ForwardBatch", "ForwardBuffers", "KVCache", "KvShape", "MediaRows", "CrossAttentionBuffers"]


@dataclass(slots=True)
class MediaRows:
    """Embeddings that replace those of the embedding table: rows[i] at token index[i] of the step.

    index: int64 [M], on the device. rows: [M, width].
    """

    index: Tensor
    rows: Tensor


@dataclass(slots=True)
class ForwardBatch:
    """What every layer receives. T tokens, R rows, L logit rows.

    tokens, positions, slot_mapping: int64 [T]. lengths: int64 [T], for rotary embeddings that depend on the length.
    rows: attention metadata. logit_rows: int64 [L], indices of the tokens whose logits are computed.
    token_types: int64 [T], for models that distinguish the texts of a pair; None = all 0.
    rope_positions: int64 [axes, T], where rotary embeddings use other positions; None = `positions`.
    adapters: what the adapter runtime bound for this step. step_cache: data that layers share within the step.
    batch_invariant: no bit of a token may depend on the other tokens, where an implementation has the choice.
    cross_attention: pages of each token's encoder input, one row per token; None for models without cross-attention.
    state, state_slots: for models with state, else None. state_slots: int64 [R], the slot of each row, all different.
    A slot holds the state after the tokens before the row's own; blocks advance it in place.
    """

    tokens: Tensor
    positions: Tensor
    slot_mapping: Tensor
    lengths: Tensor
    rows: AttentionMetadata
    logit_rows: Tensor
    kv: KVCache
    media: MediaRows | None = None
    adapters: Any = None
    token_types: Tensor | None = None
    rope_positions: Tensor | None = None
    cross_attention: AttentionMetadata | None = None
    state: StateCache | None = None
    state_slots: Tensor | None = None
    batch_invariant: bool = False
    step_cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def query_starts(self) -> Tensor:
        """Start of each row's tokens, int32 [R + 1]."""
        return self.rows.query_starts

    @property
    def contexts(self) -> Tensor:
        """Context length of each row, int32 [R]."""
        return self.rows.contexts

    @property
    def pages(self) -> Tensor:
        """Page table, int32 [R, P]."""
        return self.rows.pages

    @property
    def max_query(self) -> int:
        """Maximum number of tokens of a row."""
        return self.rows.max_query

    @property
    def max_context(self) -> int:
        """Maximum context length of a row."""
        return self.rows.max_context


class ForwardBuffers:
    """Device tensors of a ForwardBatch, in memory that is allocated once: on the CPU refilled in place, so that their
    addresses stay, elsewhere filled by one copy a step.

    max_tokens, max_rows, max_pages: maximum tokens of a step, chunks of a step, and pages of one row.
    position_axes: those of `ForwardBatch.rope_positions`. A ForwardBatch is valid until the next `fill`.
    """

    def __init__(
        self, max_tokens: int, max_rows: int, max_pages: int, device: torch.device | str, position_axes: int = 1
    ) -> None:
        device = torch.device(device)
        self.max_tokens, self.max_rows, self.max_pages = max_tokens, max_rows, max_pages
        self._arrays = step_arrays(device)
        array = self._arrays.array
        self._tokens = array(max_tokens, torch.int64)
        self._positions = array(max_tokens, torch.int64)
        self._slots = array(max_tokens, torch.int64)
        self._lengths = array(max_tokens, torch.int64)
        self._logit_rows = array(max_tokens, torch.int64)
        self._token_types = array(max_tokens, torch.int64)
        self._rope_positions = array(position_axes * max_tokens, torch.int64)
        self._visible_ends = array(max_tokens, torch.int32)
        self._query_starts = array(max_rows + 1, torch.int32)
        self._contexts = array(max_rows, torch.int32)
        self._pages = array(max_rows * max_pages, torch.int32)
        self._state_slots = array(max_rows, torch.int64)
        self._ones = np.ones(max_rows, np.int32)

    def fill(
        self,
        token_ids: NDArray[np.int64] | Sequence[int],
        positions: NDArray[np.int64],
        slot_mapping: NDArray[np.int64],
        query_starts: NDArray[np.integer],
        contexts: NDArray[np.integer],
        page_table: NDArray[np.int32],
        logit_rows: NDArray[np.int64],
        kv: KVCache,
        media_rows: MediaRows | None = None,
        adapters: Any = None,
        prompt_lens: NDArray[np.int32] | None = None,
        token_types: NDArray[np.int64] | None = None,
        rope_positions: NDArray[np.int64] | None = None,
        visible_ends: NDArray[np.int32] | None = None,
        cross_attention: AttentionMetadata | None = None,
        state: StateCache | None = None,
        state_slots: NDArray[np.int64] | None = None,
        batch_invariant: bool = False,
    ) -> ForwardBatch:
        """Copy one step into the buffers.

        token_ids, positions, slot_mapping: [T]. query_starts: [R + 1], from 0 to T. contexts: [R], positions of a row
        once its own tokens are written. page_table: [R, P]; entries beyond a context are never read as keys.
        logit_rows: [L], indices into the tokens. prompt_lens: [R], lengths of the seqs' prompts; needed only by models
        whose rotary embedding depends on the length (`quire_models.parts.rope_config`). token_types: [T].
        rope_positions: [axes, T]. visible_ends: [T], as in `quire_kernels.ops.AttentionMetadata`. cross_attention: from
        `CrossAttentionBuffers`. state_slots: [R].
        """
        num_rows = len(query_starts) - 1
        if num_rows == len(token_ids):  # one token per row, as in nearly every step
            lens, longest = self._ones[:num_rows], 1
        elif num_rows == 1:  # a prompt, or one sequence with drafts
            longest = len(token_ids)
            lens = np.array([longest], np.int32)
        else:
            lens = np.diff(query_starts).astype(np.int32)
            longest = int(lens.max(initial=0))
        totals = np.asarray(contexts, dtype=np.int32)
        lengths = np.asarray(positions, dtype=np.int64) + 1
        if prompt_lens is not None:
            is_spread = num_rows in (1, len(token_ids))  # one row is broadcast
            lengths = np.maximum(prompt_lens if is_spread else np.repeat(prompt_lens, lens), lengths)
        self._arrays.begin()
        rows = AttentionMetadata(
            query_starts=self._query_starts.fill(query_starts),
            contexts=self._contexts.fill(totals),
            pages=self._pages.fill(page_table),
            lens_host=lens,
            contexts_host=totals,
            max_query=longest,
            max_context=int(totals.max(initial=0)),
            visible_ends=None if visible_ends is None else self._visible_ends.fill(visible_ends),
            visible_ends_host=visible_ends,
        )
        batch = ForwardBatch(
            tokens=self._tokens.fill(token_ids),
            positions=self._positions.fill(positions),
            slot_mapping=self._slots.fill(slot_mapping),
            lengths=self._lengths.fill(lengths),
            rows=rows,
            logit_rows=self._logit_rows.fill(logit_rows),
            kv=kv,
            media=media_rows,
            adapters=adapters,
            token_types=None if token_types is None else self._token_types.fill(token_types),
            rope_positions=None if rope_positions is None else self._rope_positions.fill(rope_positions),
            cross_attention=cross_attention,
            state=state,
            state_slots=None if state_slots is None else self._state_slots.fill(state_slots),
            batch_invariant=batch_invariant,
        )
        self._arrays.send()
        return batch


class CrossAttentionBuffers:
    """Device tensors with the pages of each token's encoder input, also allocated once.

    max_tokens: maximum tokens of a step. length: most rows of an encoder input. num_pages: its pages.
    """

    def __init__(self, max_tokens: int, length: int, num_pages: int, device: torch.device | str) -> None:
        device = torch.device(device)
        self._length = length
        self._starts = torch.arange(max_tokens + 1, dtype=torch.int32, device=device)
        self._contexts = torch.full((max_tokens,), length, dtype=torch.int32, device=device)
        self._arrays = step_arrays(device)
        array = self._arrays.array
        self._own = array(max_tokens, torch.int32)
        self._pages = array(max_tokens * num_pages, torch.int32)
        self._ones, self._lengths = np.ones(max_tokens, np.int32), np.full(max_tokens, length, np.int32)

    def fill(self, pages: NDArray[np.int32], lengths: NDArray[np.int32] | None = None) -> AttentionMetadata:
        """pages: [T, num_pages], of each token's encoder input. lengths: [T], its rows; None = `length` for all.

        The result is valid until the next `fill`.
        """
        count = len(pages)
        self._arrays.begin()
        found = AttentionMetadata(
            query_starts=self._starts[: count + 1],
            contexts=self._contexts[:count] if lengths is None else self._own.fill(lengths),
            pages=self._pages.fill(pages),
            lens_host=self._ones[:count],
            contexts_host=self._lengths[:count] if lengths is None else lengths,
            max_query=1,
            max_context=self._length if lengths is None else int(lengths.max()),
        )
        self._arrays.send()
        return found
