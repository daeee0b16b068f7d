"""The input batch: what the runner keeps of each sequence between steps, and the arrays of a step.

numpy handles tokens over whole steps; Python loops over chunks, never over tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from quire.engine.multimodal.rope_positions import RopePositions, step_rope_positions
from quire.engine.sampling.sampler import SamplingState
from quire.types import Chunk, Media

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class BatchRow:
    """One sequence on the device.

    table_row: its row of the page table. sampling: None if it is pooled. num_prompt_logprobs: alternatives to report
    for each prompt token, None = prompt tokens are not scored. token_types: of the prompt, () = all 0. rope: None if
    tokens rotate by their position. spans: begin and end of media whose tokens see all of them, while some are ahead.
    """

    table_row: int
    sampling: SamplingState | None
    prompt_ids: Sequence[int]
    num_prompt_logprobs: int | None
    token_types: Sequence[int] = ()
    rope: RopePositions | None = None
    spans: Sequence[tuple[int, int]] = ()
    has_media: bool = False


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as arrays: T tokens, R rows (one per chunk).

    tokens, positions, slot_mapping: int64 [T]. starts: int64 [R + 1], first token of each row. contexts: int64 [R],
    tokens of each sequence after the step. prompt_lens: int32 [R]. pages: int32 [R, P], P = pages of the longest row.
    token_types: int64 [T], None = all 0. rope_positions: int64 [axes, T], None = `positions`. ends: int32 [T], end of
    what each token sees, None = its own position. sources: int32 [T, S], where each token's encoder input is.
    state_slots: int64 [R], for models with state.
    """

    tokens: Int64Array
    positions: Int64Array
    slot_mapping: Int64Array
    starts: Int64Array
    contexts: Int64Array
    pages: Int32Array
    prompt_lens: Int32Array
    token_types: Int64Array | None = None
    rope_positions: Int64Array | None = None
    ends: Int32Array | None = None
    sources: Int32Array | None = None
    state_slots: Int64Array | None = None

    def row(self, row: int) -> StepInputs:
        """The inputs of one row."""
        begin, end = int(self.starts[row]), int(self.starts[row + 1])
        return StepInputs(
            tokens=self.tokens[begin:end],
            positions=self.positions[begin:end],
            slot_mapping=self.slot_mapping[begin:end],
            starts=np.array([0, end - begin]),
            contexts=self.contexts[row : row + 1],
            pages=self.pages[row : row + 1],
            prompt_lens=self.prompt_lens[row : row + 1],
            token_types=None if self.token_types is None else self.token_types[begin:end],
            rope_positions=None if self.rope_positions is None else self.rope_positions[:, begin:end],
            ends=None if self.ends is None else self.ends[begin:end],
            sources=None if self.sources is None else self.sources[begin:end],
            state_slots=None if self.state_slots is None else self.state_slots[row : row + 1],
        )

    def independent_ranges(self) -> Iterator[tuple[int, int]]:
        """Begin and end of the smallest ranges that can be computed alone: one token, or a medium seen as a whole."""
        begin = 0
        while begin < len(self.tokens):
            end = begin + 1 if self.ends is None else begin + int(self.ends[begin] - self.positions[begin])
            yield begin, end
            begin = end

    def token_range(self, begin: int, end: int, page_size: int) -> StepInputs:
        """The inputs of tokens begin … end - 1 of one row, in shapes that only their own positions decide."""
        row = int(np.searchsorted(self.starts, begin, side="right")) - 1
        context = int(self.positions[end - 1]) + 1
        return StepInputs(
            tokens=self.tokens[begin:end],
            positions=self.positions[begin:end],
            slot_mapping=self.slot_mapping[begin:end],
            starts=np.array([0, end - begin]),
            contexts=np.array([context]),
            pages=self.pages[row : row + 1, : -(-context // page_size)],
            prompt_lens=self.prompt_lens[row : row + 1],
            rope_positions=None if self.rope_positions is None else self.rope_positions[:, begin:end],
            ends=None if self.ends is None or end == begin + 1 else self.ends[begin:end],
            sources=None if self.sources is None else self.sources[begin:end],
            state_slots=None if self.state_slots is None else self.state_slots[row : row + 1],
        )


class InputBatch:
    """All live rows by sequence id, and their page table: int32 [rows, pages of the longest sequence].

    position_axes: of rotary positions. bidirectional_media: tokens of a medium see all of it. num_constrained: rows
    with a grammar. num_with_media: rows of sequences with media. num_pooled: rows of sequences that are pooled.
    """

    def __init__(
        self, num_rows: int, max_pages: int, page_size: int, position_axes: int = 1, bidirectional_media: bool = False
    ) -> None:
        self.page_size = page_size
        self._axes, self._bidirectional_media = position_axes, bidirectional_media
        self._table = np.zeros((num_rows, max_pages), np.int32)
        self._free = list(range(num_rows - 1, -1, -1))
        self._rows: dict[int, BatchRow] = {}
        self._num_with_types = self._num_with_rope = self._num_with_spans = 0
        self.num_constrained = self.num_with_media = self.num_pooled = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, seq_id: int) -> BatchRow:
        return self._rows[seq_id]

    def sampling_states(self, seq_ids: Iterable[int]) -> dict[int, SamplingState]:
        """Those of the sequences that are in the batch and sampled."""
        found = {seq_id: row.sampling for seq_id in seq_ids if (row := self._rows.get(seq_id)) is not None}
        return {seq_id: state for seq_id, state in found.items() if state is not None}

    def start(
        self,
        seq_id: int,
        sampling: SamplingState | None,
        prompt_ids: Sequence[int],
        num_prompt_logprobs: int | None,
        token_types: Sequence[int] = (),
        media: Sequence[Media] = (),
    ) -> None:
        """Add a row for a sequence that has none. Its first chunk brings its page table."""
        assert seq_id not in self._rows, f"seq {seq_id} has a row"
        if not self._free:
            num_rows = len(self._table)
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._free = list(range(2 * num_rows - 1, num_rows - 1, -1))
        rope = RopePositions.from_media(media, len(prompt_ids), self._axes) if media else None
        spans = [(medium.start, medium.start + medium.length) for medium in media] if self._bidirectional_media else ()
        self._rows[seq_id] = BatchRow(
            self._free.pop(), sampling, prompt_ids, num_prompt_logprobs, token_types, rope, spans, bool(media)
        )
        self._num_with_types += bool(token_types)
        self.num_constrained += sampling is not None and sampling.constraint is not None
        self._num_with_rope += rope is not None
        self._num_with_spans += bool(spans)
        self.num_with_media += bool(media)
        self.num_pooled += sampling is None

    def end(self, seq_id: int) -> None:
        """Drop the row of a sequence, if there is one."""
        row = self._rows.pop(seq_id, None)
        if row is not None:
            self._free.append(row.table_row)
            self._num_with_types -= bool(row.token_types)
            self.num_constrained -= row.sampling is not None and row.sampling.constraint is not None
            self._num_with_rope -= row.rope is not None
            self._num_with_spans -= bool(row.spans)
            self.num_with_media -= row.has_media
            self.num_pooled -= row.sampling is None

    def clear(self) -> None:
        for seq_id in list(self._rows):
            self.end(seq_id)

    def build_inputs(self, chunks: Sequence[Chunk]) -> StepInputs:
        """The arrays of a step. Enters the new pages of its chunks into the page table."""
        table, size = self._table, self.page_size
        rows = [self._rows[chunk.seq_id] for chunk in chunks]
        for row, chunk in zip(rows, chunks, strict=True):
            if chunk.new_pages:
                table[row.table_row, chunk.first_page : chunk.first_page + len(chunk.new_pages)] = chunk.new_pages
        first = np.fromiter((chunk.start for chunk in chunks), np.int64, len(chunks))
        table_rows = np.fromiter((row.table_row for row in rows), np.int64, len(rows))
        tokens = np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), np.int64)
        owners, positions, starts, contexts = _spread(chunks, first, len(tokens))
        pages = table[table_rows, : -(-int(contexts.max()) // size)]
        slot_mapping = pages[owners, positions // size] * size + positions % size
        return StepInputs(
            tokens=tokens,
            positions=positions,
            slot_mapping=slot_mapping,
            starts=starts,
            contexts=contexts,
            pages=pages,
            prompt_lens=np.fromiter((len(row.prompt_ids) for row in rows), np.int32, len(rows)),
            token_types=_token_types(rows, chunks, len(tokens)) if self._num_with_types else None,
            rope_positions=self._rope_positions(rows, chunks, positions, starts) if self._num_with_rope else None,
            ends=self._ends(rows, chunks, positions, starts) if self._num_with_spans else None,
            state_slots=(
                np.fromiter((chunk.state_slot for chunk in chunks), np.int64) if chunks[0].state_slot >= 0 else None
            ),
        )

    def _rope_positions(
        self, rows: Sequence[BatchRow], chunks: Sequence[Chunk], positions: Int64Array, starts: Int64Array
    ) -> Int64Array | None:
        ropes = [row.rope for row in rows]
        return step_rope_positions(ropes, chunks, positions, starts, self._axes) if any(ropes) else None

    def _ends(
        self, rows: Sequence[BatchRow], chunks: Sequence[Chunk], positions: Int64Array, starts: Int64Array
    ) -> Int32Array | None:
        """End of what each token sees; None if that is its own position for all of them."""
        ends: Int32Array | None = None
        for row, chunk, first in zip(rows, chunks, starts, strict=False):
            if not row.spans:
                continue
            chunk_end = chunk.start + len(chunk.token_ids)
            for begin, end in row.spans:
                low, high = max(begin, chunk.start), min(end, chunk_end)
                if low < high:
                    assert high == end, "a medium that its tokens see as a whole is computed to its end"
                    ends = (positions + 1).astype(np.int32) if ends is None else ends
                    shift = int(first) - chunk.start
                    ends[shift + low : shift + high] = end
            row.spans = [span for span in row.spans if span[1] > chunk_end]
            self._num_with_spans -= not row.spans
        return ends


def _token_types(rows: Sequence[BatchRow], chunks: Sequence[Chunk], num_tokens: int) -> Int64Array:
    types = np.zeros(num_tokens, np.int64)
    first = 0
    for row, chunk in zip(rows, chunks, strict=True):
        count = len(chunk.token_ids)
        if row.token_types:
            types[first : first + count] = row.token_types[chunk.start : chunk.start + count]
        first += count
    return types


def _spread(
    chunks: Sequence[Chunk], first: Int64Array, num_tokens: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(row of each token, its position, first token of each row, tokens of each sequence after the step)."""
    if num_tokens == len(chunks):  # a token per chunk, the usual case
        every = np.arange(num_tokens + 1)
        return every[:-1], first, every, first + 1
    if len(chunks) == 1:  # a prompt, or one sequence with drafts
        start = chunks[0].start
        positions = np.arange(start, start + num_tokens)
        return np.zeros(num_tokens, np.int64), positions, np.array([0, num_tokens]), first + num_tokens
    lens = np.fromiter((len(chunk.token_ids) for chunk in chunks), np.int64, len(chunks))
    starts = np.zeros(len(chunks) + 1, np.int64)
    np.cumsum(lens, out=starts[1:])
    owners = np.repeat(np.arange(len(chunks)), lens)
    return owners, np.arange(num_tokens) + (first - starts[:-1])[owners], starts, first + lens
