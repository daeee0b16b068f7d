"""Encoder inputs of models with cross-attention: the medium that each prompt begins with.

The tokens of encoder inputs are not computed as text is. What the blocks read of their rows is stored in their slots
before any text is computed (see `quire_models.parts.cross_attention`). The text then is a step like any other, in which
positions and pages are counted from where the text begins.
"""

from __future__ import annotations

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
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.types import Chunk, Plan
from quire_kernels.ops import AttentionMetadata
from quire_models import CrossAttentionBuffers, DecoderModel, EncoderInput, EncoderSlotMapping, KVCache


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
        self._length, self._text_start = source.length, source.padded_length
        self._module, self._kv, self._adapters, self._batch_invariant = module, kv, adapters, batch_invariant
        self._num_pages = source.padded_length // kv.page_size
        self._buffers = CrossAttentionBuffers(max_tokens, source.length, self._num_pages, module.device)

    def metadata(self, inputs: StepInputs) -> AttentionMetadata | None:
        """Where the tokens of inputs that `text` returned find their encoder inputs."""
        return None if inputs.sources is None else self._buffers.fill(inputs.sources)

    def text(self, plan: Plan, inputs: StepInputs, index: Int64Array) -> TextStep | None:
        """The step without encoder inputs; None if nothing else is in it.

        index: tokens whose hidden states are needed, all of them text.
        """
        is_text = inputs.positions >= self._text_start
        if not is_text.all():
            if not is_text.any():
                return None
            num_before = np.concatenate(([0], np.cumsum(is_text)))  # text tokens before each token
            lens = np.diff(num_before[inputs.starts])
            inputs, index = _only_text(inputs, is_text, lens), num_before[index]
            plan = replace(plan, chunks=tuple(_last_tokens(plan.chunks, lens)))
        return TextStep(plan, self._shifted(inputs), index)

    def _shifted(self, inputs: StepInputs) -> StepInputs:
        """Inputs of text, counted from where it begins; the pages before it are those of the encoder inputs."""
        owners = np.repeat(np.arange(len(inputs.contexts)), np.diff(inputs.starts))
        return replace(
            inputs,
            positions=inputs.positions - self._text_start,
            contexts=inputs.contexts - self._text_start,
            pages=inputs.pages[:, self._num_pages :],
            prompt_lens=inputs.prompt_lens - np.int32(self._text_start),
            sources=inputs.pages[owners, : self._num_pages],
        )

    def store(self, plan: Plan, inputs: StepInputs, media: StepMedia | None, failures: dict[int, str]) -> None:
        """Store what blocks read of the rows that towers made for this step.

        failures: errors by sequence id; sequences in it have no rows, and those that fail here are added.
        """
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
        counts = ((chunk, self._length - chunk.start) for chunk in plan.chunks if chunk.seq_id not in failures)
        return [replace(chunk, token_ids=chunk.token_ids[:count]) for chunk, count in counts if count > 0]

    def _store_rows(
        self, chunks: Sequence[Chunk], rows: Tensor, slot_mapping: Tensor, failures: dict[int, str]
    ) -> None:
        """Store rows [N, width], those of the chunks, in slots int64 [N]."""
        adapters, failed = self._adapters.bind(Plan(chunks=tuple(chunks)))
        failures |= failed
        self._module.store(rows, EncoderSlotMapping(slot_mapping, self._kv, adapters))


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
