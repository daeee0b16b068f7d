"""Encoder inputs of models with cross-attention: the medium that each prompt begins with.

The tokens of encoder inputs are not computed as text is. What the blocks read of their rows is stored in their slots
before any text is computed (see `quire_models.parts.cross_attention`). The text then is a step like any other, in which
positions and pages are counted from where the text begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.multimodal.encoder_inputs import check_encoder_input
from quire.engine.runner.input_batch import Int32Array, Int64Array, StepInputs
from quire.types import Chunk, Plan
from quire_kernels.ops import AttentionMetadata
from quire_models import CrossAttentionBuffers, DecoderModel, EncoderInput, EncoderSlotMapping, KVCache
from quire_models.parts.cross_attention import PADDING_MULTIPLE

MAX_LENGTHS = 65_536
"""Texts whose lengths are kept: many more than sequences are alive."""


class TextStep(NamedTuple):
    """The text of a step, counted from where each text begins. selected: tokens whose hidden states are needed."""

    plan: Plan
    inputs: StepInputs
    selected: Int64Array


class CrossAttentionInputs:
    """Stores and finds the encoder inputs of one model, in pages of `kv`.

    batch_invariant: store every row by itself, so that nothing depends on what else is stored.
    """

    def __init__(
        self,
        source: EncoderInput,
        module: DecoderModel,
        kv: KVCache,
        adapters: AdapterMapping,
        *,
        max_tokens: int,
        max_model_len: int,
        batch_invariant: bool,
    ) -> None:
        """Raises ConfigError for page sizes or lengths that no prompt can have."""
        check_encoder_input(source, kv.page_size, max_model_len)
        self._length = source.length
        self._source_lens: OrderedDict[int, int] | None = OrderedDict() if source.is_text else None
        self._module, self._kv, self._adapters, self._batch_invariant = module, kv, adapters, batch_invariant
        num_pages = source.padded_length // kv.page_size
        self._buffers = CrossAttentionBuffers(max_tokens, source.length, num_pages, module.device)

    def metadata(self, inputs: StepInputs) -> AttentionMetadata | None:
        """Where the tokens of inputs that `text` returned find their encoder inputs."""
        if inputs.sources is None:
            return None
        if self._source_lens is None:
            return self._buffers.fill(inputs.sources)
        return self._buffers.fill(inputs.sources[:, :-1], np.ascontiguousarray(inputs.sources[:, -1]))

    def text(self, plan: Plan, inputs: StepInputs, index: Int64Array) -> TextStep | None:
        """The step without encoder inputs; None if nothing else is in it.

        index: tokens whose hidden states are needed, all of them text.
        """
        lengths = self._lengths(plan)
        is_text = inputs.positions >= np.repeat(_padded(lengths), np.diff(inputs.starts))
        if not is_text.all():
            if not is_text.any():
                return None
            num_before = np.concatenate(([0], np.cumsum(is_text)))  # text tokens before each token
            lens = np.diff(num_before[inputs.starts])
            inputs, index, lengths = _only_text(inputs, is_text, lens), num_before[index], lengths[lens > 0]
            plan = replace(plan, chunks=tuple(_last_tokens(plan.chunks, lens)))
        return TextStep(plan, self._shifted(inputs, lengths), index)

    def _lengths(self, plan: Plan) -> Int64Array:
        """Rows of the encoder input of each chunk's sequence: int64 [R]."""
        known = self._source_lens
        if known is None:
            return np.full(len(plan.chunks), self._length, np.int64)
        for chunk in plan.chunks:
            known.move_to_end(chunk.seq_id)
        return np.fromiter((known[chunk.seq_id] for chunk in plan.chunks), np.int64, len(plan.chunks))

    def _start(self, plan: Plan) -> None:
        """Keep the lengths of new texts; of ended sequences, which not every plan names, as many as there is space."""
        known = self._source_lens
        if known is None:
            return
        for new in plan.started:
            known[new.seq_id] = new.media[0].length
        while len(known) > MAX_LENGTHS:
            known.popitem(last=False)

    def _shifted(self, inputs: StepInputs, lengths: Int64Array) -> StepInputs:
        """Inputs of text, counted from where it begins; the pages before it are those of the encoder inputs."""
        counts = np.diff(inputs.starts)
        owners, starts = np.repeat(np.arange(len(lengths)), counts), _padded(lengths)
        first = starts // self._kv.page_size  # the page where each text begins
        sources = inputs.pages[owners, : int(first.max())]
        if self._source_lens is not None:
            sources = np.concatenate([sources, lengths[owners, None].astype(np.int32)], 1)
        return replace(
            inputs,
            positions=inputs.positions - starts[owners],
            contexts=inputs.contexts - starts,
            pages=_from_page(inputs.pages, first),
            prompt_lens=inputs.prompt_lens - starts.astype(np.int32),
            sources=sources,
        )

    def store(self, plan: Plan, inputs: StepInputs, media: StepMedia | None, failures: dict[int, str]) -> None:
        """Store what blocks read of the rows that towers made for this step.

        failures: errors by sequence id; sequences in it have no rows, and those that fail here are added.
        """
        self._start(plan)
        if media is None:
            return
        chunks = self._encoder_chunks(plan, failures)
        slot_mapping = torch.from_numpy(inputs.slot_mapping[media.index]).to(media.rows.device)
        if not self._batch_invariant:
            self._store_rows(chunks, media.rows, slot_mapping, failures)
            return
        singles = [
            replace(chunk, start=chunk.start + i, token_ids=(token,))
            for chunk in chunks
            for i, token in enumerate(chunk.token_ids)
        ]
        for i, single in enumerate(singles):
            self._store_rows([single], media.rows[i : i + 1], slot_mapping[i : i + 1], failures)

    def _encoder_chunks(self, plan: Plan, failures: dict[int, str]) -> list[Chunk]:
        """The part of each chunk that is encoder input, in the order of the step's tokens."""
        pairs = zip(plan.chunks, self._lengths(plan).tolist(), strict=True)
        counts = ((chunk, length - chunk.start) for chunk, length in pairs if chunk.seq_id not in failures)
        return [replace(chunk, token_ids=chunk.token_ids[:count]) for chunk, count in counts if count > 0]

    def _store_rows(
        self, chunks: Sequence[Chunk], rows: Tensor, slot_mapping: Tensor, failures: dict[int, str]
    ) -> None:
        """Store rows [N, width], those of the chunks, in slots int64 [N]."""
        adapters, failed = self._adapters.bind(Plan(chunks=tuple(chunks)))
        failures |= failed
        self._module.store(rows, EncoderSlotMapping(slot_mapping, self._kv, adapters))


def _padded(lengths: Int64Array) -> Int64Array:
    """Positions that encoder inputs of these many rows take."""
    return -(-lengths // PADDING_MULTIPLE) * PADDING_MULTIPLE


def _from_page(pages: Int32Array, first: Int64Array) -> Int32Array:
    """pages [rows, P] without the first[i] pages of row i, the rest moved to the front; the ends of rows repeat."""
    low, high = int(first.min()), int(first.max())
    if low == high:
        return pages[:, low:]
    columns = np.arange(pages.shape[1] - low) + first[:, None]
    return np.take_along_axis(pages, np.minimum(columns, pages.shape[1] - 1), 1)


def _last_tokens(chunks: Sequence[Chunk], lens: NDArray[np.int64]) -> list[Chunk]:
    """The last lens[i] tokens of chunk i, without empty chunks."""
    return [
        replace(chunk, start=chunk.start + len(chunk.token_ids) - count, token_ids=chunk.token_ids[-count:])
        for chunk, count in zip(chunks, lens.tolist(), strict=True)
        if count
    ]


def _only_text(inputs: StepInputs, is_text: NDArray[np.bool_], lens: NDArray[np.int64]) -> StepInputs:
    """The tokens that are text, and the rows that have any. lens: text tokens of each row."""
    rows = lens > 0
    ropes = inputs.rope_positions
    return StepInputs(
        tokens=inputs.tokens[is_text],
        positions=inputs.positions[is_text],
        slot_mapping=inputs.slot_mapping[is_text],
        starts=np.concatenate(([0], np.cumsum(lens[rows]))),
        contexts=inputs.contexts[rows],
        pages=inputs.pages[rows],
        prompt_lens=inputs.prompt_lens[rows],
        token_types=None if inputs.token_types is None else inputs.token_types[is_text],
        rope_positions=None if ropes is None else ropes[:, is_text],
    )
